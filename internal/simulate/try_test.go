package simulate

import (
	"fmt"
	"testing"
	"time"
)

func show(t *testing.T, tr *Trace, o Options, room uint64, names ...string) {
	for _, n := range names {
		b := time.Now()
		es, err := Run(tr, o, n, room, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := fmt.Sprintf("%-12s", n)
		for _, k := range []int{1, 2, 3, len(es) - 1} {
			if k < len(es) {
				e := es[k]
				s += fmt.Sprintf(" %.3f/%.3f/%.2f%%", e.Saved/e.Seconds, float64(e.Hits)/float64(e.Reads), 100*float64(e.Replaced)/float64(room))
			}
		}
		fmt.Printf("%s  %.1f M/s\n", s, float64(len(tr.Accesses))/1e6/time.Since(b).Seconds())
	}
}

func TestTryCost(t *testing.T) {
	n := 20000
	for _, hints := range []bool{false, true} {
		for _, stalls := range []bool{false, true} {
			for _, c := range []struct{ sigma, c float64 }{{.6, .25}, {.6, .5}, {1.2, .25}, {0, .5}, {0, .1}, {0, .9}} {
				tr, err := Jobs(n, 8, 1, 1, nil)
				if err != nil {
					t.Fatal(err)
				}
				if c.sigma > 0 {
					tr.Seconds = Lognormal(n, c.sigma, 1)
				}
				fmt.Println(c, "hints", hints, "stalls", stalls)
				show(t, tr, Options{Seed: 1, Noise: .3, Stalls: stalls, Hints: hints}, uint64(c.c*float64(n)), "cost", "ideal")
			}
		}
	}
}

func TestTryZipf(t *testing.T) {
	n := 100000
	tr, err := Jobs(n, 20, 1, 1, Zipf(n, 1))
	if err != nil {
		t.Fatal(err)
	}
	show(t, tr, Options{Seed: 1}, uint64(n/10), "first-come", "random", "fifo", "clock", "lru", "lfu", "exact-lru", "2q", "arc", "exact-lfu", "sieve", "s3-fifo", "belady", "ideal")
}
