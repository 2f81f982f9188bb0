package report

// Rows of the loader, in the order of the table.
const (
	rowGoBatches = "Go: batches, all in the cache"
	rowGoStep    = "Go: the same with a step of training"
	rowGoWorkers = "Go: loads that sleep for 1 ms, by 1 to 8 goroutines"
)

// LoaderRequirements is the table of the loader.
var LoaderRequirements = []Requirement{
	{Row: rowGoBatches, Case: "loader/go-batches-1", Ours: "batches", Base: "gather alone", Sense: Within, Need: 1.1},
	{Row: rowGoBatches, Case: "loader/go-batches-2", Ours: "batches", Base: "gather alone", Sense: Within, Need: 1.1},

	{Row: rowGoStep, Case: "loader/go-step", Ours: "batches, each followed by a step",
		Base: "gather, each followed by a step", Sense: Faster, Need: 1.6, Sizes: []string{"image"}},
	{Row: rowGoStep, Case: "loader/go-step", Ours: "batches, each followed by a step", Base: "steps alone",
		Sense: Shown},

	{Row: rowGoWorkers, Case: "loader/go-workers", Ours: "batches", Base: "bare goroutines", Sense: Within, Need: 1.05},
}

// loaderNotes explain cases, independent of the machine.
var loaderNotes = map[string]string{
	"loader/go-batches-1": "an epoch in a shuffled order, each batch released; one goroutine gathers. *gather " +
		"alone*: the same samples into as many buffers, again and again, by the goroutine that counts",
	"loader/go-batches-2": "the same with two goroutines that gather",
	"loader/go-step":      "the step is a loop that computes for as long as one gather by one goroutine",
	"loader/go-workers":   "*bare goroutines*: as many, which only sleep. Sizes are numbers of goroutines",
}
