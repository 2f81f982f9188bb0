package loader_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/loader"
)

func epoch(t testing.TB, o loader.Order, number uint64) *loader.Epoch {
	t.Helper()
	e, err := o.Epoch(number)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// orders are of all kinds and sizes, with last blocks and windows that are short.
func orders() (all []loader.Order) {
	for _, n := range []uint64{1, 2, 7, 64, 257, 1000, 4099} {
		all = append(all, loader.Order{Samples: n, Kind: loader.Sequential}, loader.Order{Samples: n, Kind: loader.Shuffled, Seed: 5})
		for _, window := range []uint64{1, 3, 16, 300, 5000} {
			all = append(all, loader.Order{Samples: n, Kind: loader.Windows, Seed: 5, Window: window})
			for _, block := range []uint64{1, 2, 10, 33, 999, 5000} {
				all = append(all, loader.Order{Samples: n, Kind: loader.Blocks, Seed: 5, Window: window, Block: block})
			}
		}
	}
	return all
}

// Ensure that an epoch has every sample once, that Position is the inverse of At, and that Fill gives what At gives.
func TestEpochHasEverySampleOnce(t *testing.T) {
	for _, o := range orders() {
		e := epoch(t, o, 3)
		seen := make([]bool, o.Samples)
		all := make([]int, o.Samples)
		if n := e.Fill(all, 0, 1); n != int(o.Samples) {
			t.Fatalf("%+v: %d of %d", o, n, o.Samples)
		}
		for k := range o.Samples {
			i := e.At(k)
			if i >= o.Samples || seen[i] || e.Position(i) != k || all[k] != int(i) {
				t.Fatalf("%+v: position %d has index %d, seen %v, whose position is %d; Fill says %d", o, k, i, i < o.Samples && seen[i], e.Position(i), all[k])
			}
			seen[i] = true
		}
		third := make([]int, o.Samples)
		n := e.Fill(third, 1, 3)
		for k, i := range third[:n] {
			if i != all[1+3*k] {
				t.Fatalf("%+v: every third one: %d is %d, want %d", o, k, i, all[1+3*k])
			}
		}
		if want := int(o.Samples+1) / 3; n != want {
			t.Fatalf("%+v: every third one: %d, want %d", o, n, want)
		}
	}
}

// Ensure that what a kind promises holds: which samples may stand where.
func TestKindsKeepTheirPlaces(t *testing.T) {
	windows := epoch(t, loader.Order{Samples: 1003, Kind: loader.Windows, Seed: 1, Window: 50}, 0)
	for k := range uint64(1003) {
		if windows.At(k)/50 != k/50 {
			t.Fatalf("position %d has index %d, of another window", k, windows.At(k))
		}
	}
	const n, block, window = 1003, 10, 4
	blocks := epoch(t, loader.Order{Samples: n, Kind: loader.Blocks, Seed: 1, Window: window, Block: block}, 0)
	var order []uint64 // blocks as they first come
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
	for k := 0; k+window <= len(order); k += window { // all of a window come before any of the next
		for _, b := range order[k : k+window] {
			if since[b] < open {
				t.Errorf("block %d of window %d comes at %d", b, k/window, since[b])
			}
		}
		open = since[order[k]]
	}
}

// Ensure that seeds, epochs, and windows of one epoch have nothing to do with each other.
func TestOrdersDiffer(t *testing.T) {
	const n = 1000
	first := func(o loader.Order, number uint64) []int {
		all := make([]int, n)
		epoch(t, o, number).Fill(all, 0, 1)
		return all
	}
	o := loader.Order{Samples: n, Kind: loader.Shuffled, Seed: 1}
	other := o
	other.Seed = 2
	for name, pair := range map[string][2][]int{
		"epochs": {first(o, 0), first(o, 1)}, "seeds": {first(o, 0), first(other, 0)}, "seed and epoch": {first(o, 2), first(other, 1)},
	} {
		same := 0
		for k := range n {
			if pair[0][k] == pair[1][k] {
				same++
			}
		}
		if same > 10 { // 1 is to be expected
			t.Errorf("%s: %d samples of %d stand in the same place", name, same, n)
		}
	}
	windows := first(loader.Order{Samples: n, Kind: loader.Windows, Seed: 1, Window: 100}, 0)
	for k := range 100 {
		if windows[k]+100 != windows[100+k] {
			return
		}
	}
	t.Error("two windows are shuffled alike")
}

func TestOrdersThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		o    loader.Order
		want string
	}{
		{loader.Order{}, "0 samples are not in 1..1099511627776"},
		{loader.Order{Samples: loader.MaxSamples + 1}, "1099511627777 samples"},
		{loader.Order{Samples: 1, Kind: 4}, "there is no kind 4"},
		{loader.Order{Samples: 1, Kind: loader.Windows}, "a window of 0 in an order that is windows"},
		{loader.Order{Samples: 1, Kind: loader.Shuffled, Window: 2}, "a window of 2 in an order that is shuffled"},
		{loader.Order{Samples: 1, Kind: loader.Blocks, Window: 2}, "blocks of 0 samples"},
		{loader.Order{Samples: 1, Kind: loader.Windows, Window: 2, Block: 3}, "blocks of 3 samples in an order that is windows"},
	} {
		if _, err := c.o.Epoch(0); !errors.Is(err, loader.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	for name, call := range map[string]func(){
		"At":       func() { epoch(t, loader.Order{Samples: 3}, 0).At(3) },
		"Position": func() { epoch(t, loader.Order{Samples: 3}, 0).Position(3) },
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

// Ensure that orders too large for any memory work as well.
func TestHugeOrders(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, o := range []loader.Order{
		{Samples: loader.MaxSamples, Kind: loader.Shuffled}, {Samples: loader.MaxSamples - 1, Kind: loader.Windows, Window: 1 << 39}, {Samples: 1e9, Kind: loader.Blocks, Block: 4096, Window: 16},
		{Samples: loader.MaxSamples, Kind: loader.Blocks, Block: loader.MaxSamples, Window: loader.MaxSamples}, {Samples: 1e12 + 39, Kind: loader.Blocks, Block: 3, Window: 1 << 50},
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
	o := loader.Order{Samples: 10, Kind: loader.Shuffled, Seed: 1}
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

var update = flag.Bool("update", false, "write testdata/order.txt anew: only when docs/order.md changes")

// vectors are the orders of testdata/order.txt, which the C library is tested with as well.
func vectors() (all []loader.Order) {
	for _, seed := range []uint64{0, 1, math.MaxUint64} {
		for _, n := range []uint64{1, 2, 10, 256, 257, 1000, 1281167, 1<<30 + 1, 1e9, loader.MaxSamples} {
			all = append(all, loader.Order{Samples: n, Kind: loader.Sequential, Seed: seed}, loader.Order{Samples: n, Kind: loader.Shuffled, Seed: seed},
				loader.Order{Samples: n, Kind: loader.Windows, Seed: seed, Window: 1000}, loader.Order{Samples: n, Kind: loader.Windows, Seed: seed, Window: 7},
				loader.Order{Samples: n, Kind: loader.Blocks, Seed: seed, Window: 16, Block: 27}, loader.Order{Samples: n, Kind: loader.Blocks, Seed: seed, Window: 3, Block: 4096})
		}
	}
	return all
}

// Ensure that orders are what they were: a line says an order, an epoch, and the indices at some positions.
func TestVectors(t *testing.T) {
	var b strings.Builder
	fmt.Fprintln(&b, "# kind samples seed window block epoch: position=index ... (docs/order.md). Every implementation is tested with this file.")
	for k, o := range vectors() {
		number := []uint64{0, 1, math.MaxUint64}[k%3]
		e := epoch(t, o, number)
		fmt.Fprintf(&b, "%d %d %d %d %d %d:", o.Kind, o.Samples, o.Seed, o.Window, o.Block, number)
		for _, position := range []uint64{0, 1, 2, o.Samples / 3, o.Samples / 2, o.Samples - 1} {
			if position < o.Samples {
				fmt.Fprintf(&b, " %d=%d", position, e.At(position))
			}
		}
		fmt.Fprintln(&b)
	}
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/order.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/order.txt")
	if err != nil || string(want) != b.String() {
		t.Errorf("orders are not those of testdata/order.txt, %v: checkpoints of users would go on with other samples", err)
	}
}
