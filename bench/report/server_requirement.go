package report

// Rows of the server, in the order of the table.
const (
	rowFill    = "fill, files in the page cache"
	rowMiss    = "fetch of a miss, source in the page cache"
	rowBatch   = "fetch of a batch of 256 misses"
	rowAllHits = "fetch of all hits"
	rowPeers   = "1, 2, 4 processes that read what is there"
	rowWindow  = "shuffled reads from a hard disk"
	rowIdle    = "server that has nothing to do"
	rowStart   = "start with 10 million samples"
	rowCrowd   = "100 readers, 64 caches"
)

const intoThere = ", into pages that are there"

// ServerRequirements is the table of the server. Where a bare read is what it must come near, the least that a fill consists of, a read and a write to the tmpfs, stands beside it.
var ServerRequirements = []Requirement{
	{Row: rowFill, Case: "server/fill-raw", Ours: "server", Base: "pread", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-block", Ours: "server", Base: "pread", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-dir", Ours: "server", Base: "open, read, close", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-raw", Ours: "server", Base: "pread, pwrite", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-raw", Ours: "server" + intoThere, Base: "pread, pwrite into pages that are there", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-block", Ours: "server", Base: "pread, pwrite", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-block", Ours: "server" + intoThere, Base: "pread, pwrite into pages that are there", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-dir", Ours: "server", Base: "open, read, close, pwrite", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-dir", Ours: "server" + intoThere, Base: "open, read, close, pwrite into pages that are there", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-raw", Ours: "pread, pwrite", Base: "pread", Sense: Shown},
	{Row: rowFill, Case: "server/fill-raw", Ours: "pread, pwrite into pages that are there", Base: "pread", Sense: Shown},
	{Row: rowFill, Case: "server/fill-block", Ours: "pread, pwrite", Base: "pread", Sense: Shown},
	{Row: rowFill, Case: "server/fill-block", Ours: "pread, pwrite into pages that are there", Base: "pread", Sense: Shown},
	{Row: rowFill, Case: "server/fill-dir", Ours: "open, read, close, pwrite", Base: "open, read, close", Sense: Shown},
	{Row: rowFill, Case: "server/fill-dir", Ours: "open, read, close, pwrite into pages that are there", Base: "open, read, close", Sense: Shown},

	{Row: rowMiss, Case: "server/fetch-one-p50", Ours: "Fetch", Base: "pread, pwrite", Sense: Above, Need: 40e-6, Unit: "us"},
	{Row: rowMiss, Case: "server/fetch-one-p99", Ours: "Fetch", Base: "pread, pwrite", Sense: Above, Need: 200e-6, Unit: "us"},

	{Row: rowBatch, Case: "server/fetch-batch", Ours: "Fetch", Base: "pread", Sense: Within, Need: 1.1},
	{Row: rowBatch, Case: "server/fetch-batch", Ours: "pread, pwrite", Base: "pread", Sense: Shown},
	{Row: rowBatch, Case: "server/fetch-batch", Ours: "Fetch", Base: "pread, pwrite", Sense: Shown},
	{Row: rowBatch, Case: "server/fetch-batch-slow", Ours: "Fetch", Base: "reads", Sense: Within, Need: 1.1},

	{Row: rowAllHits, Case: "server/fetch-hits", Ours: "Fetch", Base: "Gather", Sense: Within, Need: 1.02},

	{Row: rowPeers, Case: "server/readers-1", Ours: ours, Base: redis, Sense: Faster, Need: 10},
	{Row: rowPeers, Case: "server/readers-2", Ours: ours, Base: redis, Sense: Faster, Need: 10},
	{Row: rowPeers, Case: "server/readers-4", Ours: ours, Base: redis, Sense: Faster, Need: 10},
	{Row: rowPeers, Case: "server/readers-1", Ours: ours, Base: plainFiles, Sense: Faster, Need: 2},
	{Row: rowPeers, Case: "server/readers-2", Ours: ours, Base: plainFiles, Sense: Faster, Need: 2},
	{Row: rowPeers, Case: "server/readers-4", Ours: ours, Base: plainFiles, Sense: Faster, Need: 2},
	{Row: rowPeers, Case: "server/readers-1", Ours: ours, Base: memcached, Sense: Shown},
	{Row: rowPeers, Case: "server/readers-2", Ours: ours, Base: memcached, Sense: Shown},
	{Row: rowPeers, Case: "server/readers-4", Ours: ours, Base: memcached, Sense: Shown},
	{Row: rowPeers, Case: "server/memory", Ours: ours, Sense: Below, Need: 1.1, Unit: "copies"},
	{Row: rowPeers, Case: "server/memory", Ours: redis, Base: ours, Sense: Shown, Unit: "copies"},
	{Row: rowPeers, Case: "server/memory", Ours: memcached, Base: ours, Sense: Shown, Unit: "copies"},
	{Row: rowPeers, Case: "server/memory", Ours: plainFiles, Base: ours, Sense: Shown, Unit: "copies"},

	// 0.85 of (8 ms + s / 150 MB/s) / (s / 150 MB/s).
	{Row: rowWindow, Case: "server/window", Ours: inWindows, Base: singles, Sense: Faster, Need: 0.85 * 8.972, Sizes: []string{"image"}},
	{Row: rowWindow, Case: "server/window", Ours: inWindows, Base: singles, Sense: Faster, Need: 0.85 * 81, Sizes: []string{"15 KB"}},

	{Row: rowIdle, Case: "server/idle", Ours: "server", Base: "a timer of one second", Sense: Within, Need: 1.5, Unit: "a second"},
	{Row: rowIdle, Case: "server/idle-memory", Ours: "server", Sense: Below, Need: 30, Unit: "MB"},

	{Row: rowStart, Case: "server/start-tar", Ours: "cold", Sense: Below, Need: 1, Unit: "s"},
	{Row: rowStart, Case: "server/start-tar", Ours: "warm", Sense: Below, Need: 1, Unit: "s"},
	{Row: rowStart, Case: "server/start-block", Ours: "cold", Sense: Below, Need: 1, Unit: "s"},
	{Row: rowStart, Case: "server/start-block", Ours: "warm", Sense: Below, Need: 1, Unit: "s"},
	{Row: rowStart, Case: "server/memory-tar", Ours: "server", Sense: Below, Need: 30, Unit: "MB"},
	{Row: rowStart, Case: "server/memory-block", Ours: "server", Sense: Below, Need: 30, Unit: "MB"},

	{Row: rowCrowd, Case: "server/crowd-p99", Ours: crowd, Base: alone, Sense: Within, Need: 100},
	{Row: rowCrowd, Case: "server/crowd-p50", Ours: crowd, Base: alone, Sense: Shown},
}

// Subjects of more than one requirement.
const (
	ours       = "stocached"
	redis      = "redis"
	memcached  = "memcached"
	plainFiles = "plain files"
	inWindows  = "block, windows of 16 blocks"
	singles    = "dir, single samples"
	crowd      = "100 readers, 64 caches"
	alone      = "1 reader, 1 cache"
)
