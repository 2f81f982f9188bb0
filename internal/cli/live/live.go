// Package live has what stocached top and the page of stocached web show: all caches of a user now, and
// their recent past. It reads nothing itself. Commands give it what stats --json prints.
package live

import (
	"fmt"
	"image/color"
	"slices"
	"strings"
	"time"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/palette"
)

// Look reads all caches. opened are the uuids of those whose epochs are compared, which takes up to a second
// for a million samples.
type Look func(opened map[string]bool) Frame

// Frame is all caches at one moment.
type Frame struct {
	At        time.Time
	Directory string
	Memory    Memory
	Caches    []Cache
	OnDemand  []string // a line for each server on demand
	Problems  []string // what could not be read
}

// Summary counts caches and clients, and says what memory they have and what is left.
func (f *Frame) Summary() (counts, memory []string) {
	clients := 0.0
	for k := range f.Caches {
		clients += f.Caches[k].Number("clients_live")
	}
	memory = []string{"memory of caches " + f.Memory.Caches.String()}
	if left := f.Memory.Tmpfs; left != nil {
		memory = append(memory, table.Text(left)+" left of the tmpfs")
	}
	if left := f.Memory.Machine; left != nil {
		memory = append(memory, table.Text(left)+" of the machine")
	}
	return []string{table.Plural(len(f.Caches), "cache"), table.Plural(int(clients), "client")}, memory
}

// None says what to do if there are no caches in a directory.
func None(directory string) string {
	return fmt.Sprintf("no caches in %s yet; stocached create makes one", directory)
}

// Memory is what all caches have, and what more they may take.
type Memory struct {
	Caches  table.Bytes // pages of all caches
	Tmpfs   any         // table.Bytes left of the directory's tmpfs; nil: unknown, or it has no limit
	Machine any         // table.Bytes left of machine and cgroup; likewise
}

// Cache is one cache.
type Cache struct {
	UUID    string
	Name    string
	Fields  table.Object   // fields of stats --watch --json
	Clients []table.Object // the live ones, as inspect --json has them, with rates
}

// Text returns a field for people.
func (c *Cache) Text(field string) string { return table.Text(c.Fields.Value(field)) }

// Number returns a field; NaN: it is unknown.
func (c *Cache) Number(field string) float64 { return table.Number(c.Fields.Value(field)) }

// Epochs are what the last epoch did and what one should do: lines of title, observed and predicted.
func (c *Cache) Epochs() (lines [][3]string) {
	lines = [][3]string{{"", "LAST EPOCH", "PREDICTED"}}
	for _, one := range [][2]string{{"hit rate", "hit_rate"}, {"loads", "load_seconds"}, {"saved", "saved_seconds"},
		{"evicted", "evicted"}} {
		lines = append(lines, [3]string{one[0], c.Text("observed_" + one[1]), c.Text("predicted_" + one[1])})
	}
	return lines
}

// Object is the JSON of a frame, with the past of each cache after a moment. Texts are the same values for people.
func (f *Frame) Object(h *History, after time.Time) table.Object {
	caches := make([]table.Object, len(f.Caches))
	for k := range f.Caches {
		c := &f.Caches[k]
		clients := make([]table.Object, len(c.Clients))
		for n, one := range c.Clients {
			clients[n] = withTexts(one)
		}
		o := table.Object{}
		o.Add("uuid", c.UUID)
		o = append(o, withTexts(c.Fields)...)
		o.Add("epochs", c.Epochs())
		o.Add("clients", clients)
		o.Add("past", h.Of(c.UUID).object(after))
		caches[k] = o
	}
	o := table.Object{}
	o.Add("caches_bytes", f.Memory.Caches)
	o.Add("tmpfs_left_bytes", f.Memory.Tmpfs)
	o.Add("machine_left_bytes", f.Memory.Machine)
	o = withTexts(o)
	counts, memory := f.Summary()
	o.Add("summary", slices.Concat([]string{strings.Join(counts, ", ")}, memory, f.OnDemand))
	o.Add("none", None(f.Directory))
	o.Add("time", table.Moment(f.At))
	o.Add("seconds", table.Ratio(seconds(f.At)))
	o.Add("directory", f.Directory)
	o.Add("problems", append([]string{}, f.Problems...))
	o.Add("caches", caches)
	return o
}

