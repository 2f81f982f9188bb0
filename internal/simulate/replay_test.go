package simulate

import (
	"testing"

	"github.com/stocached/stocached/policy"
)

// A replay makes the decisions of a run over the same reads, and says which they are.
func TestReplay(t *testing.T) {
	trace := shuffled(t, 200, 4, 3)
	trace.Seconds = Lognormal(200, 1, 3)
	o := busy
	for _, name := range policy.Names() {
		kind, err := policy.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		r := NewReplay(kind, 200, 50, o.Seed)
		future := newFuture(trace, 1)
		r.Plan(func(sample int) uint64 { return future.next(uint32(sample)) })
		held := map[int]int{} // sample of each slot
		hits, replaced := uint64(0), uint64(0)
		for epoch, jobs := range trace.Epochs {
			for _, s := range jobs[0] {
				sample := int(s)
				future.pass(s)
				d := r.Read(sample, trace.measured(&o, s, epoch))
				if d.Hit {
					hits++
				}
				if d.Hit && (held[d.Slot] != sample || d.Victim >= 0) {
					t.Fatalf("%s: %+v, slot %d holds %d", name, d, d.Slot, held[d.Slot])
				}
				if d.Victim >= 0 {
					replaced++
					if held[d.Slot] != d.Victim {
						t.Fatalf("%s: %+v, slot %d held %d", name, d, d.Slot, held[d.Slot])
					}
				}
				if d.Slot >= 0 {
					held[d.Slot] = sample
					r.Reference(d.Slot)
				}
			}
		}
		var wantHits, wantReplaced uint64
		for _, e := range run(t, trace, name, 50, o) {
			wantHits, wantReplaced = wantHits+e.Hits, wantReplaced+e.Replaced
		}
		if hits != wantHits || replaced != wantReplaced || kind.NeedsCosts() != (r.Cost(7) != 0) {
			t.Errorf("%s: %d hits, %d replaced; want %d, %d", name, hits, replaced, wantHits, wantReplaced)
		}
		if hand, spread := r.Shared(); hand > 0 != kind.Evicts() || spread > 0 != kind.NeedsCosts() {
			t.Error(name, hand, spread)
		}
	}
}
