package report

// Sense says how a ratio is made and which values are good.
type Sense string

const (
	Faster Sense = "faster" // time of the base / our time, at least Need
	Within Sense = "within" // our time / time of the base, at most Need
	Below  Sense = "below"  // our value itself, at most Need
	Above  Sense = "above"  // our value less that of the base, at most Need
	Shown  Sense = "shown"  // our time / time of the base, nothing is required
)

// Requirement is one line of the requirements.
type Requirement struct {
	Row   string // of the table that users read: requirements of one row stand together
	Case  string
	Ours  string // subject of the case
	Base  string // subject it is compared with; "" with Below
	Sense Sense
	Need  float64
	Unit  string   // of Need, with Below and Above. Seconds, in a unit of time; or as Subject.Unit
	Sizes []string // nil: every size that was measured
	// Ours is not ours but the least work that any program must do. If it misses the requirement,
	// every program on this machine does. It does not count
	Bound bool
	Or    string // requirements of one case and size with the same Or: one of them is enough
}

// Rows, in the order of the table.
const (
	rowView    = "Python view"
	rowShared  = "SharedCache"
	rowGather  = "gather of a batch, 1 thread"
	rowThreads = "gather of a batch, 2 threads"
	rowPut     = "put, checksum included"
	rowNative  = "Go and C reads"
	rowCreate  = "create 1 GiB"
	rowMemory  = "memory"
	rowHits    = "hits with 1, 2, 4 processes"
	rowEpoch   = "first epoch"
	rowAttach  = "attach to 100 million samples"
)

