package shm

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// Option is a row of OptionTable: an option of a cache.
type Option struct {
	// Name is its name in errors, and Python's keyword. With - for _ it is the flag of stocached create.
	Name        string
	Go, C       string // field of Options, and member of struct stoc_options; C "": only Go has it
	Least, Most uint64 // range of a number; of a text, the most bytes. Most 0: Create checks it otherwise
	Doc         string // one sentence, without its full stop
	Default     string // what leaving it out (0, "" and nil too) means. "": it is needed
	Advice      string // next step after a bad value. "": leave it out for the default
}

// OptionTable has all options of a cache that programs give, in the order in which they are checked. Go reads it at run
// time. go generate writes what C and Python read, and the documents. Rules over several options stand
// in Options.validate and in C's options.c.
var OptionTable = []Option{
	{Name: "samples", Go: "Samples", C: "samples", Least: 1, Most: MaxSamples,
		Doc: "number of samples of the dataset, cached or not", Advice: "give the samples of the dataset"},
	{Name: "size", Go: "Limit", C: "limit_bytes", Least: 1, Most: math.MaxInt64,
		Doc:     "the most bytes of the whole cache, such as 8GiB or 500MB",
		Default: "room for every sample; variable needs a size"},
	{Name: "slots", Go: "Slots", C: "slots", Least: 1, Most: MaxSlots,
		Doc: "exact number of slots; each has room for one sample", Default: "as many as size holds"},
	{Name: "fields", Go: "Fields", C: "fields",
		Doc:     "the arrays of a sample, each with a name, a type and a shape",
		Default: "one array of sample_bytes bytes"},
	{Name: "sample_bytes", Go: "SampleBytes", C: "sample_bytes", Least: 1, Most: MaxSampleBytes,
		Doc:     "bytes of a sample without fields; with variable the most that a sample may have",
		Default: "the bytes of the fields; with variable 4 GiB - 1"},
	{Name: "variable", Go: "Variable", C: "variable", Most: 1,
		Doc:     "samples differ in size, and dimensions of fields may; needs size",
		Default: "samples of one size"},
	{Name: "policy", Go: "Policy", C: "policy", Most: uint64(PolicyPlanned),
		Doc: "which samples stay. first-come: any sample stored while there is space. first-indices: " +
			"sample i below the number of slots has slot i, the others have none; not with variable. In a " +
			"full cache the others give the space of one sample to another: cost keeps the samples that " +
			"take longest to load (with variable: for their bytes), clock and lfu those read most often, lru " +
			"those read last; fifo and random are to compare with; planned, only in a cache of a server, " +
			"keeps those that jobs read soonest",
		Default: "first-come"},
	{Name: "slot_bytes", Go: "SlotBytes", C: "slot_bytes", Least: UnitBytes, Most: MaxChainStride,
		Doc: "bytes of a slot, a power of two, with variable and a policy that evicts; a sample takes " +
			"several, so best a sixteenth of a typical sample",
		Default: "a size that follows from size and samples"},
	{Name: "reserve", Go: "Reserve", C: "reserve", Most: 1,
		Doc: "takes all memory now, so that no set fails later for lack of it", Default: "memory as samples come"},
	{Name: "unlink", Go: "UnlinkLast", C: "unlink_last", Most: 1,
		Doc:     `"last": its last user removes a cache with a name`,
		Default: "a cache that stays until it is removed"},
	{Name: "clients", Go: "ClientRecords", C: "client_records", Least: 1, Most: MaxClientRecords,
		Doc: "the most processes that use the cache at a time", Default: fmt.Sprint(DefaultClientRecords)},
	{Name: "dir", Go: "Dir", C: "directory",
		Doc: "folder of a cache with a name, on a tmpfs", Default: "`/dev/shm/stocached-<uid>`"},
	{Name: "fingerprint", Go: "Fingerprint", C: "fingerprint", Most: FingerprintBytes, Advice: "hash it",
		Doc:     "names dataset and transform, in at most 64 bytes; programs with another one refuse the cache",
		Default: "none"},
	{Name: "decode", Go: "Decode", Most: DecodeBytes,
		Doc: "how clients decode the samples of a cache of a server", Default: "samples as they lie"},
}

// OptionNamed returns the option with a name of OptionTable.
func OptionNamed(name string) *Option {
	return &OptionTable[slices.IndexFunc(OptionTable, func(p Option) bool { return p.Name == name })]
}

// Help says what the option does, and what follows without it.
func (p *Option) Help() string {
	if p.Default == "" {
		return p.Doc + " (required)"
	}
	return p.Doc + ". Without it: " + p.Default
}

// In returns the value of the option in o.
func (p *Option) In(o *Options) reflect.Value { return reflect.ValueOf(o).Elem().FieldByName(p.Go) }

// Wanted says what an option with a range takes, and the next step after another value.
func (p *Option) Wanted() string {
	takes := fmt.Sprintf("in %d..%d", p.Least, p.Most)
	if p.In(&Options{}).Kind() == reflect.String {
		takes = fmt.Sprintf("UTF-8 of at most %d", p.Most)
	}
	return takes + "; " + cmp.Or(p.Advice, "leave it out for "+p.Default)
}

// Refuse says that the option does not take a number.
func (p *Option) Refuse(number uint64) string { return fmt.Sprintf("%d is not %s", number, p.Wanted()) }

// fault says what is wrong with the value of the option in o; "" means nothing.
func (p *Option) fault(o *Options) string {
	var number uint64
	switch value := p.In(o); {
	case p.Most == 0:
		return ""
	case value.Kind() == reflect.String:
		text := value.String()
		if uint64(len(text)) <= p.Most && utf8.ValidString(text) && !strings.ContainsRune(text, 0) {
			return ""
		}
		return fmt.Sprintf("%s: %d bytes are not %s", p.Name, len(text), p.Wanted())
	case value.CanUint():
		number = value.Uint()
	case value.CanInt():
		number = uint64(value.Int())
	}
	if p.Least <= number && number <= p.Most || number == 0 && p.Default != "" {
		return ""
	}
	return p.Name + ": " + p.Refuse(number)
}
