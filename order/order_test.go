package order_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
)

func epoch(t testing.TB, o order.Order, number uint64) *order.Epoch {
	t.Helper()
	e := fatal.Value(o.Epoch(number))(t)
	return e
}

// orders are of all kinds and sizes, with short last blocks and windows.
func orders() (all []order.Order) {
	for _, n := range []uint64{1, 2, 7, 64, 257, 1000, 4099} {
		all = append(all, order.Order{Samples: n, Kind: order.Sequential},
			order.Order{Samples: n, Kind: order.Shuffled, Seed: 5})
		for _, window := range []uint64{1, 3, 16, 300, 5000} {
			all = append(all, order.Order{Samples: n, Kind: order.Windows, Seed: 5, Window: window})
			for _, block := range []uint64{1, 2, 10, 33, 999, 5000} {
				all = append(all, order.Order{Samples: n, Kind: order.Blocks, Seed: 5, Window: window, Block: block})
			}
		}
	}
	return all
}

// Ensure that an epoch has each sample once, that Position is the inverse of At, and that Fill
// equals At.
func TestEpochHasEverySampleOnce(t *testing.T) {
	for _, o := range orders() {
		e := epoch(t, o, 3)
		seen := make([]bool, o.Samples)
		all := make([]int, o.Samples)
		fatal.Equal(t, e.Fill(all, 0, 1), int(o.Samples), "%+v: samples of the epoch", o)
		for k := range o.Samples {
			i := e.At(k)
			if i >= o.Samples || seen[i] || e.Position(i) != k || all[k] != int(i) {
				t.Fatalf("%+v: position %d has index %d, seen %v, whose position is %d; Fill says %d", o, k, i, i < o.Samples &&
					seen[i], e.Position(i), all[k])
			}
			seen[i] = true
		}
		third := make([]int, o.Samples)
		n := e.Fill(third, 1, 3)
		for k, i := range third[:n] {
			fatal.Equal(t, i, all[1+3*k], "%+v: every third one, at %d", o, k)
		}
		if want := int(o.Samples+1) / 3; n != want {
			t.Fatalf("%+v: every third one: %d, want %d", o, n, want)
		}
	}
}

// Ensure that samples stand only where their kind allows.
func TestKindsKeepTheirPlaces(t *testing.T) {
	windows := epoch(t, order.Order{Samples: 1003, Kind: order.Windows, Seed: 1, Window: 50}, 0)
	for k := range uint64(1003) {
		if windows.At(k)/50 != k/50 {
			t.Fatalf("position %d has index %d, of another window", k, windows.At(k))
		}
	}
	const n, block, window = 1003, 10, 4
	blocks := epoch(t, order.Order{Samples: n, Kind: order.Blocks, Seed: 1, Window: window, Block: block}, 0)
	var order []uint64 // blocks in the order of their first samples
	since := map[uint64]int{}
	for k := range uint64(n) {
		b := blocks.At(k) / block
		if _, ok := since[b]; !ok {
			since[b] = int(k)
			order = append(order, b)
		}
		if age := int(k) - since[b]; age >= window*block {
			t.Fatalf("at position %d a sample of block %d comes %d samples after its first", k, b, age)
		}
	}
	if slices.IsSorted(order) || len(order) != 101 {
		t.Errorf("%d blocks come as %v", len(order), order)
	}
	open := 0
	for k := 0; k+window <= len(order); k += window { // all of a window come before those of the next
		for _, b := range order[k : k+window] {
			if since[b] < open {
				t.Errorf("block %d of window %d comes at %d", b, k/window, since[b])
			}
		}
		open = since[order[k]]
	}
}

// Ensure that seeds, epochs, and windows of one epoch are independent.
func TestOrdersDiffer(t *testing.T) {
	const n = 1000
	first := func(o order.Order, number uint64) []int {
		all := make([]int, n)
		epoch(t, o, number).Fill(all, 0, 1)
		return all
	}
	o := order.Order{Samples: n, Kind: order.Shuffled, Seed: 1}
	other := o
	other.Seed = 2
	for name, pair := range map[string][2][]int{
		"epochs": {first(o, 0), first(o, 1)}, "seeds": {first(o, 0), first(other, 0)}, "seed and epoch": {first(o, 2),
			first(other, 1)},
	} {
		same := 0
		for k := range n {
			if pair[0][k] == pair[1][k] {
				same++
			}
		}
		if same > 10 { // 1 is expected
			t.Errorf("%s: %d samples of %d stand in the same place", name, same, n)
		}
	}
	windows := first(order.Order{Samples: n, Kind: order.Windows, Seed: 1, Window: 100}, 0)
	for k := range 100 {
		if windows[k]+100 != windows[100+k] {
			return
		}
	}
	t.Error("two windows are shuffled alike")
}

func TestOrdersThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		o    order.Order
		want string
	}{
		{order.Order{}, "0 samples are not in 1..1099511627776"},
		{order.Order{Samples: order.MaxSamples + 1}, "1099511627777 samples"},
		{order.Order{Samples: 1, Kind: 4}, "unknown kind 4"},
		{order.Order{Samples: 1, Kind: order.Windows}, "a window of 0 in an order that is windows"},
		{order.Order{Samples: 1, Kind: order.Shuffled, Window: 2}, "a window of 2 in an order that is shuffled"},
		{order.Order{Samples: 1, Kind: order.Blocks, Window: 2}, "blocks of 0 samples"},
		{order.Order{Samples: 1, Kind: order.Windows, Window: 2, Block: 3},
			"blocks of 3 samples in an order that is windows"},
	} {
		if _, err := c.o.Epoch(0); !errors.Is(err, order.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	for name, call := range map[string]func(){
		"At":       func() { epoch(t, order.Order{Samples: 3}, 0).At(3) },
		"Position": func() { epoch(t, order.Order{Samples: 3}, 0).Position(3) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s takes what cannot be", name)
				}
			}()
			call()
		}()
	}
}

// Ensure that orders of any size work.
func TestHugeOrders(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, o := range []order.Order{
		{Samples: order.MaxSamples, Kind: order.Shuffled}, {Samples: order.MaxSamples - 1, Kind: order.Windows,
			Window: 1 << 39}, {Samples: 1e9, Kind: order.Blocks, Block: 4096, Window: 16},
		{Samples: order.MaxSamples, Kind: order.Blocks, Block: order.MaxSamples,
			Window: order.MaxSamples}, {Samples: 1e12 + 39, Kind: order.Blocks, Block: 3, Window: 1 << 50},
	} {
		e := epoch(t, o, 1<<63)
		for range 2000 {
			k := random.Uint64N(o.Samples)
			if i := e.At(k); i >= o.Samples || e.Position(i) != k {
				t.Fatalf("%+v: position %d has index %d, whose position is %d", o, k, i, e.Position(i))
			}
		}
	}
}

func ExampleOrder() {
	o := order.Order{Samples: 10, Kind: order.Shuffled, Seed: 1}
	for number := range uint64(2) {
		e, err := o.Epoch(number)
		if err != nil {
			fmt.Println(err)
			return
		}
		indices := make([]int, 10)
		e.Fill(indices, 0, 1)
		fmt.Println(indices)
	}
	// Output:
	// [1 9 4 5 8 3 7 6 0 2]
	// [8 1 0 5 7 9 3 6 4 2]
}

var update = flag.Bool("update", false, "write testdata/order.txt again: only when docs/spec/order.md changes")

// vectors are the orders of testdata/order.txt, which the tests of C and Python read too.
func vectors() (all []order.Order) {
	for _, seed := range []uint64{0, 1, math.MaxUint64} {
		for _, n := range []uint64{1, 2, 10, 256, 257, 1000, 1281167, 1<<30 + 1, 1e9, order.MaxSamples} {
			all = append(all, order.Order{Samples: n, Kind: order.Sequential, Seed: seed},
				order.Order{Samples: n, Kind: order.Shuffled, Seed: seed},
				order.Order{Samples: n, Kind: order.Windows, Seed: seed, Window: 1000}, order.Order{Samples: n,
					Kind: order.Windows, Seed: seed, Window: 7},
				order.Order{Samples: n, Kind: order.Blocks, Seed: seed, Window: 16, Block: 27}, order.Order{Samples: n,
					Kind: order.Blocks, Seed: seed, Window: 3, Block: 4096})
		}
	}
	return all
}

