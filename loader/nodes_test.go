package loader_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
)

// step reads one batch of each rank: the indices of all, and how many of them no Pad repeats.
func readSteps(t *testing.T, d *dataset, loaders []*loader.Loader, most int) (steps [][]int, real int) {
	t.Helper()
	for rank, l := range loaders {
		n := 0
		for b, err := range l.Batches(t.Context()) {
			fatal.If(t, err)
			wantBatch(t, d, b, slices.Clone(b.Indices()))
			if rank == 0 {
				steps = append(steps, nil)
			} else if len(steps[n]) != rank*b.Len() {
				t.Fatalf("step %d: rank %d has %d samples, the %d before it %d", n, rank, b.Len(), rank, len(steps[n]))
			}
			steps[n] = append(steps[n], b.Indices()...)
			real += b.Real()
			b.Release()
			if n++; n == most {
				break
			}
		}
	}
	return steps, real
}

// Ensure that nodes read the global batches of the plain order, each rank as many samples as the others,
// and that another number of nodes goes on in the middle of an epoch.
func TestNodes(t *testing.T) {
	const samples, size = 7*13 + 5, 7
	d := newDataset(samples, 20)
	ranked := func(nodes []order.Node, ranks uint64, ends order.Ends) (all []*loader.Loader) {
		for rank := range ranks {
			all = append(all, open(t, loader.FromSource(d), loader.Options{BatchSize: size, Order: shuffled(samples), Rank: rank,
				Ranks: ranks, Ends: ends, Nodes: nodes, Workers: 1}))
		}
		return all
	}
	three := []order.Node{{Name: "a", Ranks: 1}, {Name: "b", Ranks: 1}, {Name: "c", Ranks: 1}}
	for _, nodes := range [][]order.Node{three, {{Ranks: 3}, {Ranks: 1}}, {{Name: "x", Ranks: 1, Capacity: 40}, {Name: "y", Ranks: 2, Capacity: 9}}} {
		for _, ends := range []order.Ends{order.Pad, order.Drop} {
			ranks := uint64(0)
			for _, n := range nodes {
				ranks += n.Ranks
			}
			dealt, plain := ranked(nodes, ranks, ends), ranked(nil, ranks, ends)
			for range 2 {
				got, real := readSteps(t, d, dealt, -1)
				want, wantReal := readSteps(t, d, plain, -1)
				if len(got) != len(want) || len(got) == 0 || real != wantReal {
					t.Fatalf("%v: %d batches with %d samples, want %d with %d", nodes, len(got), real, len(want), wantReal)
				}
				for k := range got {
					slices.Sort(got[k])
					slices.Sort(want[k])
					expect.Slice(t, got[k], want[k], "%v, %v", nodes, k)
				}
			}
		}
	}

	for before := range 4 {
		from, to := ranked(three, 3, order.Pad), ranked([]order.Node{{Name: "a", Ranks: 2}, {Name: "c", Ranks: 2}}, 4, order.Pad)
		var seen []int
		if before > 0 {
			steps, _ := readSteps(t, d, from, before)
			seen = slices.Concat(steps...)
		}
		for _, l := range to {
			fatal.If(t, l.Resume(from[0].State()))
		}
		rest, _ := readSteps(t, d, to, -1)
		seen = append(seen, slices.Concat(rest...)...)
		padded := len(seen) - samples
		slices.Sort(seen)
		if seen = slices.Compact(seen); len(seen) != samples || padded > 3 {
			t.Errorf("after %d batches: %d samples, %d of them repeated", before, len(seen), padded)
		}
	}
}

// Ensure that the caches of nodes that together hold the dataset give nearly all samples, and that each
// keeps what its node owns.
func TestNodesKeepWhatTheyOwn(t *testing.T) {
	const samples, size, each = 1200, 100, 420
	d := newDataset(samples, 20)
	hits := func(nodes []order.Node) (rate float64) {
		var all []*loader.Loader
		var caches []*client.Cache
		for rank := range uint64(3) {
			c := newCache(t, d, each)
			caches = append(caches, c)
			all = append(all, open(t, cached(t, c, d), loader.Options{BatchSize: size, Order: shuffled(samples), Rank: rank, Ranks: 3,
				Ends: order.Drop, Nodes: nodes, Workers: 1}))
		}
		for range 3 {
			readSteps(t, d, all, -1)
		}
		before := make([]client.Stats, 3)
		for k, c := range caches {
			before[k], _ = c.Stats()
		}
		readSteps(t, d, all, -1)
		for k, c := range caches {
			after := fatal.Value(c.Stats())(t)
			rate += float64(after.Hits-before[k].Hits) / samples
		}
		if nodes == nil {
			return rate
		}
		owners := fatal.Value(order.NewOwners(nodes, samples))(t)
		for k, c := range caches {
			kept := owners.Keep(k, each)
			for i := range c.Ready() {
				if !kept.Has(uint64(i)) {
					t.Fatalf("node %d has stored sample %d, which is not among what it keeps", k, i)
				}
			}
		}
		return rate
	}
	var nodes []order.Node
	for k := range 3 {
		nodes = append(nodes, order.Node{Name: fmt.Sprint("n", k), Ranks: 1, Capacity: each})
	}
	with, without := hits(nodes), hits(nil)
	t.Logf("hits: %.3f with nodes, %.3f without", with, without)
	if with < 0.9 || without > 0.5 {
		t.Errorf("hits: %.3f with nodes, %.3f without", with, without)
	}
}

