package report

// Rows of the loader in Python, in the order of the table.
const (
	rowAllHit     = "all hit, 196,608-byte samples"
	rowStep       = "the same, with a training step as long as a gather"
	rowAllSmall   = "all hit, 3,072-byte samples"
	rowAugment    = "all hit, augment= of 200 us a sample, 2 workers"
	rowCold       = "cold, JPEG decode, 2 workers, no cache"
	rowShare      = "a share c of the samples cached, JPEG decode, 2 workers"
	rowFirstBatch = "first batch, 64 samples of 10 ms, 4 workers"
	rowScale      = "loads that sleep for 1 ms, 1 to 8 workers"
	rowTimeline   = "timeline on"
	rowTree       = "memory of the process tree"
	rowTransport  = "streams: items that cost nothing, rows that stay contiguous"
	rowWithin     = "streams: items of 1 ms, workers that share each batch"

	rowOthers       = "loaders of other projects, all hit"
	rowOthersMemory = "memory of their process trees"
)

// DataLoaderRequirements is the table of stocached.torch.DataLoader.
var DataLoaderRequirements = []Requirement{
	{Row: rowAllHit, Case: "loader/hits", Ours: "stocached", Base: "stocaching, 2 workers", Sense: Faster, Need: 10},
	{Row: rowAllHit, Case: "loader/hits", Ours: "stocached, 2 workers", Base: "stocaching, 2 workers", Sense: Faster,
		Need: 10, Sizes: []string{"1,500"}},
	{Row: rowAllHit, Case: "loader/hits", Ours: "stocached", Base: "stocaching, 0 workers", Sense: Faster, Need: 1.25},
	{Row: rowAllHit, Case: "loader/hits", Ours: "stocached", Base: "gather", Sense: Within, Need: 1.1},
	{Row: rowAllHit, Case: "loader/hits", Ours: "stocached, 2 workers", Base: "gather", Sense: Shown,
		Sizes: []string{"1,500"}},
	{Row: rowAllHit, Case: "loader/hits", Ours: "stocached", Base: "stocaching, 1 worker", Sense: Shown,
		Sizes: []string{"1,500"}},
	{Row: rowAllHit, Case: "loader/hits", Ours: "gather", Base: "memcpy loop", Sense: Shown, Sizes: []string{"1,500"}},

	{Row: rowStep, Case: "loader/step", Ours: "stocached", Base: "torch, tensor in memory, 0 workers", Sense: Faster,
		Need: 1.6},
	{Row: rowStep, Case: "loader/step", Ours: "stocached, 2 workers", Base: "torch, tensor in memory, 0 workers",
		Sense: Shown},
	{Row: rowStep, Case: "loader/step", Ours: "stocached", Base: "torch, tensor in memory, 2 workers", Sense: Shown},
	{Row: rowStep, Case: "loader/step", Ours: "stocached", Base: "the step alone", Sense: Shown},

	{Row: rowAllSmall, Case: "loader/small", Ours: "stocached, order of ours", Base: "stocaching, 0 workers",
		Sense: Faster, Need: 10},
	{Row: rowAllSmall, Case: "loader/small", Ours: "stocached, sampler of torch", Base: "stocaching, 0 workers",
		Sense: Faster, Need: 6},
	{Row: rowAllSmall, Case: "loader/small", Ours: "stocached, order of ours", Base: "stocaching, 2 workers",
		Sense: Faster, Need: 20},
	{Row: rowAllSmall, Case: "loader/small", Ours: "stocached, order of ours, 2 workers",
		Base: "stocaching, 2 workers", Sense: Shown},
	{Row: rowAllSmall, Case: "loader/small", Ours: "stocached, order of ours", Base: "gather", Sense: Shown},
	{Row: rowAllSmall, Case: "loader/small", Ours: "gather", Base: "memcpy loop", Sense: Shown},

	{Row: rowAugment, Case: "loader/augment", Ours: "stocached", Base: "200 us / 2", Sense: Within, Need: 1 / 0.85},
	{Row: rowAugment, Case: "loader/augment", Ours: "stocached", Base: "stocaching, 2 workers", Sense: Faster, Need: 1},
	{Row: rowAugment, Case: "loader/augment", Ours: "stocached, threads", Base: "200 us / 2", Sense: Shown},
	{Row: rowAugment, Case: "loader/augment", Ours: "stocached", Base: "the work alone, 2 processes", Sense: Shown},
	{Row: rowAugment, Case: "loader/augment", Ours: "stocached", Base: "the work and two copies, 2 processes",
		Sense: Shown},

	{Row: rowCold, Case: "loader/cold", Ours: "stocached", Base: "torch, 2 workers", Sense: Faster, Need: 1.05},
	{Row: rowCold, Case: "loader/miss", Ours: "stocached", Base: "decode alone, 2 processes", Sense: Above,
		Need: 40e-6, Unit: "us"},
	{Row: rowCold, Case: "loader/cold", Ours: "stocached", Base: "decode alone, 2 processes", Sense: Shown},
	{Row: rowCold, Case: "loader/miss", Ours: "torch, 2 workers", Base: "decode alone, 2 processes", Sense: Shown},

	{Row: rowShare, Case: "loader/share", Ours: "stocached", Base: "(1 - c) cold + c gather", Sense: Within,
		Need: 1.05},

	{Row: rowFirstBatch, Case: "loader/first", Ours: "stocached", Base: "torch", Sense: Within, Need: 0.3},

	{Row: rowScale, Case: "loader/scale", Ours: "stocached", Base: "1 worker, divided", Sense: Within, Need: 1.05},
	{Row: rowScale, Case: "loader/scale", Ours: "stocached", Base: "torch", Sense: Shown, Sizes: []string{"8 workers"}},

	{Row: rowTimeline, Case: "loader/trace", Ours: "with trace=", Base: "without", Sense: Within, Need: 1.01},

	{Row: rowTree, Case: "loader/memory", Ours: "stocached", Base: "its parts", Sense: Within, Need: 1},

	{Row: rowTransport, Case: "streams/transport", Ours: "stocached, 0 workers", Base: "torch, 0 workers",
		Sense: Shown},
	{Row: rowTransport, Case: "streams/transport", Ours: "stocached, 1 worker", Base: "torch, 1 worker", Sense: Shown},
	{Row: rowTransport, Case: "streams/transport", Ours: "stocached, 2 workers",
		Base: "torch, side by side, 2 workers", Sense: Shown},

	{Row: rowWithin, Case: "streams/workers", Ours: "stocached, 1 worker", Base: "1 ms / 1", Sense: Shown},
	{Row: rowWithin, Case: "streams/workers", Ours: "stocached, 2 workers", Base: "1 ms / 2", Sense: Shown},
	{Row: rowWithin, Case: "streams/workers", Ours: "stocached, 4 workers", Base: "1 ms / 4", Sense: Shown},
	{Row: rowWithin, Case: "streams/workers", Ours: "stocached, 4 workers", Base: "torch, 1 worker", Sense: Shown},
	{Row: rowWithin, Case: "streams/workers", Ours: "stocached, 4 workers", Base: "torch, side by side, 4 workers",
		Sense: Shown},
}

