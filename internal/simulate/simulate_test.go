package simulate

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/policy"
)

// shuffled returns the trace of one job.
func shuffled(t testing.TB, samples, epochs int, seed uint64) *Trace {
	t.Helper()
	trace, err := Jobs{Order: order.Order{Samples: uint64(samples), Kind: order.Shuffled, Seed: seed}, Epochs: epochs,
		Jobs: 1}.Trace()
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// run is Run that must succeed.
func run(t testing.TB, trace *Trace, name string, room uint64, o Options) []Epoch {
	t.Helper()
	if bound := bounds[name]; bound != nil {
		return runBound(trace, bound(trace, room))
	}
	epochs, err := trace.Run(name, room, o, nil)
	if err != nil {
		t.Fatal(name, err)
	}
	return epochs
}

func allNames() []string { return append(policy.Names(), "belady", "ideal") }

var busy = Options{Seed: 1, Noise: 0.3, Stalls: true}

// The table of the issue: what cost saves in the epochs 2, 3, 4 and 8. Stalls, which the issue's
// simulation had not, may take 0.01.
func TestCostSaves(t *testing.T) {
	const samples = 20_000
	for _, c := range []struct {
		sigma, fraction float64
		issue           [4]float64
		ideal           float64
	}{
		{0.6, 0.25, [4]float64{0.423, 0.436, 0.443, 0.452}, 0.471},
		{0.6, 0.50, [4]float64{0.672, 0.692, 0.699, 0.710}, 0.725},
		{1.2, 0.25, [4]float64{0.666, 0.679, 0.684, 0.690}, 0.700},
	} {
		trace := shuffled(t, samples, 8, 1)
		trace.Seconds = Lognormal(samples, c.sigma, 1)
		room := uint64(c.fraction * samples)
		for _, stalls := range []bool{false, true} {
			epochs := run(t, trace, "cost", room, Options{Seed: 1, Noise: 0.3, Stalls: stalls})
			for k, number := range []int{1, 2, 3, 7} {
				if got := epochs[number].TimeSaved(); got < c.issue[k]-0.01 {
					t.Errorf("%v, stalls %v: %.3f saved in epoch %d", c, stalls, got, number+1)
				}
			}
		}
		if got := run(t, trace, "ideal", room, busy)[7].TimeSaved(); math.Abs(got-c.ideal) > 0.02 {
			t.Errorf("%v: the ideal set saves %.3f", c, got)
		}
	}
}

// Equal costs: cost moves fewer than 1 % of its slots an epoch from the third on, and loads at most
// 1.01 times as often as first-come, with noise and stalls, for caches large and small.
func TestEqualCostsMoveNothing(t *testing.T) {
	for _, samples := range []int{900, 20_000} {
		for _, fraction := range []float64{0.1, 0.25, 0.5, 0.9} {
			for seed := range uint64(5) {
				trace := shuffled(t, samples, 8, seed)
				room := uint64(fraction * float64(samples))
				o := busy
				o.Seed = seed
				epochs, first := run(t, trace, "cost", room, o), run(t, trace, "first-come", room, o)
				for number := 2; number < 8; number++ {
					e, f := epochs[number], first[number]
					if e.Replaced*100 >= room || float64(e.Reads-e.Hits) > 1.01*float64(f.Reads-f.Hits) {
						t.Errorf("%d samples, %g, seed %d, epoch %d: %d replaced, %d hits; first-come %d", samples, fraction, seed,
							number+1, e.Replaced, e.Hits, f.Hits)
					}
				}
			}
		}
	}
}

// Jobs that read side by side: planned is near Belady, and hits what docs/guides/policies.md says.
func TestPlanned(t *testing.T) {
	for jobs, want := range map[int]float64{2: 0.70, 4: 0.745} {
		trace, err := Jobs{Order: order.Order{Samples: 4000, Kind: order.Shuffled, Seed: 1}, Epochs: 7, Jobs: jobs}.Trace()
		if err != nil {
			t.Fatal(err)
		}
		of := map[string]float64{}
		for _, name := range []string{"first-come", "planned", "belady"} {
			for _, e := range run(t, trace, name, 2000, busy)[2:6] {
				of[name] += e.HitRate() / 4
			}
		}
		if got := of["planned"]; got < want || got < of["belady"]-0.025 || got > of["belady"]+0.001 {
			t.Errorf("%d jobs: %v", jobs, of)
		}
	}
}

// Weighted sampling, Zipf 1.0 over 100,000, a tenth cached: clock and lfu are within 2 % of exact LFU.
func TestWeightedSampling(t *testing.T) {
	const samples, epochs = 100_000, 12
	trace, err := Jobs{Order: order.Order{Samples: samples, Seed: 1}, Weights: Zipf(samples, 1), Epochs: epochs,
		Jobs: 1}.Trace()
	if err != nil {
		t.Fatal(err)
	}
	last := func(name string) float64 { return run(t, trace, name, samples/10, busy)[epochs-1].HitRate() }
	lfu := rates(trace, newExactLFU(trace, samples/10))[epochs-1]
	for _, name := range []string{"clock", "lfu"} {
		if got := last(name); got < 0.98*lfu {
			t.Errorf("%s hits %.3f; exact LFU %.3f", name, got, lfu)
		}
	}
	if got, exact := last("lru"), rates(trace, newExactLRU(trace, samples/10))[epochs-1]; math.Abs(got-exact) > 0.01 {
		t.Errorf("lru hits %.3f; exact LRU %.3f", got, exact)
	}
	if clock, first := last("clock"), last("first-come"); clock < first+0.03 {
		t.Errorf("clock hits %.3f; first-come %.3f", clock, first)
	}
}

// Data that changes: other samples are popular from the seventh epoch on. clock, lru and lfu find
// them, and lfu before exact LFU does.
func TestDataThatChanges(t *testing.T) {
	const samples, epochs = 20_000, 16
	trace, err := Jobs{Order: order.Order{Samples: samples, Seed: 1}, Weights: Zipf(samples, 1), Epochs: epochs,
		Jobs: 1}.Trace()
	if err != nil {
		t.Fatal(err)
	}
	for k := trace.Ends[5]; k < len(trace.Accesses); k++ {
		trace.Accesses[k] = (trace.Accesses[k] + samples/2) % samples
	}
	lfu := 0.0
	for _, name := range []string{"clock", "lru", "lfu"} {
		e := run(t, trace, name, samples/10, busy)
		before, after := e[5].HitRate(), e[epochs-1].HitRate()
		if after < before-0.02 {
			t.Errorf("%s hits %.3f before the change and %.3f nine epochs after", name, before, after)
		}
		lfu = after
	}
	if exact := rates(trace, newExactLFU(trace, samples/10))[epochs-1]; lfu < exact+0.1 {
		t.Errorf("lfu hits %.3f, exact LFU %.3f", lfu, exact)
	}
}

// What any policy must do: hits only of what was read before, no more samples than fit, the same
// again with the same seed; no room, room for one, and room for all.
func TestAllPolicies(t *testing.T) {
	weighted, err := Jobs{Order: order.Order{Samples: 300, Seed: 2}, Weights: Zipf(300, 0.8), Epochs: 4, Jobs: 2}.Trace()
	if err != nil {
		t.Fatal(err)
	}
	sized := shuffled(t, 300, 4, 1)
	for k := range 300 {
		sized.Sizes = append(sized.Sizes, 1+policy.Random(1, uint64(k))%50)
	}
	sized.Seconds = Lognormal(300, 0.6, 1)
	for what, trace := range map[string]*Trace{"shuffled": shuffled(t, 300, 4, 1), "weighted": weighted, "sized": sized} {
		for _, name := range allNames() {
			for _, room := range []uint64{0, 1, 2, 100, trace.Room(), 2 * trace.Room()} {
				epochs := run(t, trace, name, room, busy)
				if again := run(t, trace, name, room, busy); !reflect.DeepEqual(epochs, again) {
					t.Errorf("%s %s %d: %v and %v", what, name, room, epochs, again)
				}
				hits, reads := uint64(0), uint64(0)
				for _, e := range epochs {
					hits, reads = hits+e.Hits, reads+e.Reads
				}
				switch distinct := uint64(distinctOf(trace)); {
				case reads != uint64(len(trace.Accesses)), hits > reads-distinct, room == 0 && hits > 0,
					room >= trace.Room() && hits != reads-distinct:
					t.Errorf("%s %s %d: %d hits of %d reads of %d samples", what, name, room, hits, reads, distinct)
				}
			}
		}
	}
}

func distinctOf(t *Trace) int {
	samples := slices.Clone(t.Accesses)
	slices.Sort(samples)
	return len(slices.Compact(samples))
}

// No cache ever holds more than its room, when samples differ in size too.
func TestRoom(t *testing.T) {
	trace := shuffled(t, 500, 3, 1)
	for k := range 500 {
		trace.Sizes = append(trace.Sizes, 1+policy.Random(1, uint64(k))%500)
	}
	trace.Seconds = Lognormal(500, 1.2, 1)
	const room = 3000
	for _, name := range policy.Names() {
		kind, err := policy.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		o := busy
		c, plans := newPolicyCache(trace, &o, kind, room), newFuture(trace, trace.Planned)
		if kind.NeedsPlans() {
			c.next = plans.next
		}
		for _, sample := range trace.Accesses {
			plans.pass(sample)
			c.access(sample, 0)
			held := uint64(0)
			for slot, e := range c.entries {
				if e.taken {
					held += trace.Sizes[e.sample]
					if c.slotOf[e.sample] != int32(slot) {
						t.Fatalf("%s: slot %d holds sample %d, which is in %d", name, slot, e.sample, c.slotOf[e.sample])
					}
				}
			}
			if held != c.used || held > room {
				t.Fatalf("%s: %d bytes, %d counted", name, held, c.used)
			}
		}
	}
}

// First-come and first-indices hit exactly the cached fraction from the second epoch on.
func TestStraightLine(t *testing.T) {
	trace := shuffled(t, 1000, 3, 9)
	for _, name := range []string{"first-come", "first-indices"} {
		e := run(t, trace, name, 300, busy)
		if e[0].Hits != 0 || e[1].Hits != 300 || e[2].Hits != 300 || e[2].Replaced != 0 {
			t.Error(name, e)
		}
	}
}

// Several jobs: what one has loaded is a hit of the next.
func TestJobs(t *testing.T) {
	trace, err := Jobs{Order: order.Order{Samples: 1000, Kind: order.Shuffled, Seed: 4}, Epochs: 2, Jobs: 3}.Trace()
	if err != nil {
		t.Fatal(err)
	}
	if e := run(t, trace, "first-come", 1000, busy); e[0].Reads != 3000 || e[0].Hits != 2000 || e[1].Hits != 3000 {
		t.Error(e)
	}
	seen := map[uint32]int{}
	for _, sample := range trace.Accesses[:3000] {
		seen[sample]++
	}
	for sample, n := range seen {
		if n != 3 {
			t.Fatal(sample, n)
		}
	}
	for _, j := range []Jobs{{Epochs: 1, Jobs: 1}, {Order: order.Order{Samples: 5}, Jobs: 1},
		{Order: order.Order{Samples: 5}, Epochs: 1}, {Order: order.Order{Samples: 1 << 31}, Epochs: 1, Jobs: 1},
		{Order: order.Order{Samples: 1 << 33}, Epochs: 1, Jobs: 1}, {Order: order.Order{Samples: 5,
			Kind: order.Windows}, Epochs: 1, Jobs: 1},
		{Order: order.Order{Samples: 2}, Weights: []float64{-1, 1}, Epochs: 1, Jobs: 1}} {
		if _, err := j.Trace(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", j, err)
		}
	}
}

func TestUnknownPolicy(t *testing.T) {
	trace := shuffled(t, 10, 1, 1)
	_, err := trace.Run("mru", 5, busy, nil)
	if !errors.Is(err, policy.ErrUnknown) || !strings.Contains(err.Error(), "mru") {
		t.Error(err)
	}
	stop := errors.New("stop")
	if _, err := trace.Run("fifo", 5, busy, func(int) error { return stop }); err != stop {
		t.Error(err)
	}
}

// processorTime returns the time of all threads of this process so far, in seconds.
func processorTime(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkPolicies reports reads a second, and a second of processor time, which does not count what
// other programs do. Two in three reads of the shuffled trace are misses.
func BenchmarkPolicies(b *testing.B) {
	const samples = 100_000
	weighted, err := Jobs{Order: order.Order{Samples: samples, Seed: 1}, Weights: Zipf(samples, 1), Epochs: 4,
		Jobs: 1}.Trace()
	if err != nil {
		b.Fatal(err)
	}
	once := shuffled(b, samples, 4, 1)
	once.Seconds = Lognormal(samples, 0.6, 1)
	sized := *weighted
	for _, s := range Lognormal(samples, 1, 2) {
		sized.Sizes = append(sized.Sizes, uint64(s*1e7))
	}
	for what, trace := range map[string]*Trace{"shuffled": once, "zipf": weighted, "sizes": &sized} {
		room := trace.Room() / 3
		if trace == &sized {
			room = trace.Room() / 10
		}
		for _, name := range allNames() {
			b.Run(fmt.Sprintf("%s/%s", what, name), func(b *testing.B) {
				begin := processorTime(b)
				for b.Loop() {
					run(b, trace, name, room, busy)
				}
				reads := float64(b.N) * float64(len(trace.Accesses)) / 1e6
				b.ReportMetric(reads/(processorTime(b)-begin), "Mreads/cpu-s")
				b.ReportMetric(reads/b.Elapsed().Seconds(), "Mreads/s")
			})
		}
	}
}

// Samples that differ in size: cost keeps what costs most for a byte.
func TestCostPerByte(t *testing.T) {
	const samples = 5000
	trace := shuffled(t, samples, 6, 1)
	trace.Seconds = Lognormal(samples, 0.6, 1)
	for k := range uint64(samples) {
		trace.Sizes = append(trace.Sizes, uint64(1e5*math.Exp(0.6*Normal(policy.Random(7, k)))))
	}
	room := trace.Room() / 4
	last := func(name string) float64 { return run(t, trace, name, room, busy)[5].TimeSaved() }
	cost, first, ideal := last("cost"), last("first-come"), last("ideal")
	if cost < first+0.15 || cost < ideal-0.05 {
		t.Errorf("cost saves %.3f, first-come %.3f, the ideal set %.3f", cost, first, ideal)
	}
}
