package order

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
)

func owners(t testing.TB, samples uint64, nodes ...Node) *Owners {
	t.Helper()
	o := fatal.Value(NewOwners(nodes, samples))(t)
	return o
}

func alike(n int) (nodes []Node) {
	for i := range n {
		nodes = append(nodes, Node{Name: fmt.Sprint("node", i), Ranks: 1})
	}
	return nodes
}

// Ensure that the owners are those of the specification, which sorts all pairs of a bucket and a node.
func TestOwners(t *testing.T) {
	for _, nodes := range [][]Node{
		alike(1), alike(3), alike(8), {{Ranks: 3}, {Ranks: 1}}, {{"a", 1, 900}, {"b", 1, 450}}, {{"a", 1, 250}, {"b", 3, 250}, {"c", 1, 100}},
	} {
		o := owners(t, 1000, nodes...)
		type pair struct {
			score, key   uint64
			bucket, node int
		}
		var pairs []pair
		for k := range Buckets {
			for i, n := range o.nodes {
				key := nodeKey(n.Name)
				pairs = append(pairs, pair{mix(key ^ mix(uint64(k)+golden)), key, k, i})
			}
		}
		slices.SortFunc(pairs, func(a, b pair) int {
			return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.key, b.key))
		})
		want, have := slices.Repeat([]int32{-1}, Buckets), make([]int, len(nodes))
		for _, p := range pairs {
			if want[p.bucket] < 0 && have[p.node] < o.quota[p.node] {
				want[p.bucket] = int32(p.node)
				have[p.node]++
			}
		}
		if !slices.Equal(want, o.owner[:]) || !slices.Equal(have, o.quota) {
			t.Errorf("%v: other owners than the specification's; %v buckets, %v", nodes, have, o.quota)
		}
	}
}

// Ensure that each global batch has the samples of the plain order, and each node its exact number,
// for many jobs; also when other nodes go on in the middle of an epoch.
func TestDealer(t *testing.T) {
	jobs := [][]Node{alike(1), alike(2), alike(3), {{Ranks: 3}, {Ranks: 1}}, {{"b", 2, 9}, {"a", 1, 90}, {"c", 2, 30}}}
	weights := make([]float64, 96)
	for i := range weights {
		weights[i] = float64(i % 7)
	}
	table := fatal.Value(NewWeights(weights))(t)
	weighted := fatal.Value(WeightedOrder{Seed: 5, Weights: table}.Epoch(2))(t)
	epochs := []*Epoch{weighted}
	for _, o := range []Order{{Samples: 7*13 + 5, Kind: Shuffled, Seed: 3}, {Samples: 96, Kind: Sequential},
		{Samples: 1003, Kind: Blocks, Block: 10, Window: 4}} {
		e := fatal.Value(o.Epoch(1))(t)
		epochs = append(epochs, e)
	}
	for _, e := range epochs {
		for _, nodes := range jobs {
			o := owners(t, e.Samples, nodes...)
			for _, batch := range []uint64{1, 7, 64} {
				for _, ends := range []Ends{Pad, Drop} {
					for _, from := range []uint64{0, 42, e.positions} {
						deal(t, e, o, batch, from, ends)
					}
				}
			}
		}
	}
}

func deal(t *testing.T, e *Epoch, o *Owners, batch, from uint64, ends Ends) {
	d := fatal.Value(e.Dealer(o, batch, from, ends))(t)
	part, err := Shard{Ranks: d.ranks, From: from, Ends: ends}.Of(e)
	if err != nil || part.Samples() != d.Samples() {
		t.Fatalf("%d samples of a rank, want %d, %v", d.Samples(), part.Samples(), err)
	}
	for g := range d.Batches() {
		size := min(batch, d.Samples()-g*batch)
		var want, got []int
		for r := range d.ranks { // what the ranks read without nodes
			part, _ := Shard{Rank: r, Ranks: d.ranks, From: from, Ends: ends}.Of(e)
			one := make([]int, size)
			part.Fill(one, g*batch)
			want = append(want, one...)
		}
		for i, mine := range d.Deal(g) {
			if uint64(len(mine)) != size*o.nodes[i].Ranks {
				t.Fatalf("batch %d: node %d has %d samples, want %d", g, i, len(mine), size*o.nodes[i].Ranks)
			}
			got = append(got, mine...)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) {
			t.Fatalf("batch %d of %d from %d for %v: %v, want %v", g, batch, from, o.nodes, got, want)
		}
	}
}

func TestBadNodes(t *testing.T) {
	for want, nodes := range map[string][]Node{
		"0 nodes": nil, "has 0 ranks": {{Name: "a"}}, "same name": {{"a", 1, 0}, {"a", 1, 0}},
		"a name of 0 bytes": {{"a", 1, 0}, {"", 1, 0}}, "a name of 256 bytes": {{strings.Repeat("x", 256), 1, 0}},
	} {
		if _, err := NewOwners(nodes, 10); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	e := fatal.Value(Order{Samples: 10}.Epoch(0))(t)
	o := owners(t, 10, alike(2)...)
	for want, call := range map[string]func() (*Dealer, error){
		"give Pad or Drop":  func() (*Dealer, error) { return e.Dealer(o, 1, 0, Uneven) },
		"batches of 0":      func() (*Dealer, error) { return e.Dealer(o, 0, 0, Pad) },
		"position 11 of 10": func() (*Dealer, error) { return e.Dealer(o, 1, 11, Pad) },
	} {
		if _, err := call(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

// BenchmarkDeal takes the time of dealing global batches, for each index, beside the plain order of as many samples:
//
//	go test ./order -run '^$' -bench Deal -benchtime 20x -count 9
func BenchmarkDeal(b *testing.B) {
	for _, c := range []struct {
		nodes int
		batch uint64 // samples of a rank's batch
	}{{2, 256}, {8, 256}, {64, 64}, {64, 256}} {
		b.Run(fmt.Sprintf("%d nodes of 8 ranks, %d", c.nodes, c.batch), func(b *testing.B) {
			e := fatal.Value(Order{Samples: 1_281_167, Kind: Shuffled, Seed: 1}.Epoch(0))(b)
			nodes := alike(c.nodes)
			for k := range nodes {
				nodes[k].Ranks = 8
			}
			d := fatal.Value(e.Dealer(owners(b, e.Samples, nodes...), c.batch, 0, Drop))(b)
			plain := make([]int, d.ranks*c.batch)
			var dealing, ordering time.Duration
			for k := uint64(0); b.Loop(); k++ {
				start := time.Now()
				e.Fill(plain, k%d.Batches()*uint64(len(plain)), 1)
				ordered := time.Now()
				d.Deal(k % d.Batches())
				dealing, ordering = dealing+time.Since(ordered), ordering+ordered.Sub(start)
			}
			indices := float64(b.N) * float64(len(plain))
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(ordering.Nanoseconds())/indices, "ns/plain")
			b.ReportMetric(float64(dealing.Nanoseconds())/indices, "ns/dealt")
		})
	}
}
