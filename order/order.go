// Package order says which sample stands at each position of an epoch, as a function:
// docs/spec/order.md.
//
// An Order reads one dataset, and a WeightedOrder draws samples of one. Each has epochs, and a Shard
// of an Epoch is what one rank reads. A Dealer deals global batches to the nodes that own their
// samples. Only weights take memory that grows with the dataset. The order is the same for any number
// of ranks and workers, and one position is the whole state of a job. C and Python give the same
// orders: testdata/order.txt has vectors for all three. C and Python mix several datasets too. This
// package imports only the standard library.
package order

import (
	"errors"
	"fmt"
)

// ErrInvalid is the error of invalid settings. Its text has the numbers and the next step.
var ErrInvalid = errors.New("invalid order")

// MaxSamples is the most samples of an order.
const MaxSamples = 1 << 40

// Kind says in which order the samples come. The numbers are those of the C library.
type Kind uint32

const (
	// Sequential is 0, 1, 2, ...
	Sequential Kind = iota
	// Shuffled puts each sample at any position.
	Shuffled
	// Windows reads the samples from first to last in windows of Window samples. Each window is
	// shuffled.
	Windows
	// Blocks shuffles blocks of Block adjacent samples, and then the samples within each Window
	// blocks. It is for sources that read blocks faster than samples.
	Blocks
)

var kindNames = [...]string{"sequential", "shuffled", "windows", "blocks"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// Order is the order of samples in every epoch. With the number of an epoch and a position it is
// the whole state of a pass over a dataset.
type Order struct {
	Samples uint64 // samples of the dataset, 1 to MaxSamples
	Kind    Kind
	Seed    uint64
	Window  uint64 // Windows: samples. Blocks: blocks that are shuffled together. Else 0
	Block   uint64 // Blocks: samples of a block; the last one may have fewer. Else 0
}

// check returns ErrInvalid for settings that make no sense.
func (o Order) check() error {
	switch {
	case o.Samples < 1 || o.Samples > MaxSamples:
		return fmt.Errorf("%w: %d samples are not in 1..%d", ErrInvalid, o.Samples, uint64(MaxSamples))
	case o.Kind > Blocks:
		return fmt.Errorf("%w: unknown %v", ErrInvalid, o.Kind)
	case (o.Kind == Windows || o.Kind == Blocks) != (o.Window > 0):
		return fmt.Errorf("%w: a window of %d in an order that is %v; windows and blocks need one, others have none",
			ErrInvalid, o.Window, o.Kind)
	case (o.Kind == Blocks) != (o.Block > 0):
		return fmt.Errorf("%w: blocks of %d samples in an order that is %v; blocks need a size, others have none",
			ErrInvalid, o.Block, o.Kind)
	}
	return nil
}
