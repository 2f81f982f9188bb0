package order

import (
	"math"
	"math/rand/v2"
	"testing"
)

// model is an order made with true shuffles: the index at each position.
type model func(random *rand.Rand) []int

func blocksModel(samples, block, window int) model {
	return func(random *rand.Rand) []int {
		var order []int
		blocks := random.Perm((samples + block - 1) / block)
		for first := 0; first < len(blocks); first += window {
			begin := len(order)
			for _, b := range blocks[first:min(first+window, len(blocks))] {
				for i := b * block; i < min((b+1)*block, samples); i++ {
					order = append(order, i)
				}
			}
			part := order[begin:]
			random.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
		}
		return order
	}
}

func windowsModel(samples, window int) model {
	return func(random *rand.Rand) []int {
		var order []int
		for first := 0; first < samples; first += window {
			for _, k := range random.Perm(min(window, samples-first)) {
				order = append(order, first+k)
			}
		}
		return order
	}
}

// features are properties of an order of n samples that a user may notice. Each gives one bin of
// bins for an epoch, so that epochs count independently.
var features = []struct {
	name string
	bins int
	bin  func(order []int, epoch int) int
}{
	{"where a sample stands", 24, func(order []int, epoch int) int {
		n := len(order)
		for k, i := range order {
			if i == n/3 {
				return k * 24 / n
			}
		}
		return 0
	}},
	{"what stands at a position", 24, func(order []int, epoch int) int { return order[len(order)/2] * 24 / len(order) }},
	{"how far apart neighbours are", 24, func(order []int, epoch int) int {
		n := len(order)
		k := epoch * 7 % (n - 1)
		return (order[k+1] - order[k] + n) * 24 / (2 * n)
	}},
	{"how near neighbours are", 24, func(order []int, epoch int) int {
		k := epoch * 11 % (len(order) - 1)
		return min(max(order[k+1]-order[k], -12), 11) + 12
	}},
	{"the order of two samples that lie side by side", 2, func(order []int, epoch int) int {
		i := epoch % (len(order) - 1)
		for _, at := range order {
			if at == i {
				return 0
			}
			if at == i+1 {
				return 1
			}
		}
		return 0
	}},
	{"how far apart samples stand that lie side by side", 24, func(order []int, epoch int) int {
		n, i, first, second := len(order), epoch*5%(len(order)-1), 0, 0
		for k, at := range order {
			if at == i {
				first = k
			}
			if at == i+1 {
				second = k
			}
		}
		return (second - first + n) * 24 / (2 * n)
	}},
	{"samples between the first and the last one of a part", 24, func(order []int, epoch int) int {
		low, high := len(order), 0
		for _, i := range order[:6] {
			low, high = min(low, i), max(high, i)
		}
		return (high - low) * 24 / len(order)
	}},
}

// counted returns the bins of each feature over many epochs.
func counted(epochs int, order func(epoch int) []int) [][]float64 {
	counts := make([][]float64, len(features))
	for f := range counts {
		counts[f] = make([]float64, features[f].bins)
	}
	for epoch := range epochs {
		o := order(epoch)
		for f := range features {
			counts[f][features[f].bin(o, epoch)]++
		}
	}
	return counts
}

// apart returns the distance of two counts, if they have one distribution, in standard deviations
// of chi-square.
func apart(a, b []float64) float64 {
	chi, freedom := 0.0, -1.0
	for k := range a {
		if a[k]+b[k] < 10 {
			continue
		}
		chi += (a[k] - b[k]) * (a[k] - b[k]) / (a[k] + b[k])
		freedom++
	}
	if freedom < 1 {
		return 0
	}
	return (chi - freedom) / math.Sqrt(2*freedom)
}

// Ensure that blocks and windows, of even and odd sizes and with short last ones, cannot be told
// from those made with true shuffles, and that the features detect a slightly different
// model.
func TestBlocksAndWindowsAreLikeTrueOnes(t *testing.T) {
	const epochs, limit = 4_000, 5
	for _, c := range []struct {
		order        Order
		model, wrong model
	}{
		{Order{Samples: 240, Kind: Blocks, Block: 10, Window: 4}, blocksModel(240, 10, 4), blocksModel(240, 10, 3)},
		{Order{Samples: 243, Kind: Blocks, Block: 10, Window: 4}, blocksModel(243, 10, 4), blocksModel(243, 10, 5)},
		{Order{Samples: 37, Kind: Blocks, Block: 4, Window: 3}, blocksModel(37, 4, 3), blocksModel(37, 5, 3)},
		// windows of 300: rounds
		{Order{Samples: 600, Kind: Blocks, Block: 100, Window: 3}, blocksModel(600, 100, 3), blocksModel(600, 100, 2)},
		{Order{Samples: 555, Kind: Blocks, Block: 1, Window: 280}, blocksModel(555, 1, 280), windowsModel(555, 280)},
		{Order{Samples: 243, Kind: Windows, Window: 50}, windowsModel(243, 50), windowsModel(243, 60)},
		{Order{Samples: 601, Kind: Windows, Window: 300}, windowsModel(601, 300), windowsModel(601, 260)},
		{Order{Samples: 9, Kind: Windows, Window: 4}, windowsModel(9, 4), windowsModel(9, 3)},
	} {
		ours := counted(epochs, func(epoch int) []int {
			e, err := c.order.Epoch(uint64(epoch))
			if err != nil {
				t.Fatal(err)
			}
			order := make([]int, c.order.Samples)
			e.Fill(order, 0, 1)
			return order
		})
		random := rand.New(rand.NewPCG(1, c.order.Samples))
		theirs, wrong := counted(epochs, func(int) []int { return c.model(random) }), counted(epochs,
			func(int) []int { return c.wrong(random) })
		seen := 0.0
		for f := range features {
			if off := apart(ours[f], theirs[f]); off > limit {
				t.Errorf("%+v: %s: off by %.1f standard deviations", c.order, features[f].name, off)
			}
			seen = max(seen, apart(ours[f], wrong[f]))
		}
		if seen < 10 {
			t.Errorf("%+v: another order is off by %.1f standard deviations only", c.order, seen)
		}
	}
}
