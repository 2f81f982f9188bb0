package simulate

import (
	"math"

	"github.com/stocached/stocached/order"
)

// Jobs returns the trace of jobs that read in turn. The orders of a job are those of its seed.
func Jobs(samples, epochs, jobs int, seed uint64, weights []float64) (*Trace, error) {
	t := &Trace{Samples: samples, Once: weights == nil, Accesses: make([]uint32, samples*epochs*jobs)}
	var table *order.Weights
	if weights != nil {
		var err error
		if table, err = order.NewWeights(weights); err != nil {
			return nil, err
		}
	}
	part := make([]int, samples)
	for number := range epochs {
		for job := range jobs {
			var e *order.Epoch
			var err error
			if table != nil {
				e, err = order.WeightedOrder{Weights: table, Seed: seed + uint64(job)}.Epoch(uint64(number))
			} else {
				e, err = order.Order{Samples: uint64(samples), Kind: order.Shuffled, Seed: seed + uint64(job)}.Epoch(uint64(number))
			}
			if err != nil {
				return nil, err
			}
			e.Fill(part, 0, 1)
			base := number * samples * jobs
			for k, sample := range part {
				t.Accesses[base+k*jobs+job] = uint32(sample)
			}
		}
		t.Ends = append(t.Ends, (number+1)*samples*jobs)
	}
	return t, nil
}

// Zipf returns weights 1/k^s for k = 1, 2, ...
func Zipf(samples int, s float64) []float64 {
	weights := make([]float64, samples)
	for k := range weights {
		weights[k] = math.Pow(float64(k+1), -s)
	}
	return weights
}