func TestBadNodes(t *testing.T) {
	d := newDataset(50, 20)
	two := []order.Node{{Ranks: 1}, {Ranks: 1}}
	for want, o := range map[string]loader.Options{
		"give Pad or Drop":                      {BatchSize: 4, Nodes: two},
		"Ranks: 3, and the nodes have 2":        {BatchSize: 4, Nodes: two, Ranks: 3, Ends: order.Pad},
		"rank 2 is not in 0..1":                 {BatchSize: 4, Nodes: two, Rank: 2, Ends: order.Pad},
		"0 nodes":                               {BatchSize: 4, Nodes: []order.Node{}, Ends: order.Pad},
		"node 1 has 0 ranks":                    {BatchSize: 4, Nodes: []order.Node{{Ranks: 1}, {}}, Ends: order.Pad},
		"batches of 0 samples; give at least 1": {Nodes: two, Ends: order.Pad},
	} {
		if _, err := loader.New(loader.FromSource(d), o); !errors.Is(err, loader.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: no %q", err, want)
		}
	}
}

// Ensure that a server stores what its node keeps, and sends the rest: in Go here, by the same dealing in C and Python.
func TestNodesWithServers(t *testing.T) {
	const samples, size = 600, 50
	d := newDataset(samples, 20000)
	var nodes []order.Node
	var all []*loader.Loader
	var caches []*client.Served
	for k := range 2 {
		o, _, _ := serve(t, d, samples/2, client.PolicyFirstCome)
		c := dial(t, o)
		caches = append(caches, c)
		nodes = append(nodes, order.Node{Name: fmt.Sprint("n", k), Ranks: 1, Capacity: uint64(c.Info().Slots)})
	}
	for k, c := range caches {
		l, err := loader.New(loader.FromServer(c), loader.Options{BatchSize: size, Order: shuffled(samples), Rank: uint64(k), Ends: order.Drop,
			Nodes: nodes})
		fatal.If(t, err)
		all = append(all, l)
	}
	for range 3 {
		readSteps(t, d, all, -1)
	}
	owners := fatal.Value(order.NewOwners(nodes, samples))(t)
	for k, c := range caches {
		kept, there := owners.Keep(k, nodes[k].Capacity), 0
		for i := range c.Ready() {
			if there++; !kept.Has(uint64(i)) {
				t.Fatalf("server %d has stored sample %d, which is not among what its node keeps", k, i)
			}
		}
		if there < samples/2*9/10 {
			t.Errorf("server %d has stored %d samples", k, there)
		}
		fatal.Value(c.Prefetch(t.Context(), rangeOf(samples)))(t)
	}
}

// Ensure that in the first epoch the server of a node also reads what the node owns and others read.
func TestFirstEpochBringsWhatANodeOwns(t *testing.T) {
	const samples, size = 420, 20
	d := newDataset(samples, 20000)
	nodes := []order.Node{{Name: "a", Ranks: 2}, {Name: "b", Ranks: 1}}
	owners := fatal.Value(order.NewOwners(nodes, samples))(t)
	o, _, _ := serve(t, d, samples, client.PolicyFirstCome)
	c := dial(t, o)
	for rank := range uint64(2) { // those of node b do not run
		l, err := loader.New(loader.FromServer(c), loader.Options{BatchSize: size, Order: shuffled(samples), Rank: rank,
			Ends: order.Drop, Nodes: nodes})
		fatal.If(t, err)
		read := 0
		for b, err := range l.Batches(t.Context()) {
			fatal.If(t, err)
			read += b.Len()
			b.Release()
		}
		if read > samples/3+size {
			t.Fatalf("rank %d read %d samples", rank, read)
		}
	}
	owned := func() (there, all int) {
		ready := map[int]bool{}
		for i := range c.Ready() {
			ready[i] = true
		}
		for i := range samples {
			if owners.Owner(uint64(i)) == 0 {
				if all++; ready[i] {
					there++
				}
			}
		}
		return there, all
	}
	fatal.Until(t, "all samples that node a owns", func() bool { there, all := owned(); return there == all })
	if there, _ := owned(); there < samples/2 {
		t.Errorf("node a owns %d samples", there)
	}
}

// Ensure that the first epoch does not end before the server was asked for all that the node owns.
func TestFirstEpochAsksForAll(t *testing.T) {
	const samples, size = 240, 20
	d := newDataset(samples, 20000)
	o, _, _ := serve(t, d, samples, client.PolicyFirstCome)
	nodes := []order.Node{{Name: "a", Ranks: 1, Capacity: 200}, {Name: "b", Ranks: 1, Capacity: 40}}
	owners := fatal.Value(order.NewOwners(nodes, samples))(t)
	l := open(t, loader.FromServer(dial(t, o)), loader.Options{BatchSize: size, Order: shuffled(samples), Ends: order.Drop,
		Nodes: nodes, Ahead: samples / size})
	last := make(chan struct{})
	var asked atomic.Int32
	l.AroundPrefetch(func(ctx context.Context, indices []int, prefetch func()) {
		<-last // the last batch has been delivered
		time.Sleep(time.Millisecond)
		if prefetch(); ctx.Err() == nil {
			asked.Add(int32(len(indices)))
		}
	})
	want := samples
	for i := range samples {
		if owners.Owner(uint64(i)) != 0 {
			want--
		}
	}
	left := l.Len()
	for b, err := range l.Batches(t.Context()) {
		fatal.If(t, err)
		for _, i := range b.Indices() {
			if owners.Owner(uint64(i)) == 0 {
				want--
			}
		}
		b.Release()
		if left--; left == 0 {
			close(last)
		}
	}
	if got := int(asked.Load()); got != want || want < samples/4 {
		t.Errorf("the server was asked for %d samples, want the %d that node a owns and b reads", got, want)
	}
}

func rangeOf(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}
