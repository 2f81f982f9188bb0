package simulate

import (
	"fmt"
	"math"

	"github.com/stocached/stocached/order"
)

// Jobs are jobs that read one dataset in turn, a sample each.
type Jobs struct {
	Order   order.Order // the seed is that of the first job; the next jobs have the next seeds
	Weights []float64   // of each sample; nil: each sample is read once an epoch
	Epochs  int
	Jobs    int
}

// Check returns an error for jobs that cannot be simulated. It does not look at weights and orders.
func (j Jobs) Check() error {
	samples := j.Order.Samples
	switch {
	case samples < 1 || samples > math.MaxUint32:
		return fmt.Errorf("%w: %d samples are not in 1..%d", ErrInvalid, samples, uint32(math.MaxUint32))
	case j.Epochs < 1:
		return fmt.Errorf("%w: %d epochs; there is at least 1", ErrInvalid, j.Epochs)
	case j.Jobs < 1:
		return fmt.Errorf("%w: %d jobs; there is at least 1", ErrInvalid, j.Jobs)
	case float64(samples)*float64(j.Epochs)*float64(j.Jobs) > MaxAccesses:
		return fmt.Errorf("%w: %d samples, %d epochs and %d jobs are more than %d reads; simulate a part: hit rates "+
			"depend on the cached fraction, and hardly on the number of samples", ErrInvalid, samples, j.Epochs, j.Jobs,
			MaxAccesses)
	}
	return nil
}

// Trace returns what the jobs read, and as Planned one epoch more: jobs announce orders, which have no end.
func (j Jobs) Trace() (*Trace, error) {
	if err := j.Check(); err != nil {
		return nil, err
	}
	samples := j.Order.Samples
	epoch, err := j.orders()
	if err != nil {
		return nil, err
	}
	reads := int(samples) * j.Jobs // of an epoch
	all := make([]uint32, reads*(j.Epochs+1))
	t := &Trace{Samples: int(samples), Once: j.Weights == nil && j.Jobs == 1, Jobs: j.Jobs,
		Accesses: all[: reads*j.Epochs : reads*j.Epochs], Planned: all[reads*j.Epochs:]}
	part := make([]int, samples)
	for number := range j.Epochs + 1 {
		base := number * reads
		for job := range j.Jobs {
			e, err := epoch(job, number)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			e.Fill(part, 0, 1)
			for k, sample := range part {
				all[base+k*j.Jobs+job] = uint32(sample)
			}
		}
		if number < j.Epochs {
			t.Ends = append(t.Ends, base+reads)
		}
	}
	return t, nil
}

// orders returns a function that returns an epoch of a job.
func (j Jobs) orders() (func(job, number int) (*order.Epoch, error), error) {
	if j.Weights == nil {
		return func(job, number int) (*order.Epoch, error) {
			o := j.Order
			o.Seed += uint64(job)
			return o.Epoch(uint64(number))
		}, nil
	}
	table, err := order.NewWeights(j.Weights)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return func(job, number int) (*order.Epoch, error) {
		return order.WeightedOrder{Weights: table, Seed: j.Order.Seed + uint64(job)}.Epoch(uint64(number))
	}, nil
}

// Zipf returns weights 1/k^s for k = 1, 2, ...
func Zipf(samples int, s float64) []float64 {
	weights := make([]float64, samples)
	for k := range weights {
		weights[k] = math.Pow(float64(k+1), -s)
	}
	return weights
}
