package loader_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
)

// A job that ends after any batch continues with another number of ranks, workers and samples a
// batch: no sample is lost, and none comes twice.
func TestResumeAnywhere(t *testing.T) {
	const samples = 60
	d := newDataset(samples, 20)
	sequence := order.Order{Samples: samples, Kind: order.Blocks, Seed: 5, Block: 4, Window: 3}
	for before := range 15 { // batches
		for _, ranks := range [][2]uint64{{1, 2}, {2, 1}, {4, 3}, {3, 4}, {1, 1}} {
			var got []int
			var states []loader.State
			for rank := range ranks[0] {
				l := open(t, loader.FromSource(d),
					loader.Options{BatchSize: 4, Order: sequence, Rank: rank, Ranks: ranks[0], Workers: 1})
				fatal.If(t, l.SetEpoch(2))
				n := 0
				if before > 0 {
					for b, err := range l.Batches(t.Context()) {
						fatal.If(t, err)
						got = append(got, b.Indices()...)
						b.Release()
						if n++; n == before {
							break
						}
					}
				}
				s := l.State()
				if s.Epoch == 3 { // the epoch ended earlier
					s = loader.State{Order: s.Order, Epoch: 2, Position: samples}
				}
				states = append(states, s)
			}
			for _, s := range states {
				if s != states[0] {
					t.Fatalf("%v ranks, %d batches: the states differ: %v", ranks, before, states)
				}
			}
			text := fatal.Value(json.Marshal(states[0]))(t)
			var state loader.State
			fatal.If(t, json.Unmarshal(text, &state))
			for rank := range ranks[1] {
				l := open(t, loader.FromSource(d),
					loader.Options{BatchSize: 1 + rand.IntN(7), Order: sequence, Rank: rank, Ranks: ranks[1], Workers: 3})
				fatal.If(t, l.Resume(state))
				got = append(got, readEpoch(t, d, l)...)
				if s := l.State(); s.Epoch != 3 || s.Position != 0 {
					t.Fatal(s)
				}
			}
			slices.Sort(got)
			if len(got) != samples || len(slices.Compact(got)) != samples {
				t.Errorf("%v ranks, %d batches: %d samples, %v", ranks, before, len(got), got)
			}
		}
	}
}

// A state of another order, or an invalid one, is refused with the numbers.
func TestResumeRefuses(t *testing.T) {
	d := newDataset(50, 20)
	l := open(t, loader.FromSource(d), loader.Options{BatchSize: 4, Order: shuffled(50)})
	s := l.State()
	other := s
	other.Order.Seed++
	if err := l.Resume(other); !errors.Is(err, loader.ErrInvalid) || !strings.Contains(err.Error(), "Seed:8") ||
		!strings.Contains(err.Error(), "Seed:7") {
		t.Error(err)
	}
	s.Position = 51
	expect.Error(t, l.Resume(s), loader.ErrInvalid, "51")
	if now := l.State(); now.Position != 0 {
		t.Error(now)
	}
	s.Position = 50 // an epoch that has ended: nothing comes, and the next one follows
	if err := l.Resume(s); err != nil || l.Len() != 0 {
		t.Fatal(err, l.Len())
	}
	if rest := readEpoch(t, d, l); len(rest) != 0 || l.State().Epoch != 1 {
		t.Error(rest, l.State())
	}
}

// All complaints about the options come at once.
func TestBadOptions(t *testing.T) {
	d := newDataset(50, 20)
	_, err := loader.New(loader.FromSource(d),
		loader.Options{BatchSize: 0, Workers: -1, Threads: -2, Ahead: -3, AheadBytes: -4, Order: order.Order{Samples: 51}})
	for _, part := range []string{"batches of 0 samples", "Workers: -1", "Threads: -2", "Ahead: -3", "AheadBytes: -4",
		"it has 51 samples, but the dataset has 50"} {
		if !errors.Is(err, loader.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: no %q", err, part)
		}
	}
	_, err = loader.New(loader.FromSource(d), loader.Options{BatchSize: 4, Rank: 2, Ranks: 2})
	expect.Error(t, err, loader.ErrInvalid, "rank 2")
	if _, err = loader.New(loader.Samples{}, loader.Options{BatchSize: 4}); !errors.Is(err, loader.ErrInvalid) || !strings.Contains(err.Error(), "FromSource") {
		t.Error(err)
	}
	for _, other := range []*dataset{newDataset(49, 20), newDataset(50, 21), newDataset(50, 0)} {
		expect.Fails(loader.FromCacheAndSource(newCache(t, other, 10), d))(t, loader.ErrInvalid)
	}
}

// DropLast leaves out an incomplete batch, and Len counts the others.
func TestDropLast(t *testing.T) {
	d := newDataset(50, 20)
	l := open(t, loader.FromSource(d), loader.Options{BatchSize: 8, DropLast: true})
	expect.Equal(t, l.Len(), 6, "")
	if got := readEpoch(t, d, l); len(got) != 48 || l.State().Epoch != 1 {
		t.Error(got, l.State())
	}
}

// A WeightedOrder works too: the same draws in the same batches, resumed after any of them.
func TestWeightedOrder(t *testing.T) {
	const samples = 60
	d := newDataset(samples, 20)
	c := newCache(t, d, samples/2)
	weights := make([]float64, samples)
	for k := range weights {
		weights[k] = float64(k % 4)
	}
	table := fatal.Value(order.NewWeights(weights))(t)
	sequence := order.WeightedOrder{Weights: table, Seed: 5, Draws: 90}

	want := wanted(t, sequence, 1, order.Shard{})
	for before := 1; before < 10; before += 3 {
		o := loader.Options{BatchSize: 9, Order: sequence}
		l := open(t, cached(t, c, d), o)
		fatal.If(t, l.SetEpoch(1))
		var got []int
		for b, err := range l.Batches(t.Context()) {
			fatal.If(t, err)
			wantBatch(t, d, b, want[len(got):len(got)+b.Len()])
			got = append(got, b.Indices()...)
			b.Release()
			if len(got) == before*9 {
				break
			}
		}
		o.BatchSize = 5
		rest := open(t, cached(t, c, d), o)
		fatal.If(t, rest.Resume(l.State()))
		if got = append(got, readEpoch(t, d, rest)...); !slices.Equal(got, want) {
			t.Errorf("%d batches: %v, want %v", before, got, want)
		}
	}
	if _, err := loader.New(loader.FromSource(newDataset(61, 20)),
		loader.Options{BatchSize: 4, Order: order.WeightedOrder{Weights: table}}); !errors.Is(err, loader.ErrInvalid) {
		t.Error(err)
	}
}