// Requirements is the table of the clients, which need no server. Small and large samples have the
// same requirements.
var Requirements = []Requirement{
	{Row: rowView, Case: "python/view", Ours: "Cache.get", Base: "stocaching get_slot", Sense: Faster, Need: 5},

	{Row: rowShared, Case: "python/copy", Ours: "SharedCache.get_slot", Base: "stocaching get_slot.clone",
		Sense: Faster, Need: 1.2},
	{Row: rowShared, Case: "python/collate", Ours: "SharedCache.get_slot", Base: "stocaching get_slot", Sense: Faster,
		Need: 0.85},
	{Row: rowShared, Case: "python/view", Ours: "SharedCache.get_slot views=True", Base: "stocaching get_slot",
		Sense: Faster, Need: 1},
	{Row: rowShared, Case: "python/collate", Ours: "SharedCache.get_slot views=True", Base: "stocaching get_slot",
		Sense: Faster, Need: 1},

	{Row: rowGather, Case: "python/gather", Ours: "gather", Base: "torch.index_select", Sense: Faster, Need: 1},
	{Row: rowGather, Case: "python/gather", Ours: "gather", Base: "numpy.take", Sense: Faster, Need: 1},
	{Row: rowGather, Case: "python/gather", Ours: "gather", Base: "C memcpy loop", Sense: Faster, Need: 0.9},
	{Row: rowGather, Case: "python/gather", Ours: "gather", Base: "stocaching get_slot + collate", Sense: Faster,
		Need: 5},
	{Row: rowGather, Case: "c/gather", Ours: "gather", Base: "memcpy loop", Sense: Faster, Need: 0.9},
	{Row: rowGather, Case: "go/gather", Ours: "gather", Base: "copy loop", Sense: Faster, Need: 0.9},

	{Row: rowThreads, Case: "python/gather", Ours: "gather 2 threads", Base: "gather", Sense: Faster, Need: 1.6,
		Or: "threads"},
	{Row: rowThreads, Case: "python/gather", Ours: "gather 2 threads", Base: "C memcpy loop 2 threads", Sense: Faster,
		Need: 1, Or: "threads"},
	{Row: rowThreads, Case: "c/gather", Ours: "gather 2 threads", Base: "gather", Sense: Faster, Need: 1.6,
		Or: "threads"},
	{Row: rowThreads, Case: "c/gather", Ours: "gather 2 threads", Base: "memcpy loop 2 threads", Sense: Faster,
		Need: 1, Or: "threads"},
	{Row: rowThreads, Case: "go/gather", Ours: "gather 2 threads", Base: "gather", Sense: Faster, Need: 1.6,
		Or: "threads"},
	{Row: rowThreads, Case: "go/gather", Ours: "gather 2 threads", Base: "copy loop 2 threads", Sense: Faster,
		Need: 1, Or: "threads"},

	{Row: rowPut, Case: "python/put-new", Ours: "put", Base: "os.pwrite", Sense: Within, Need: 1.2},
	{Row: rowPut, Case: "python/put-reserved", Ours: "put", Base: "os.pwrite", Sense: Within, Need: 1.2},
	{Row: rowPut, Case: "c/set-new", Ours: "set", Base: "pwrite", Sense: Within, Need: 1.2},
	{Row: rowPut, Case: "c/set-reserved", Ours: "set", Base: "pwrite", Sense: Within, Need: 1.2},
	{Row: rowPut, Case: "go/set-new", Ours: "Set", Base: "pwrite", Sense: Within, Need: 1.2},
	{Row: rowPut, Case: "go/set-reserved", Ours: "Set", Base: "pwrite", Sense: Within, Need: 1.2},

	{Row: rowNative, Case: "go/view", Ours: "View", Sense: Below, Need: 25e-9, Unit: "ns"},
	{Row: rowNative, Case: "go/get", Ours: "Get", Base: "copy", Sense: Within, Need: 1.1},
	{Row: rowNative, Case: "c/view", Ours: "stoc_view", Sense: Below, Need: 15e-9, Unit: "ns"},
	{Row: rowNative, Case: "c/view", Ours: "stoc_view_offset", Sense: Below, Need: 15e-9, Unit: "ns"},
	{Row: rowNative, Case: "c/view-static", Ours: "stoc_view", Sense: Below, Need: 15e-9, Unit: "ns"},
	{Row: rowNative, Case: "c/view-static", Ours: "stoc_view_offset", Sense: Below, Need: 15e-9, Unit: "ns"},
	{Row: rowNative, Case: "go/view", Ours: "View", Base: "bare lookup, counted", Sense: Shown},
	{Row: rowNative, Case: "c/view", Ours: "stoc_view", Base: "bare lookup, counted", Sense: Shown},
	{Row: rowNative, Case: "c/view-static", Ours: "stoc_view", Base: "bare lookup, counted", Sense: Shown},
	{Row: rowNative, Case: "go/get", Ours: "Get", Base: "copy after a lookup", Sense: Shown},
	{Row: rowNative, Case: "c/get", Ours: "stoc_get", Base: "memcpy", Sense: Shown},

	{Row: rowCreate, Case: "go/create", Ours: "Create", Sense: Below, Need: 5e-3, Unit: "ms"},
	{Row: rowCreate, Case: "c/create", Ours: "stoc_create", Sense: Below, Need: 5e-3, Unit: "ms"},
	{Row: rowCreate, Case: "python/create", Ours: "Cache.create", Sense: Below, Need: 5e-3, Unit: "ms"},

	{Row: rowMemory, Case: "memory/filling", Ours: "a quarter filled", Sense: Below, Need: 1.02, Unit: "copies"},
	{Row: rowMemory, Case: "memory/filling", Ours: "half filled", Sense: Below, Need: 1.02, Unit: "copies"},
	{Row: rowMemory, Case: "memory/filling", Ours: "filled", Sense: Below, Need: 1.02, Unit: "copies"},
	{Row: rowMemory, Case: "memory/go", Ours: "1 worker", Sense: Below, Need: 1.02, Unit: "copies"},
	{Row: rowMemory, Case: "memory/go", Ours: "2 workers", Sense: Below, Need: 1.02, Unit: "copies"},
	{Row: rowMemory, Case: "memory/go", Ours: "4 workers", Sense: Below, Need: 1.02, Unit: "copies"},
	{Row: rowMemory, Case: "memory/go", Ours: "8 workers", Sense: Below, Need: 1.02, Unit: "copies"},
	{Row: rowMemory, Case: "memory/python", Ours: "4 workers", Sense: Below, Need: 1.02, Unit: "copies"},

	{Row: rowHits, Case: "hits/go", Ours: "2 processes", Base: "1 process", Sense: Faster, Need: 1.9},
	{Row: rowHits, Case: "hits/c", Ours: "2 processes", Base: "1 process", Sense: Faster, Need: 1.9},
	{Row: rowHits, Case: "hits/python", Ours: "2 processes", Base: "1 process", Sense: Faster, Need: 1.9},
	{Row: rowHits, Case: "hits/go", Ours: "4 processes", Base: "2 processes", Sense: Shown},
	{Row: rowHits, Case: "hits/c", Ours: "4 processes", Base: "2 processes", Sense: Shown},
	{Row: rowHits, Case: "hits/python", Ours: "4 processes", Base: "2 processes", Sense: Shown},

	{Row: rowEpoch, Case: "python/first-epoch", Ours: "reserve=True", Base: "no cache", Sense: Within, Need: 1.03},
	{Row: rowEpoch, Case: "python/first-epoch", Ours: "lazily", Base: "no cache", Sense: Within, Need: 1.06},
	{Row: rowEpoch, Case: "python/first-epoch-loop", Ours: "reserve=True", Base: "no cache", Sense: Within, Need: 1.03},
	{Row: rowEpoch, Case: "python/first-epoch-loop", Ours: "lazily", Base: "no cache", Sense: Within, Need: 1.06},

	{Row: rowEpoch, Case: "python/first-epoch-loop", Ours: "pwrite into reserved pages", Base: "no cache",
		Sense: Shown},
	{Row: rowEpoch, Case: "python/first-epoch-loop", Ours: "pwrite into new pages", Base: "no cache", Sense: Shown},

	{Row: rowAttach, Case: "go/attach", Ours: "Attach", Sense: Below, Need: 10e-3, Unit: "ms"},
	{Row: rowAttach, Case: "c/attach", Ours: "stoc_open", Sense: Below, Need: 10e-3, Unit: "ms"},
	{Row: rowAttach, Case: "python/attach", Ours: "Cache.attach", Sense: Below, Need: 10e-3, Unit: "ms"},
}

// caseNotes explain cases, independent of the machine.
var caseNotes = map[string]string{
	"c/view": "through libstocached.so, as most programs call it. The hit is counted by a locked " +
		"instruction; stoc_view writes two results to memory, which have to be out of the store buffer before the " +
		"next one, and a call into a shared library is an indirect one. A bare lookup is a direct call that loads " +
		"one word of 16 bytes a sample and adds 1 to a counter with a locked instruction",
	"c/view-static": "the same calls linked from libstocached.a",
	"c/get": "a single copy of a small sample waits for its index word first, which a bare copy of a known " +
		"address does not",
	"go/get": "a single copy of a small sample waits for its index word first, which a bare copy of a known " +
		"address does not",
	"hits/go": "processor time of a view beside other processes is that of a view alone (ratio of CPU 1) if " +
		"they write no common cache line, whatever else the machine does",
	"go/view": "views of small samples miss the processor's cache in an index of 16 MB; so does a bare " +
		"lookup, which loads one word of such a table and adds 1 to a counter with a locked instruction",
}
