package order

import "fmt"

// Ends say what becomes of the samples that do not divide by the number of ranks.
type Ends uint32

const (
	// Uneven: some ranks get one sample more than others, and none is left out.
	Uneven Ends = iota
	// Pad: ranks with one sample less begin the epoch's order again, so that all have as many. What came twice is not real.
	Pad
	// Drop leaves out the last samples of the epoch's order, so that all have as many.
	Drop
)

// Shard is the part of an epoch that one rank reads: of what is left from position From on, each Ranks-th sample, from the Rank-th on. So ranks go through the epoch side by side, and
// where all of them are is one position: a job goes on from there with any number of ranks.
type Shard struct {
	Rank, Ranks uint64 // Rank is below Ranks; Ranks of 0 is 1
	From        uint64 // position in the epoch, at most its samples
	Ends        Ends
}

// check: ErrInvalid.
func (s Shard) check(positions uint64) error {
	switch {
	case s.Rank >= s.ranks():
		return fmt.Errorf("%w: rank %d is not in 0..%d", ErrInvalid, s.Rank, s.ranks()-1)
	case s.From > positions:
		return fmt.Errorf("%w: it begins at position %d of %d", ErrInvalid, s.From, positions)
	case s.Ends > Drop:
		return fmt.Errorf("%w: there are no ends %d", ErrInvalid, s.Ends)
	}
	return nil
}

func (s Shard) ranks() uint64 { return max(s.Ranks, 1) }

// Of returns the shard of an epoch. ErrInvalid.
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

// Part is what one rank reads of an epoch. Safe for use by many goroutines.
type Part struct {
	epoch         *Epoch
	shard         Shard
	samples, real uint64
}

// Samples is how many there are, those that come twice included.
func (p *Part) Samples() uint64 { return p.samples }

// Real is how many of them are read by no other rank and at no other time: with Pad it may be one less than Samples.
func (p *Part) Real() uint64 { return p.real }

// Position returns the position in the epoch that all ranks have reached when each has read so many samples: a job goes on from there. At most the epoch's positions.
func (p *Part) Position(read uint64) uint64 {
	return min(p.shard.From+read*p.shard.ranks(), p.epoch.positions)
}

// Fill writes the indices from the first-th of this part on to dst, as long as there are any, and returns how many.
func (p *Part) Fill(dst []int, first uint64) int {
	if first >= p.samples {
		return 0
	}
	dst = dst[:min(uint64(len(dst)), p.samples-first)]
	n := p.epoch.Fill(dst, p.shard.From+p.shard.Rank+first*p.shard.ranks(), p.shard.ranks())
	for k := n; k < len(dst); k++ { // padding starts at the first sample of the shard again
		position := p.shard.Rank + (first+uint64(k))*p.shard.ranks()
		dst[k] = int(p.epoch.At(p.shard.From + position%(p.epoch.positions-p.shard.From)))
	}
	return len(dst)
}