// Ensure that orders do not change: docs/spec/order.md.
func TestVectors(t *testing.T) {
	var b strings.Builder
	fmt.Fprint(&b, `# Every implementation of docs/spec/order.md is tested with this file. Lines are of five kinds; indices at some positions stand at their ends.
# kind samples seed window block epoch: position=index ...
# shard kind samples seed window block epoch rank ranks from ends: samples real digest k=index ...
# weighted samples seed draws pattern epoch: positions digest position=index ...
# mixed seed stop length epoch datasets, and for each: kind samples seed window block ratio: positions digest position=index ...
# deal kind samples seed window block epoch batch from ends nodes, and for each: name (-: none) ranks capacity: samples batches digest-of-the-deal, and for each node: quota kept, digest k=index ...
# kept: the sum of all buckets + 1 that the cache of a node keeps. k: of the samples of all batches, one batch after the other.
# digest: the sum of (k+1) * (index+1), modulo 2^64, over the first 20,000.
# pattern: the weight of sample i. 0: 1; 1: (i+1) mod 7; 2: 2^-(i mod 70); 3: (mix(i) >> 11) / 2^53; 4: the least number above 0, times (i+1) mod 3; 5: 1.7e308 for the first, 1 for all others.
`)
	for k, o := range vectors() {
		number := []uint64{0, 1, math.MaxUint64}[k%3]
		e := epoch(t, o, number)
		fmt.Fprintf(&b, "%s %d:", settings(o), number)
		for _, position := range []uint64{0, 1, 2, o.Samples / 3, o.Samples / 2, o.Samples - 1} {
			if position < o.Samples {
				fmt.Fprintf(&b, " %d=%d", position, e.At(position))
			}
		}
		fmt.Fprintln(&b)
	}
	shardVectors(t, &b)
	weightedVectors(t, &b)
	want := fatal.Value(os.ReadFile("testdata/order.txt"))(t)
	for line := range strings.Lines(string(want)) {
		if strings.HasPrefix(line, "mixed ") { // Go has no mixes: these lines are for C and Python
			b.WriteString(line)
		}
	}
	dealVectors(t, &b)
	if *update {
		fatal.If(t, os.WriteFile("testdata/order.txt", []byte(b.String()), 0o644))
	} else if string(want) != b.String() {
		t.Error("orders are not those of testdata/order.txt: checkpoints of users would go on with other samples")
	}
}

func settings(o order.Order) string {
	return fmt.Sprintf("%d %d %d %d %d", o.Kind, o.Samples, o.Seed, o.Window, o.Block)
}

// indices writes the number of indices, their digest and some of them.
func indices(b *strings.Builder, n uint64, fill func(dst []int, first uint64) int) {
	all := make([]int, min(n, 20000))
	all = all[:fill(all, 0)]
	digest := uint64(0)
	for k, i := range all {
		digest += uint64(k+1) * uint64(i+1)
	}
	fmt.Fprintf(b, " %d", digest)
	for _, k := range []uint64{0, 1, 2, n / 3, n / 2, n - 1} {
		one := make([]int, 1)
		if k < n && fill(one, k) == 1 {
			fmt.Fprintf(b, " %d=%d", k, one[0])
		}
	}
	fmt.Fprintln(b)
}

func shardVectors(t *testing.T, b *strings.Builder) {
	for k, o := range []order.Order{
		{Samples: 1, Kind: order.Shuffled}, {Samples: 10, Kind: order.Shuffled, Seed: 3},
		{Samples: 1281167, Kind: order.Shuffled, Seed: 1}, {Samples: 1003, Kind: order.Sequential},
		{Samples: 1003, Kind: order.Windows, Seed: 4, Window: 100}, {Samples: 1003, Kind: order.Blocks, Seed: 5,
			Window: 4, Block: 33}, {Samples: order.MaxSamples, Kind: order.Shuffled},
	} {
		e := epoch(t, o, uint64(k))
		for _, s := range []order.Shard{
			{Rank: 0, Ranks: 1}, {Rank: 0, Ranks: 2, From: 1}, {Rank: 1, Ranks: 2, From: 1}, {Rank: 2, Ranks: 3,
				From: o.Samples / 2}, {Rank: 7, Ranks: 8}, {Rank: 63, Ranks: 64, From: o.Samples - 1},
			{Rank: 1, Ranks: 7, From: o.Samples},
		} {
			for _, s.Ends = range []order.Ends{order.Uneven, order.Pad, order.Drop} {
				p := part(t, s, e)
				fmt.Fprintf(b, "shard %s %d %d %d %d %d: %d %d", settings(o), k, s.Rank, s.Ranks, s.From, s.Ends, p.Samples(),
					p.Real())
				indices(b, p.Samples(), p.Fill)
			}
		}
	}
}

// pattern returns the weight of a sample in a line of testdata/order.txt.
func pattern(number int, i uint64) float64 {
	switch number {
	case 0:
		return 1
	case 1:
		return float64((i + 1) % 7)
	case 2:
		return math.Ldexp(1, -int(i%70))
	case 3:
		i = (i ^ i>>30) * 0xBF58476D1CE4E5B9
		i = (i ^ i>>27) * 0x94D049BB133111EB
		return math.Ldexp(float64((i^i>>31)>>11), -53)
	case 4:
		return math.SmallestNonzeroFloat64 * float64((i+1)%3)
	}
	if i == 0 {
		return 1.7e308
	}
	return 1
}

