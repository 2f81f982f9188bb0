package report

// Rows of the order of an epoch, in the order of the table.
const (
	rowFirst  = "first index of an epoch"
	rowIndex  = "an index of an epoch"
	rowGrowth = "memory of an order"
)

// OrderRequirements is the table of the order of an epoch, in C. Sizes are numbers of samples.
var OrderRequirements = []Requirement{
	{Row: rowFirst, Case: "order/first", Ours: "open, first index", Sense: Below, Need: 1e-3, Unit: "ms"},

	{Row: rowIndex, Case: "order/index", Ours: "shuffled", Sense: Below, Need: 100e-9, Unit: "ns"},
	{Row: rowIndex, Case: "order/index", Ours: "shuffled, one by one", Sense: Below, Need: 100e-9, Unit: "ns"},
	{Row: rowIndex, Case: "order/index", Ours: "windows", Sense: Below, Need: 100e-9, Unit: "ns"},
	{Row: rowIndex, Case: "order/index", Ours: "blocks", Base: "shuffled", Sense: Shown},
	{Row: rowIndex, Case: "order/index", Ours: "mix of three", Base: "shuffled", Sense: Shown},
	{Row: rowIndex, Case: "order/index", Ours: "weights", Base: "shuffled", Sense: Shown, Sizes: []string{"1,281,167"}},

	{Row: rowGrowth, Case: "order/memory", Ours: "1,281,167", Base: "1,000", Sense: Within, Need: 1.05, Unit: "MB"},
	{Row: rowGrowth, Case: "order/memory", Ours: "2^30+1", Base: "1,000", Sense: Within, Need: 1.05, Unit: "MB"},
	{Row: rowGrowth, Case: "order/memory", Ours: "1e9", Base: "1,000", Sense: Within, Need: 1.05, Unit: "MB"},
}

// orderNotes explain cases, independent of the machine.
var orderNotes = map[string]string{
	"order/first": "keys of the epoch, and with them the index at position 0",
	"order/index": "batches of 256 neighbours all over the epoch. *blocks*: of 256 samples, 16 at a time, so that " +
		"each batch begins a new window; *windows*: of 10,000 samples; *mix of three*: datasets of a third each, " +
		"7 to 2 to 1; *weights*: a table of 16 bytes a sample, which is larger than the processor's nearer caches",
	"order/memory": "the most memory of a process that opened an epoch and made indices of it, the C " +
		"library included",
}
