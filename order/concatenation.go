package order

import (
	"fmt"
	"sort"
)

// Concatenation is several datasets as one: the samples of the first, then those of the second, and
// so on. It is safe for concurrent use.
type Concatenation struct {
	ends []uint64 // for each dataset, the index after its last sample
}

// Concatenate returns the concatenation of datasets with these numbers of samples, together 1 to
// MaxSamples. Some may be empty. It returns ErrInvalid.
func Concatenate(samples ...uint64) (*Concatenation, error) {
	c := &Concatenation{ends: make([]uint64, len(samples))}
	end := uint64(0)
	for d, n := range samples {
		if n > MaxSamples-end {
			return nil, fmt.Errorf("%w: datasets 0 to %d have more than %d samples", ErrInvalid, d, uint64(MaxSamples))
		}
		end += n
		c.ends[d] = end
	}
	if end == 0 {
		return nil, fmt.Errorf("%w: %d datasets without a sample", ErrInvalid, len(samples))
	}
	return c, nil
}

// Samples returns the number of samples of all datasets.
func (c *Concatenation) Samples() uint64 { return c.ends[len(c.ends)-1] }

func (c *Concatenation) begin(dataset int) uint64 {
	if dataset == 0 {
		return 0
	}
	return c.ends[dataset-1]
}

// Locate returns the dataset of a sample, and its index there. It panics for an index that is not
// below Samples.
func (c *Concatenation) Locate(index uint64) (dataset int, local uint64) {
	if index >= c.Samples() {
		panic(fmt.Sprintf("order: index %d is not in 0..%d", index, c.Samples()-1))
	}
	d := sort.Search(len(c.ends), func(d int) bool { return index < c.ends[d] })
	return d, index - c.begin(d)
}

// Index is the inverse of Locate. It panics for a dataset or sample that does not exist.
func (c *Concatenation) Index(dataset int, local uint64) uint64 {
	if dataset < 0 || dataset >= len(c.ends) || local >= c.ends[dataset]-c.begin(dataset) {
		panic(fmt.Sprintf("order: there is no sample %d of dataset %d", local, dataset))
	}
	return c.begin(dataset) + local
}