func patterned(t testing.TB, number int, n uint64) *order.Weights {
	t.Helper()
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = pattern(number, uint64(i))
	}
	w := fatal.Value(order.NewWeights(weights))(t)
	return w
}

func weightedVectors(t *testing.T, b *strings.Builder) {
	for number := range 6 {
		for k, n := range []uint64{1, 2, 3, 10, 257, 1000, 100003} {
			if number == 3 && n == 1 { // mix(0) is 0, and then all weights would be 0
				continue
			}
			seed, draws, epoch := []uint64{0, 1, math.MaxUint64}[k%3], []uint64{0, 30000,
				order.MaxSamples}[(k+number)%3], []uint64{0, 9, math.MaxUint64}[number%3]
			e := fatal.Value(order.WeightedOrder{Weights: patterned(t, number, n), Seed: seed, Draws: draws}.Epoch(epoch))(t)
			fmt.Fprintf(b, "weighted %d %d %d %d %d: %d", n, seed, draws, number, epoch, e.Positions())
			indices(b, e.Positions(), func(dst []int, first uint64) int { return e.Fill(dst, first, 1) })
		}
	}
}

func dealVectors(t *testing.T, b *strings.Builder) {
	var many []order.Node
	for i := range uint64(9) {
		many = append(many, order.Node{Name: fmt.Sprint("node-", i), Ranks: 1 + i%3, Capacity: 100 + 7*i})
	}
	for k, nodes := range [][]order.Node{
		{{Ranks: 1}}, {{Ranks: 3}, {Ranks: 1}}, {{Name: "b", Ranks: 2, Capacity: 1000}, {Name: "a", Ranks: 2, Capacity: 500}},
		{{Name: "\u00fc", Ranks: 1, Capacity: 1}, {Name: "x", Ranks: 5, Capacity: order.MaxSamples}, {Name: "y", Ranks: 1, Capacity: 300}}, many,
	} {
		for j, o := range []order.Order{
			{Samples: 1, Kind: order.Sequential}, {Samples: 7*13 + 5, Kind: order.Shuffled, Seed: 3},
			{Samples: 1003, Kind: order.Blocks, Seed: 5, Window: 4, Block: 33}, {Samples: order.MaxSamples, Kind: order.Shuffled},
		} {
			number := []uint64{0, 7, math.MaxUint64}[(j+k)%3]
			e := epoch(t, o, number)
			owners := fatal.Value(order.NewOwners(nodes, o.Samples))(t)
			batch, from, ends := []uint64{1, 7, 64}[(j+k)%3], []uint64{0, o.Samples / 3}[j%2], []order.Ends{order.Pad, order.Drop}[(j+k)%2]
			d := fatal.Value(e.Dealer(owners, batch, from, ends))(t)
			ranks := uint64(0)
			fmt.Fprintf(b, "deal %s %d %d %d %d %d", settings(o), number, batch, from, ends, len(nodes))
			for _, n := range nodes {
				fmt.Fprintf(b, " %s %d %d", cmp.Or(n.Name, "-"), n.Ranks, n.Capacity)
				ranks += n.Ranks
			}
			fmt.Fprintf(b, ": %d %d %d", d.Samples(), d.Batches(), d.Digest())
			for i, n := range nodes {
				kept, sum := owners.Keep(i, n.Capacity), 0
				for bucket := range order.Buckets {
					sum += int(kept[bucket/8]>>(bucket%8)&1) * (bucket + 1)
				}
				fmt.Fprintf(b, " %d %d", owners.Quota(i), sum)
			}
			indices(b, d.Samples()*ranks, func(dst []int, first uint64) int { return fillDeal(d, nodes, batch*ranks, dst, first) })
		}
	}
}

// fillDeal fills dst with the samples of all batches, rank after rank in each.
func fillDeal(d *order.Dealer, nodes []order.Node, global uint64, dst []int, first uint64) int {
	filled := 0
	for g := first / global; g < d.Batches() && filled < len(dst); g++ {
		var batch []int
		for i, mine := range d.Deal(g) {
			for rank := range nodes[i].Ranks {
				for k := rank; k < uint64(len(mine)); k += nodes[i].Ranks {
					batch = append(batch, mine[k])
				}
			}
		}
		if g == first/global {
			batch = batch[first%global:]
		}
		filled += copy(dst[filled:], batch)
	}
	return filled
}
