package order

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

func weightsOf(t testing.TB, weights []float64) *Weights {
	t.Helper()
	w := fatal.Value(NewWeights(weights))(t)
	return w
}

// chances returns the chance of each sample in a table.
func chances(w *Weights) []float64 {
	all := make([]float64, len(w.buckets))
	for k, b := range w.buckets {
		own := math.Ldexp(float64(b.threshold), -64)
		if b.alias == uint64(k) {
			own = 1
		}
		all[k] += own / float64(len(all))
		all[b.alias] += (1 - own) / float64(len(all))
	}
	return all
}

// weightsToTry are small and large, equal and not, with zeros at the ends and in between, and as
// small and large as doubles can be.
func weightsToTry() map[string][]float64 {
	random := rand.New(rand.NewPCG(1, 1))
	all := map[string][]float64{
		"one": {3}, "two": {1, 3}, "none of the first": {0, 1}, "none of the last": {1, 0, 0}, "alike": {2, 2, 2, 2,
			2}, "one of many": {0, 0, 0, 1e-300, 0, 0}, "subnormal": {5e-324, 0, 1e-323, 5e-324},
		"huge": {1.7e308, 1.7e308, 1}, "a negative zero": {math.Copysign(0, -1), 1,
			2}, "falling": nil, "rising": nil, "random": nil, "skewed": nil,
	}
	for k := range 1000 {
		all["falling"] = append(all["falling"], 1000-float64(k))
		all["rising"] = append(all["rising"], float64(k))
		all["random"] = append(all["random"], random.Float64())
		all["skewed"] = append(all["skewed"], math.Exp(30*random.Float64()))
	}
	return all
}

// Ensure that a table gives each sample the chance of its weight, to the last bits of a double.
func TestTableIsExact(t *testing.T) {
	for name, weights := range weightsToTry() {
		greatest, sum := 0.0, 0.0
		for _, w := range weights {
			greatest = max(greatest, w)
		}
		for _, w := range weights {
			sum += w / greatest
		}
		for k, chance := range chances(weightsOf(t, weights)) {
			want := weights[k] / greatest / sum
			if math.Abs(chance-want) > 1e-12*want+1e-19 || weights[k] == 0 && chance != 0 {
				t.Errorf("%s: sample %d comes with %g, want %g", name, k, chance, want)
			}
		}
	}
}

// Ensure that the number of draws changes no draw, and that seeds and epochs do.
func TestDrawsOfAnyNumber(t *testing.T) {
	weights := weightsOf(t, []float64{1, 2, 3, 4})
	first := func(o WeightedOrder, number uint64) (all [100]int) {
		o.Weights = weights
		e := fatal.Value(o.Epoch(number))(t)
		e.Fill(all[:], 0, 1)
		return all
	}
	few, many := first(WeightedOrder{Draws: 100}, 0), first(WeightedOrder{Draws: MaxSamples}, 0)
	expect.Equal(t, few, many, "the first of 100 draws, and of the most")
	if other := first(WeightedOrder{Draws: 100}, 1); few == other {
		t.Error("two epochs are alike")
	}
	if other := first(WeightedOrder{Draws: 100, Seed: 1}, 0); few == other {
		t.Error("two seeds are alike")
	}
	e, _ := WeightedOrder{Weights: weights}.Epoch(0)
	if e.Positions() != 4 || e.Samples != 4 {
		t.Errorf("%d positions and %d samples, want 4", e.Positions(), e.Samples)
	}
	defer func() {
		if recover() == nil {
			t.Error("a sample has a position among draws")
		}
	}()
	e.Position(0)
}

func TestWeightsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		weights []float64
		want    string
	}{
		{nil, "0 weights are not in 1..1099511627776"}, {[]float64{0, 0}, "all 2 weights are 0"}, {[]float64{1, -1},
			"weight 1 is -1"}, {[]float64{math.NaN()}, "weight 0 is NaN"},
		{[]float64{1, 2, math.Inf(1)}, "weight 2 is +Inf"}, {[]float64{math.Inf(-1)},
			"weight 0 is -Inf"}, {[]float64{1, -5e-324}, "weight 1 is -5e-324"},
	} {
		if _, err := NewWeights(c.weights); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.weights, err, c.want)
		}
	}
	for want, o := range map[string]WeightedOrder{"no weights": {},
		"1099511627777 draws": {Weights: weightsOf(t, []float64{1}), Draws: MaxSamples + 1}} {
		if _, err := o.Epoch(0); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
