package live

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

func frame(at int, uuids ...string) *Frame {
	f := &Frame{At: time.Unix(int64(at), 0), Directory: "/dev/shm/x"}
	for _, uuid := range uuids {
		c := Cache{UUID: uuid, Name: "cache " + uuid, Clients: []table.Object{}}
		c.Fields.Add("name", c.Name)
		c.Fields.Add("cached_fraction", table.Ratio(float64(at)/1000))
		c.Fields.Add("interval_hit_rate", table.Ratio(math.NaN()))
		c.Fields.Add("allocated_bytes", table.Bytes(uint64(at)))
		f.Caches = append(f.Caches, c)
	}
	return f
}

// Ensure that the past of a cache has the last frames, that a cache that is gone is forgotten, and that one
// that comes begins with no past.
func TestHistory(t *testing.T) {
	var h History
	for at := range 2*Kept + 10 {
		h.Add(frame(at, "a"))
	}
	p := h.Of("a")
	if len(p.Times) != Kept || p.Times[Kept-1].Unix() != 2*Kept+9 || p.Times[0].Unix() != Kept+10 {
		t.Fatal(len(p.Times), p.Times[0], p.Times[len(p.Times)-1])
	}
	for n := range All {
		if len(p.Values[n]) != Kept {
			t.Errorf("%s: %d values", All[n].Field, len(p.Values[n]))
		}
	}
	expect.Equal(t, p.Values[len(All)-1][Kept-1], 2*Kept+9, "memory")
	if !math.IsNaN(p.Values[0][0]) || !math.IsNaN(p.Values[2][0]) {
		t.Error("an unknown value is known")
	}
	h.Add(frame(5000, "b"))
	h.Add(frame(5001, "b", "a"))
	if a, b := len(h.Of("a").Times), len(h.Of("b").Times); a != 1 || b != 2 {
		t.Errorf("%d moments of a cache that came back, %d of the other", a, b)
	}
}

// Ensure that the JSON of a frame has the past after a moment, and nothing before.
func TestObject(t *testing.T) {
	var h History
	var last *Frame
	for at := range 10 {
		last = frame(at, "a")
		h.Add(last)
	}
	for after, want := range map[time.Time]int{{}: 10, time.Unix(0, 0): 9, time.Unix(7, 0): 2, time.Unix(9, 0): 0,
		time.Unix(99, 0): 0} {
		b := fatal.Value(json.Marshal(last.Object(&h, after)))(t)
		var got struct {
			Seconds float64
			Caches  []struct {
				Name string
				Past map[string][]*float64
			}
			Problems []string
		}
		fatal.If(t, json.Unmarshal(b, &got))
		past := got.Caches[0].Past
		if got.Seconds != 9 || got.Caches[0].Name != "cache a" || got.Problems == nil || len(past) != len(All)+1 {
			t.Errorf("%s", b)
		}
		for name, values := range past {
			expect.Equal(t, len(values), want, "after %v: values of %s", after, name)
		}
		if want > 0 && (*past["cached_fraction"][want-1] != 0.009 || past["interval_hit_rate"][0] != nil) {
			t.Errorf("%s", b)
		}
	}
}