// OthersRequirements is the table of the loaders of other projects.
var OthersRequirements = []Requirement{
	{Row: rowOthers, Case: "loader/peers", Ours: "stocached", Base: "the best of them", Sense: Faster, Need: 5},
	{Row: rowOthers, Case: "loader/peers", Ours: "SPDL", Base: "stocached", Sense: Shown},
	{Row: rowOthers, Case: "loader/peers", Ours: "HF datasets", Base: "stocached", Sense: Shown},
	{Row: rowOthers, Case: "loader/peers", Ours: "torchdata", Base: "stocached", Sense: Shown},
	{Row: rowOthers, Case: "loader/peers", Ours: "MONAI CacheDataset", Base: "stocached", Sense: Shown},
	{Row: rowOthers, Case: "loader/peers", Ours: "Grain", Base: "stocached", Sense: Shown},
	{Row: rowOthers, Case: "loader/peers", Ours: "mosaicml-streaming", Base: "stocached", Sense: Shown},
	{Row: rowOthers, Case: "loader/peers", Ours: "webdataset", Base: "stocached", Sense: Shown},
	{Row: rowOthers, Case: "loader/peers", Ours: "LitData", Base: "stocached", Sense: Shown},
	{Row: rowOthers, Case: "loader/peers", Ours: "stocaching + torch", Base: "stocached", Sense: Shown},

	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "SPDL", Base: "stocached", Sense: Shown},
	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "HF datasets", Base: "stocached", Sense: Shown},
	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "torchdata", Base: "stocached", Sense: Shown},
	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "MONAI CacheDataset", Base: "stocached", Sense: Shown},
	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "Grain", Base: "stocached", Sense: Shown},
	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "mosaicml-streaming", Base: "stocached", Sense: Shown},
	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "webdataset", Base: "stocached", Sense: Shown},
	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "LitData", Base: "stocached", Sense: Shown},
	{Row: rowOthersMemory, Case: "loader/peers-memory", Ours: "stocaching + torch", Base: "stocached", Sense: Shown},
}

// dataLoaderNotes explain cases, independent of the machine.
var dataLoaderNotes = map[string]string{
	"loader/hits": "shuffled epochs in batches of 64. Sizes are numbers of samples. *stocached* is " +
		"stocached.torch.DataLoader over a cache in shared memory. It has workers only in \"2 workers\". " +
		"*stocaching* is torch's DataLoader over that library's cache. It keeps its workers between " +
		"epochs. Of 20,000 samples, a run reads 3,000 at random. *gather* is Cache.gather by one thread, " +
		"into four batches in turn. *memcpy loop* is a bare loop in C over the same pages, into as many " +
		"batches. Each is a process of its own",
	"loader/step": "the step keeps a core busy for as long as a gather of the batch by one thread takes, " +
		"measured just before",
	"loader/small": "50,000 samples in batches of 256. *order of ours*: seed=; *sampler of torch*: " +
		"shuffle=True, whose sampler and batch sampler run in Python",
	"loader/cold": "1,024 files of 256 x 256 pixels on a tmpfs, Pillow. *decode alone*: two processes " +
		"share the files, and drop the decoded images. Three times as many runs as of the others, also of " +
		"loader/miss and loader/share",
	"loader/share": "caches with slots for a share c, filled by an epoch before. Beside each epoch: what it " +
		"would take if the others were as cold as without a cache, and these came as from gather",
	"loader/scale": "batches of 16; beside the time of one worker, divided by their number. Three times as " +
		"many runs as of the others",
	"loader/trace": "twice as many runs as of the others",
	"streams/transport": "batches of 64 rows, each of which goes on with its file. *torch*: an IterableDataset " +
		"that puts batches together, in one worker at most, as each of its workers makes batches of its own; *side " +
		"by side*: each worker has some of the rows, and the training loop puts their parts together",
	"streams/workers": "batches of 8 rows; the start of the workers is part of each run",
	"loader/peers": "1,500 samples of 196,608 bytes in batches of 64, shuffled, on a tmpfs, in each one's " +
		"own best format; workers are kept between epochs. *the best of them*: of each round",
	"loader/peers-memory": "PSS of the process and its workers after an epoch, all libraries and what they cached " +
		"included. Files that are read and not mapped lie in the page cache and count nowhere",
}
