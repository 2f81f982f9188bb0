package order

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// ratiosToTry returns few and many ratios, equal and very different ones.
func ratiosToTry() [][]uint64 {
	random := rand.New(rand.NewPCG(5, 5))
	all := [][]uint64{{1}, {1, 1}, {1, 2}, {7, 3}, {1, 1000}, {1, 1<<31 - 2}, {1, 1, 1}, {7, 2, 1},
		{1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89}, slices.Repeat([]uint64{1}, 64), slices.Repeat([]uint64{5}, 1000),
		append(slices.Repeat([]uint64{1}, 50), 50)}
	fibonacci := []uint64{1, 1} // the deepest tree
	for sum := uint64(2); sum+fibonacci[len(fibonacci)-1]+fibonacci[len(fibonacci)-2] < maxRatioSum; {
		next := fibonacci[len(fibonacci)-1] + fibonacci[len(fibonacci)-2]
		fibonacci, sum = append(fibonacci, next), sum+next
	}
	all = append(all, fibonacci)
	for range 40 {
		ratios := make([]uint64, 1+random.IntN(30))
		for d := range ratios {
			ratios[d] = 1 + random.Uint64N(1<<random.IntN(26))
		}
		all = append(all, ratios)
	}
	return all
}

// Ensure that in each prefix of positions each dataset has its share, off by less than 1 for two
// datasets and by less than 4 for any number. A search down the tree must agree with a walk
// from the start, and with a search up the tree.
func TestRatiosHoldAtEveryPrefix(t *testing.T) {
	worst := 0.0
	for _, ratios := range ratiosToTry() {
		tree := newTree(ratios, 11)
		sum, limit := uint64(0), 4.0
		for _, ratio := range ratios {
			sum += ratio
		}
		if len(ratios) <= 2 {
			limit = 1
		}
		counts := make([]uint64, len(ratios))
		for p := range uint64(3000) {
			d, item := tree.at(p)
			if item != counts[d] || tree.position(d, item) != p {
				t.Fatalf("%v: position %d is item %d of dataset %d, whose position is %d; it had %d before", ratios, p, item, d,
					tree.position(d, item), counts[d])
			}
			counts[d]++
			for d, n := range counts {
				if p%97 == 0 && tree.count(d, p+1) != n {
					t.Fatalf("%v: dataset %d has %d items before position %d, counted are %d", ratios, d, tree.count(d, p+1), p+1, n)
				}
				off := math.Abs(float64(n) - float64(p+1)*float64(ratios[d])/float64(sum))
				if worst = max(worst, off); off >= limit {
					t.Fatalf("%v: after %d positions dataset %d has had %d items: off by %g", ratios, p+1, d, n, off)
				}
			}
		}
		random := rand.New(rand.NewPCG(6, 6))
		for range 300 { // far from the start
			p := random.Uint64N(MaxSamples)
			d, item := tree.at(p)
			if tree.position(d, item) != p || tree.count(d, p) != item || tree.count(d, p+1) != item+1 {
				t.Fatalf("%v: position %d is item %d of dataset %d, whose position is %d", ratios, p, item, d,
					tree.position(d, item))
			}
			if off := math.Abs(float64(item) - float64(p)/float64(sum)*float64(ratios[d])); off >= limit+0.01 {
				t.Fatalf("%v: after %d positions dataset %d has had %d items: off by %g", ratios, p, d, item, off)
			}
		}
	}
	t.Logf("at most off by %.2f", worst)
	if worst > 2.5 {
		t.Errorf("off by %g samples somewhere; it was less than 2.5", worst)
	}
}