// withTexts adds the values for people.
func withTexts(o table.Object) table.Object {
	texts := table.Object{}
	for _, f := range o {
		texts.Add(f.Name, table.Text(f.Value))
	}
	o = slices.Clone(o)
	o.Add("texts", texts)
	return o
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// Scale says how a series is drawn.
type Scale uint8

const (
	Fraction Scale = iota // from 0 to 1
	Rate                  // from 0 to its largest value, as Amount
	Amount                // bytes, from 0 to their largest value
)

// Series is a field whose past is kept and drawn.
type Series struct {
	Field  string
	Title  string
	Colour color.RGBA
	Scale  Scale
}

// All are the series, in the order in which they are shown.
var All = []Series{
	{"interval_hit_rate", "hit rate", palette.HitRate, Fraction},
	{"cached_fraction", "cached", palette.Cached, Fraction},
	{"hits_per_second", "hits/s", palette.HitRate, Rate},
	{"misses_per_second", "misses/s", palette.Misses, Rate},
	{"stored_per_second", "sets/s", palette.Sets, Rate},
	{"evicted_per_second", "evicted/s", palette.Evicted, Rate},
	{"allocated_bytes", "memory", palette.Memory, Amount},
}

// Column is a column of the list of caches.
type Column struct {
	Field string
	Title string
	Words bool // sorted by the alphabet
	Curve bool // the past of its Series stands beside it
}

// Columns are the columns of the list, in the order in which they are shown and sorted.
var Columns = []Column{
	{"name", "name", true, false},
	{"clients_live", "live", false, false},
	{"interval_hit_rate", "hit rate", false, true},
	{"cached_fraction", "cached", false, true},
	{"hits_per_second", "hits/s", false, false},
	{"stored_per_second", "sets/s", false, true},
	{"evicted_per_second", "evicted/s", false, true},
	{"allocated_bytes", "memory", false, true},
	{"policy", "policy", true, false},
}

// Number returns the number of a field's series in All; -1: it has none.
func Number(field string) int {
	return slices.IndexFunc(All, func(s Series) bool { return s.Field == field })
}

// Object is the JSON of a column. A curve has a colour, and the value that reaches its top; null: its largest one.
func (c *Column) Object() (o table.Object) {
	o.Add("field", c.Field)
	o.Add("title", c.Title)
	if c.Curve {
		s, most := All[Number(c.Field)], any(nil)
		if s.Scale == Fraction {
			most = 1
		}
		o.Add("colour", palette.Hex(s.Colour))
		o.Add("most", most)
	}
	return o
}

// Kept is the most moments that a History keeps of each cache: ten minutes of seconds.
const Kept = 600

// History is the past of all caches. The zero value is empty.
type History struct{ past map[string]*Past }

// Past is that of one cache. The columns are equally long.
type Past struct {
	Times  []time.Time
	Values [][]float64 // by number in All; NaN: unknown
}

// Add adds a frame, which is later than all before. It forgets caches that are not in it.
func (h *History) Add(f *Frame) {
	past := map[string]*Past{}
	for k := range f.Caches {
		c := &f.Caches[k]
		p := h.past[c.UUID]
		if p == nil {
			p = &Past{Values: make([][]float64, len(All))}
		}
		drop := max(len(p.Times)+1-Kept, 0)
		p.Times = append(slices.Delete(p.Times, 0, drop), f.At)
		for n := range All {
			p.Values[n] = append(slices.Delete(p.Values[n], 0, drop), c.Number(All[n].Field))
		}
		past[c.UUID] = p
	}
	h.past = past
}

// Of returns the past of a cache, which is empty at first.
func (h *History) Of(uuid string) *Past {
	if p := h.past[uuid]; p != nil {
		return p
	}
	return &Past{Values: make([][]float64, len(All))}
}

func (p *Past) object(after time.Time) (o table.Object) {
	from, _ := slices.BinarySearchFunc(p.Times, after, func(t, after time.Time) int {
		if t.After(after) {
			return 1
		}
		return -1
	})
	times := []table.Ratio{}
	for _, t := range p.Times[from:] {
		times = append(times, table.Ratio(seconds(t)))
	}
	o.Add("seconds", times)
	for n := range All {
		values := []table.Ratio{}
		for _, v := range p.Values[n][from:] {
			values = append(values, table.Ratio(v))
		}
		o.Add(All[n].Field, values)
	}
	return o
}
