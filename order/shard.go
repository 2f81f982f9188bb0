package order

import "fmt"

// Ends say what happens to the samples that do not divide evenly among the ranks.
type Ends uint32

const (
	// Uneven: some ranks get one sample more than others. No sample is left out.
	Uneven Ends = iota
	// Pad: all ranks get the same number. A rank with one sample less gets one from the beginning
	// of the epoch again, which is not real.
	Pad
	// Drop: all ranks get the same number. The last samples of the epoch are left out.
	Drop
)

// Shard is the part of an epoch that one rank reads: each Ranks-th sample from position From on,
// starting with the Rank-th. So one position tells how far all ranks are, and a job can continue
// from there with any number of ranks.
type Shard struct {
	Rank, Ranks uint64 // Rank is below Ranks; Ranks of 0 means 1
	From        uint64 // position in the epoch, at most its positions
	Ends        Ends
}

// check returns ErrInvalid for settings that make no sense.
func (s Shard) check(positions uint64) error {
	switch {
	case s.Rank >= s.ranks():
		return fmt.Errorf("%w: rank %d is not in 0..%d", ErrInvalid, s.Rank, s.ranks()-1)
	case s.From > positions:
		return fmt.Errorf("%w: the shard begins at position %d of %d", ErrInvalid, s.From, positions)
	case s.Ends > Drop:
		return fmt.Errorf("%w: unknown ends %d", ErrInvalid, s.Ends)
	}
	return nil
}

func (s Shard) ranks() uint64 { return max(s.Ranks, 1) }

// Of returns the shard of an epoch. It returns ErrInvalid.
func (s Shard) Of(e *Epoch) (*Part, error) {
	if err := s.check(e.positions); err != nil {
		return nil, err
	}
	left := e.positions - s.From
	p := &Part{epoch: e, shard: s, real: (left + s.ranks() - 1 - s.Rank) / s.ranks()}
	p.samples = p.real
	switch s.Ends {
	case Pad:
		if left > 0 {
			p.samples = (left + s.ranks() - 1) / s.ranks()
		}
	case Drop:
		p.samples = left / s.ranks()
		p.real = p.samples
	}
	return p, nil
}

// Part is what one rank reads of an epoch. It is safe for concurrent use.
type Part struct {
	epoch         *Epoch
	shard         Shard
	samples, real uint64
}

// Samples returns the number of samples, repeated ones included.
func (p *Part) Samples() uint64 { return p.samples }

// Real returns the number of samples without those that Pad repeats. It may be one less than
// Samples.
func (p *Part) Real() uint64 { return p.real }

// Position returns the position in the epoch after each rank has read this number of samples, at
// most the epoch's positions. A job continues from there.
func (p *Part) Position(read uint64) uint64 {
	return min(p.shard.From+read*p.shard.ranks(), p.epoch.positions)
}

// Fill writes the indices of this part from the first-th on to dst, up to the last one, and returns
// their number.
func (p *Part) Fill(dst []int, first uint64) int {
	if first >= p.samples {
		return 0
	}
	dst = dst[:min(uint64(len(dst)), p.samples-first)]
	n := p.epoch.Fill(dst, p.shard.From+p.shard.Rank+first*p.shard.ranks(), p.shard.ranks())
	for k := n; k < len(dst); k++ { // Pad begins the epoch again
		position := p.shard.From + p.shard.Rank + (first+uint64(k))*p.shard.ranks()
		dst[k] = int(p.epoch.At(position % p.epoch.positions))
	}
	return len(dst)
}