func mixed(t testing.TB, o MixedOrder, number uint64) *Epoch {
	t.Helper()
	e, err := o.Epoch(number)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// streams returns the local indices of each dataset in their order.
func streams(t testing.TB, o MixedOrder, e *Epoch) [][]uint64 {
	t.Helper()
	var sizes []uint64
	for _, of := range o.Orders {
		sizes = append(sizes, of.Samples)
	}
	c, err := Concatenate(sizes...)
	if err != nil {
		t.Fatal(err)
	}
	all, result := make([]int, e.Positions()+3), make([][]uint64, len(o.Orders))
	all = all[:e.Fill(all, 0, 1)]
	if uint64(len(all)) != e.Positions() {
		t.Fatalf("%d of %d positions", len(all), e.Positions())
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		if k := random.IntN(len(all)); int(e.At(uint64(k))) != all[k] {
			t.Fatalf("position %d: %d, from Fill %d", k, e.At(uint64(k)), all[k])
		}
	}
	for _, i := range all {
		d, local := c.Locate(uint64(i))
		if c.Index(d, local) != uint64(i) {
			t.Fatalf("sample %d is %d of dataset %d, whose index is %d", i, local, d, c.Index(d, local))
		}
		result[d] = append(result[d], local)
	}
	return result
}

// passes checks that a stream reads its dataset pass by pass, each sample once in each, and no two
// passes alike. It returns the number of complete passes.
func passes(t *testing.T, what string, stream []uint64, samples uint64, shuffled bool) int {
	t.Helper()
	var before []uint64
	whole := 0
	for k := 0; k < len(stream); k += int(samples) {
		pass := stream[k:min(k+int(samples), len(stream))]
		sorted := slices.Compact(slices.Sorted(slices.Values(pass)))
		if len(sorted) != len(pass) {
			t.Fatalf("%s: a sample comes twice in pass %d", what, k/int(samples))
		}
		if len(pass) == int(samples) {
			whole++
		}
		if shuffled && samples > 50 && len(pass) == len(before) && slices.Equal(pass, before) {
			t.Fatalf("%s: passes %d and the one before are alike", what, k/int(samples))
		}
		before = pass
	}
	return whole
}

func TestMixesStopWhereTheyShould(t *testing.T) {
	orders := []Order{{Samples: 1000, Kind: Shuffled}, {Samples: 100, Kind: Shuffled},
		{Samples: 301, Kind: Blocks, Block: 10, Window: 3}, {Samples: 55, Kind: Windows, Window: 10},
		{Samples: 300, Kind: Shuffled}}
	for _, ratios := range [][]uint64{{1, 1, 1, 1, 1}, {1000, 100, 301, 55, 300}, {90, 1, 1, 7, 1}, {1, 90, 1, 7, 1}} {
		o := MixedOrder{Orders: orders, Ratios: ratios, Seed: 2}
		ended := 0
		for d, stream := range streams(t, o, mixed(t, o, 5)) { // StopFirst
			if passes(t, "first", stream, orders[d].Samples, true); uint64(len(stream)) > orders[d].Samples {
				t.Errorf("%v, first: dataset %d has %d items of %d", ratios, d, len(stream), orders[d].Samples)
			} else if uint64(len(stream)) == orders[d].Samples {
				ended++
			}
		}
		if ended != 1 {
			t.Errorf("%v, first: %d datasets were read to the end", ratios, ended)
		}

		o.Stop = StopAll
		e := mixed(t, o, 5)
		for d, stream := range streams(t, o, e) {
			if passes(t, "all", stream, orders[d].Samples, true) < 1 {
				t.Errorf("%v, all: dataset %d has %d items of %d", ratios, d, len(stream), orders[d].Samples)
			}
		}
		shorter := streams(t, o, &Epoch{Order: e.Order, number: 5, positions: e.Positions() - 1, mix: e.mix})
		if !slices.ContainsFunc([]int{0, 1, 2, 3, 4},
			func(d int) bool { return uint64(len(shorter[d])) < orders[d].Samples }) {
			t.Errorf("%v, all: %d positions are more than it takes", ratios, e.Positions())
		}
		if other := mixed(t, o, 6); other.Positions() != e.Positions() ||
			slices.Equal(streams(t, o, other)[0][:20], streams(t, o, e)[0][:20]) {
			t.Errorf("%v, all: epochs of %d and %d positions, or alike", ratios, e.Positions(), other.Positions())
		}

		o.Stop, o.Length = StopLength, 437
		whole := make([][]uint64, len(orders))
		for number := range uint64(30) {
			for d, stream := range streams(t, o, mixed(t, o, number)) {
				whole[d] = append(whole[d], stream...)
			}
		}
		for d, stream := range whole {
			passes(t, "length", stream, orders[d].Samples, true)
		}
	}
}

// Ensure that the memory of a mix grows with the number of datasets only.
func TestHugeMixes(t *testing.T) {
	o := MixedOrder{Orders: slices.Repeat([]Order{{Samples: 1 << 10, Kind: Shuffled}}, MaxDatasets),
		Ratios: slices.Repeat([]uint64{1}, MaxDatasets), Stop: StopAll}
	o.Orders = append(o.Orders[:MaxDatasets-2:MaxDatasets-2], Order{Samples: MaxSamples / 4, Kind: Shuffled},
		Order{Samples: 1, Kind: Shuffled})
	o.Ratios = append(o.Ratios[:MaxDatasets-2:MaxDatasets-2], 1<<24, 1)
	e := mixed(t, o, 0)
	dst := make([]int, 100)
	if n := e.Fill(dst, e.Positions()-100, 1); n != 100 || e.Positions() < MaxSamples/4 {
		t.Errorf("%d indices at the end of %d positions", n, e.Positions())
	}
}

func TestMixesThatCannotBe(t *testing.T) {
	one := []Order{{Samples: 10}}
	two := []Order{{Samples: 10}, {Samples: MaxSamples - 10}}
	for _, c := range []struct {
		o    MixedOrder
		want string
	}{
		{MixedOrder{}, "0 orders and 0 ratios"}, {MixedOrder{Orders: one},
			"1 orders and 0 ratios"}, {MixedOrder{Orders: one, Ratios: []uint64{0}}, "ratio 0 of dataset 0"},
		{MixedOrder{Orders: two, Ratios: []uint64{1 << 30, 1 << 30}},
			"ratio 1073741824 of dataset 1"},
		{MixedOrder{Orders: one, Ratios: []uint64{math.MaxUint64}}, "ratio 18446744073709551615"},
		{MixedOrder{Orders: []Order{{Samples: 1}, {}}, Ratios: []uint64{1, 1}}, "dataset 1: invalid order: 0 samples"},
		{MixedOrder{Orders: []Order{{Samples: 11}, {Samples: MaxSamples - 10}}, Ratios: []uint64{1, 1}},
			"1099511627777 samples in all"},
		{MixedOrder{Orders: one, Ratios: []uint64{1}, Stop: 3},
			"unknown stop 3"}, {MixedOrder{Orders: one, Ratios: []uint64{1}, Length: 3}, "a length of 3 with stop 0"},
		{MixedOrder{Orders: one, Ratios: []uint64{1}, Stop: StopLength},
			"a length of 0 with stop 2"}, {MixedOrder{Orders: one, Ratios: []uint64{1}, Stop: StopLength,
			Length: MaxSamples + 1}, "a length of 1099511627777"},
		{MixedOrder{Orders: two, Ratios: []uint64{1 << 29, 1}, Stop: StopAll},
			"more than 1099511627776 positions until all datasets have"},
		{MixedOrder{Orders: two[1:], Ratios: []uint64{1}, Stop: StopAll}, ""},
	} {
		_, err := c.o.Epoch(0)
		if c.want == "" && err == nil {
			continue
		}
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

func TestConcatenation(t *testing.T) {
	c, err := Concatenate(0, 3, 0, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][2]uint64{{1, 0}, {1, 1}, {1, 2}, {3, 0}, {3, 1}} {
		if d, local := c.Locate(uint64(i)); uint64(d) != want[0] || local != want[1] || c.Index(d, local) != uint64(i) {
			t.Errorf("sample %d is %d of dataset %d, want %v", i, local, d, want)
		}
	}
	if c.Samples() != 5 {
		t.Errorf("%d samples, want 5", c.Samples())
	}
	for _, sizes := range [][]uint64{nil, {0, 0}, {1, MaxSamples}, {math.MaxUint64, 2}} {
		if _, err := Concatenate(sizes...); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", sizes, err)
		}
	}
	for name, call := range map[string]func(){"Locate": func() { c.Locate(5) }, "Index": func() { c.Index(1, 3) },
		"empty": func() { c.Index(0, 0) }, "dataset": func() { c.Index(5, 0) }, "below": func() { c.Index(-1, 0) }} {
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
