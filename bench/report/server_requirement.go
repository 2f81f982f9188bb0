package report

// Rows of the server, in the order of the table.
const (
	rowFill    = "fill, files in the page cache"
	rowJPEG    = "fill, JPEG files of 500 x 375 to 224 x 224"
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

// ServerRequirements is the table of the server. Beside a comparison with a bare read stands a
// bound: a fill is at least a read and a write to the tmpfs.
var ServerRequirements = []Requirement{
	{Row: rowFill, Case: "server/fill-raw", Ours: "server", Base: "pread", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-block", Ours: "server", Base: "pread", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-dir", Ours: "server", Base: "open, read, close", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-raw", Ours: "server", Base: "pread, pwrite", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-raw", Ours: "server" + intoThere, Base: "pread, pwrite" + intoThere,
		Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-block", Ours: "server", Base: "pread, pwrite", Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-block", Ours: "server" + intoThere, Base: "pread, pwrite" + intoThere,
		Sense: Faster, Need: 0.85},
	{Row: rowFill, Case: "server/fill-dir", Ours: "server", Base: "open, read, close, pwrite", Sense: Shown},
	{Row: rowFill, Case: "server/fill-dir", Ours: "server" + intoThere, Base: "open, read, close, pwrite" + intoThere,
		Sense: Shown},
	{Row: rowFill, Case: "server/fill-raw", Ours: "pread, pwrite", Base: "pread", Sense: Faster, Need: 0.85,
		Bound: true},
	{Row: rowFill, Case: "server/fill-raw", Ours: "pread, pwrite" + intoThere, Base: "pread", Sense: Faster,
		Need: 0.85, Bound: true},
	{Row: rowFill, Case: "server/fill-block", Ours: "pread, pwrite", Base: "pread", Sense: Faster, Need: 0.85,
		Bound: true},
	{Row: rowFill, Case: "server/fill-block", Ours: "pread, pwrite" + intoThere, Base: "pread", Sense: Faster,
		Need: 0.85, Bound: true},
	{Row: rowFill, Case: "server/fill-dir", Ours: "open, read, close, pwrite", Base: "open, read, close",
		Sense: Faster, Need: 0.85, Bound: true},
	{Row: rowFill, Case: "server/fill-dir", Ours: "open, read, close, pwrite" + intoThere, Base: "open, read, close",
		Sense: Faster, Need: 0.85, Bound: true},

	{Row: rowJPEG, Case: "server/fill-jpeg", Ours: "server", Base: "server, Go's decoder", Sense: Faster, Need: 4},
	{Row: rowJPEG, Case: "server/fill-jpeg", Ours: "server", Base: "bare threads, read, pwrite", Sense: Faster, Need: 0.9},
	{Row: rowJPEG, Case: "server/fill-jpeg", Ours: "server", Base: "bare threads, read", Sense: Faster, Need: 0.9},
	{Row: rowJPEG, Case: "server/fill-jpeg", Ours: "server", Base: "bare threads", Sense: Shown},
	{Row: rowJPEG, Case: "server/fill-jpeg", Ours: "server again", Base: "server", Sense: Shown},
	{Row: rowJPEG, Case: "server/fill-jpeg", Ours: "bare threads, read, pwrite", Base: "bare threads, read", Sense: Faster,
		Need: 0.9, Bound: true},

	{Row: rowMiss, Case: "server/fetch-one-p50", Ours: "Fetch", Base: "pread, pwrite", Sense: Above, Need: 40e-6,
		Unit: "us"},
	{Row: rowMiss, Case: "server/fetch-one-p99", Ours: "Fetch", Base: "pread, pwrite", Sense: Above, Need: 200e-6,
		Unit: "us"},
	{Row: rowMiss, Case: "server/fetch-one-p50", Ours: "another process, asked", Base: "pread, pwrite", Sense: Above,
		Need: 40e-6, Unit: "us", Bound: true},
	{Row: rowMiss, Case: "server/fetch-one-p99", Ours: "another process, asked", Base: "pread, pwrite", Sense: Above,
		Need: 200e-6, Unit: "us", Bound: true},

	{Row: rowBatch, Case: "server/fetch-batch", Ours: "Fetch", Base: "pread", Sense: Within, Need: 1.1},
	{Row: rowBatch, Case: "server/fetch-batch", Ours: "pread, pwrite", Base: "pread", Sense: Within, Need: 1.1,
		Bound: true},
	{Row: rowBatch, Case: "server/fetch-batch", Ours: "Fetch", Base: "pread, pwrite", Sense: Shown},
	{Row: rowBatch, Case: "server/fetch-batch-slow", Ours: "Fetch", Base: "reads", Sense: Within, Need: 1.1},

	{Row: rowAllHits, Case: "server/fetch-hits", Ours: "Fetch", Base: "Gather", Sense: Within, Need: 1.02},

	{Row: rowPeers, Case: "server/readers-1", Ours: ours, Base: redis, Sense: Faster, Need: 10, Or: redis},
	{Row: rowPeers, Case: "server/readers-1", Ours: views, Base: redis, Sense: Faster, Need: 10, Or: redis},
	{Row: rowPeers, Case: "server/readers-2", Ours: ours, Base: redis, Sense: Faster, Need: 10, Or: redis},
	{Row: rowPeers, Case: "server/readers-2", Ours: views, Base: redis, Sense: Faster, Need: 10, Or: redis},
	{Row: rowPeers, Case: "server/readers-4", Ours: ours, Base: redis, Sense: Faster, Need: 10, Or: redis},
	{Row: rowPeers, Case: "server/readers-4", Ours: views, Base: redis, Sense: Faster, Need: 10, Or: redis},
	{Row: rowPeers, Case: "server/readers-1", Ours: ours, Base: redisOne, Sense: Faster, Need: 10, Or: redisOne},
	{Row: rowPeers, Case: "server/readers-1", Ours: views, Base: redisOne, Sense: Faster, Need: 10, Or: redisOne},
	{Row: rowPeers, Case: "server/readers-2", Ours: ours, Base: redisOne, Sense: Faster, Need: 10, Or: redisOne},
	{Row: rowPeers, Case: "server/readers-2", Ours: views, Base: redisOne, Sense: Faster, Need: 10, Or: redisOne},
	{Row: rowPeers, Case: "server/readers-4", Ours: ours, Base: redisOne, Sense: Faster, Need: 10, Or: redisOne},
	{Row: rowPeers, Case: "server/readers-4", Ours: views, Base: redisOne, Sense: Faster, Need: 10, Or: redisOne},
	{Row: rowPeers, Case: "server/readers-1", Ours: ours, Base: plainFiles, Sense: Faster, Need: 2, Or: plainFiles},
	{Row: rowPeers, Case: "server/readers-1", Ours: views, Base: plainFiles, Sense: Faster, Need: 2, Or: plainFiles},
	{Row: rowPeers, Case: "server/readers-2", Ours: ours, Base: plainFiles, Sense: Faster, Need: 2, Or: plainFiles},
	{Row: rowPeers, Case: "server/readers-2", Ours: views, Base: plainFiles, Sense: Faster, Need: 2, Or: plainFiles},
	{Row: rowPeers, Case: "server/readers-4", Ours: ours, Base: plainFiles, Sense: Faster, Need: 2, Or: plainFiles},
	{Row: rowPeers, Case: "server/readers-4", Ours: views, Base: plainFiles, Sense: Faster, Need: 2, Or: plainFiles},
	{Row: rowPeers, Case: "server/readers-1", Ours: ours, Base: memcached, Sense: Shown},
	{Row: rowPeers, Case: "server/readers-2", Ours: ours, Base: memcached, Sense: Shown},
	{Row: rowPeers, Case: "server/readers-4", Ours: ours, Base: memcached, Sense: Shown},
	{Row: rowPeers, Case: "server/memory", Ours: ours, Sense: Below, Need: 1.1, Unit: "copies"},
	{Row: rowPeers, Case: "server/memory", Ours: redis, Base: ours, Sense: Shown, Unit: "copies"},
	{Row: rowPeers, Case: "server/memory", Ours: memcached, Base: ours, Sense: Shown, Unit: "copies"},
	{Row: rowPeers, Case: "server/memory", Ours: plainFiles, Base: ours, Sense: Shown, Unit: "copies"},

	// 0.85 of (8 ms + s / 150 MB/s) / (s / 150 MB/s).
	{Row: rowWindow, Case: "server/window", Ours: inWindows, Base: singles, Sense: Faster, Need: 0.85 * 8.972,
		Sizes: []string{"image"}},
	{Row: rowWindow, Case: "server/window", Ours: inWindows, Base: singles, Sense: Faster, Need: 0.85 * 81,
		Sizes: []string{"15 KB"}},

	{Row: rowIdle, Case: "server/idle", Ours: "server", Base: "a timer of one second", Sense: Within, Need: 1.5,
		Unit: "a second"},
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
	views      = "stocached, views"
	redis      = "redis"
	redisOne   = "redis, one by one"
	memcached  = "memcached"
	plainFiles = "plain files"
	inWindows  = "block, windows of 16 blocks"
	singles    = "dir, single samples"
	crowd      = "100 readers, 64 caches"
	alone      = "1 reader, 1 cache"
)

const (
	noteFill = "*server* fills a new cache: the kernel must find its pages and add them to the file one by " +
		"one. *into pages that are there* fills a cache that was cleared, which is like a reserved one. Writes " +
		"to one file of a tmpfs wait for one another, so more goroutines do not write faster. For each sample " +
		"the server does the work of the bound, a checksum, and a check that the file has not changed. Copies " +
		"within the kernel (sendfile), mapped files and smaller pieces were tried and are not faster"
	noteOne = "from the call until the sample is in the caller's memory: a round trip and the bound, plus the " +
		"checksum and the copy of the sample to the caller. *another process, asked* does the bound's two " +
		"system calls on request over a unix socket, only by blocking calls; its client copies the sample as well"
	noteReaders = "batches of 64 in a random order, copied to the reader's own memory and not used. *redis* and " +
		"*memcached*: MGETs of 16 keys, gets of 64, all of a batch sent at once, so that server and reader work " +
		"at the same time. *redis, one by one*: a GET for each sample, as in programs that load sample by " +
		"sample. *plain files*: open, read, close. *stocached, views* reads every cache line of the samples in " +
		"place and copies nothing, which the others cannot do: one of the two ways is enough"
	noteCrowd = "each reader requests its next sample as soon as it has the last. So both cores are busy all the " +
		"time, and a fetch waits for those of all others: 100 readers at the rate of one would wait 100 times " +
		"as long"
)

// serverNotes explain cases of the server.
var serverNotes = map[string]string{
	"server/fill-raw":      noteFill,
	"server/fetch-one-p50": noteOne,
	"server/fetch-batch": "the whole batch, with the copies to the caller's memory. The cache was cleared " +
		"before, so its pages exist, like those of the bound",
	"server/fetch-batch-slow": "a source whose reads take 5 ms, 4 at a time, at 1 GB/s; the bare reads use the " +
		"same source",
	"server/readers-1": noteReaders,
	"server/window": "both through limits of 150 MB/s and 8 ms a read, blocks of 8 MiB. Required is 0.85 " +
		"of (8 ms + s / 150 MB/s) / (s / 150 MB/s)",
	"server/idle": "only the janitor's timer of one second wakes the server; beside it, the cost of " +
		"such a timer in a Go program",
	"server/start-tar": "10 shards of a million samples, their indexes beside them; from the start of the " +
		"process until it serves. Warm: it adopts the cache, and counts its samples",
	"server/start-block": "10 million samples of 16 bytes",
	"server/crowd-p99":   noteCrowd,
}
