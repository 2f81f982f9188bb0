// Package loader says in which order samples are read, and reads them.
//
// The order of an epoch is a function of a position (docs/order.md): it takes no memory that grows with the dataset, it is the same for any number of ranks and workers, and where
// a job is in it is one number.
package loader

import (
	"errors"
	"fmt"
)

// ErrInvalid is the error of settings that make no sense; the text has the numbers and the next step.
var ErrInvalid = errors.New("invalid order")

// MaxSamples of an order.
const MaxSamples = 1 << 40

// Kind says how an order goes through the samples. The numbers are those of the C library.
type Kind uint32

const (
	// Sequential is 0, 1, 2, ...
	Sequential Kind = iota
	// Shuffled is any sample anywhere.
	Shuffled
	// Windows goes through the samples from first to last, Window of them at a time, each such window shuffled.
	Windows
	// Blocks shuffles blocks of Block samples that lie side by side, and then the samples within Window blocks at a time, for sources that read blocks faster than samples.
	Blocks
)

var kindNames = [...]string{"sequential", "shuffled", "windows", "blocks"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// Order is the order of samples in every epoch. With the number of the epoch and a position it is the whole state of a pass over a dataset.
type Order struct {
	Samples uint64 // of the dataset, 1 to MaxSamples
	Kind    Kind
	Seed    uint64
	Window  uint64 // Windows: samples. Blocks: blocks that are shuffled together. Else 0
	Block   uint64 // Blocks: samples of a block; the last one may have fewer. Else 0
}

// check: ErrInvalid.
func (o Order) check() error {
	switch {
	case o.Samples < 1 || o.Samples > MaxSamples:
		return fmt.Errorf("%w: %d samples are not in 1..%d", ErrInvalid, o.Samples, uint64(MaxSamples))
	case o.Kind > Blocks:
		return fmt.Errorf("%w: there is no %v", ErrInvalid, o.Kind)
	case (o.Kind == Windows || o.Kind == Blocks) != (o.Window > 0):
		return fmt.Errorf("%w: a window of %d in an order that is %v; windows and blocks need one, others have none", ErrInvalid, o.Window, o.Kind)
	case (o.Kind == Blocks) != (o.Block > 0):
		return fmt.Errorf("%w: blocks of %d samples in an order that is %v; blocks need a size, others have none", ErrInvalid, o.Block, o.Kind)
	}
	return nil
}

// Epoch is the order of one epoch. Safe for use by many goroutines.
type Epoch struct {
	Order
	number uint64

	whole   permutation // of the samples (Shuffled) or of the blocks (Blocks)
	block   uint64      // samples of a block; a window of samples is one of blocks of 1, which stay where they are
	blocks  uint64      // there are
	window  uint64      // blocks of a window
	missing uint64      // samples that the last block has fewer than the others
	short   uint64      // where the last block stands
}

// Epoch returns the order of an epoch. ErrInvalid.
func (o Order) Epoch(number uint64) (*Epoch, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	e := &Epoch{Order: o, number: number}
	switch o.Kind {
	case Shuffled:
		e.whole = newPermutation(o.Samples, o.Seed, number, ofSamples, 0)
	case Windows:
		e.block, e.blocks, e.window = 1, o.Samples, min(o.Window, o.Samples)
		e.short = e.blocks - 1
	case Blocks:
		e.block = min(o.Block, o.Samples)
		e.blocks = (o.Samples + e.block - 1) / e.block
		e.window = min(o.Window, e.blocks)
		e.missing = e.blocks*e.block - o.Samples
		e.whole = newPermutation(e.blocks, o.Seed, number, ofBlocks, 0)
		e.short = e.whole.position(e.blocks - 1)
	}
	return e, nil
}

// Number is the epoch's.
func (e *Epoch) Number() uint64 { return e.number }

// window is a part of an epoch whose samples are shuffled among each other.
type window struct {
	number  uint64
	first   uint64 // position
	samples uint64
	short   uint64 // where in it, of its samples in the order of blocks, those begin that the last block lacks; samples when it is not in it
	shuffle permutation
}

// begin returns the position at which a window begins.
func (e *Epoch) begin(number uint64) uint64 {
	block := min(number*e.window, e.blocks)
	first := block * e.block
	if e.short < block {
		first -= e.missing
	}
	return first
}

// windowAt returns the window that a position is in.
func (e *Epoch) windowAt(position uint64) window {
	size := e.window * e.block
	number := position / size
	if behind := e.short/e.window + 1; number >= behind || position >= e.begin(behind) {
		number = (position + e.missing) / size
	}
	return e.windowOf(number)
}

func (e *Epoch) windowOf(number uint64) window {
	w := window{number: number, first: e.begin(number)}
	w.samples = e.begin(number+1) - w.first
	w.short = w.samples
	if e.short/e.window == number {
		w.short = (e.short%e.window+1)*e.block - e.missing
	}
	w.shuffle = newPermutation(w.samples, e.Seed, e.number, ofWindow, number)
	return w
}

// at returns the index at a position of a window.
func (e *Epoch) at(w *window, position uint64) uint64 {
	k := w.shuffle.at(position - w.first)
	if k >= w.short {
		k += e.missing
	}
	block := w.number*e.window + k/e.block
	if e.Kind == Blocks {
		block = e.whole.at(block)
	}
	return block*e.block + k%e.block
}

// At returns the index of the sample at a position. Both are below Samples; it panics otherwise. Of the kinds with windows, Fill is faster for many positions.
func (e *Epoch) At(position uint64) uint64 {
	if position >= e.Samples {
		panic(fmt.Sprintf("loader: position %d is not in 0..%d", position, e.Samples-1))
	}
	switch e.Kind {
	case Sequential:
		return position
	case Shuffled:
		return e.whole.at(position)
	}
	w := e.windowAt(position)
	return e.at(&w, position)
}

// Position returns where a sample stands: the inverse of At.
func (e *Epoch) Position(index uint64) uint64 {
	if index >= e.Samples {
		panic(fmt.Sprintf("loader: index %d is not in 0..%d", index, e.Samples-1))
	}
	switch e.Kind {
	case Sequential:
		return index
	case Shuffled:
		return e.whole.position(index)
	}
	block := index / e.block
	if e.Kind == Blocks {
		block = e.whole.position(block)
	}
	w := e.windowOf(block / e.window)
	k := block%e.window*e.block + index%e.block
	if k >= w.short {
		k -= e.missing
	}
	return w.first + w.shuffle.position(k)
}

// Fill writes the indices at positions first, first + step, ... to dst, as long as there are any, and returns how many.
func (e *Epoch) Fill(dst []int, first, step uint64) int {
	var w window
	for k := range dst {
		position := first + uint64(k)*step
		if position >= e.Samples {
			return k
		}
		switch e.Kind {
		case Sequential, Shuffled:
			dst[k] = int(e.At(position))
		default:
			if position-w.first >= w.samples { // the first one, as well
				w = e.windowAt(position)
			}
			dst[k] = int(e.at(&w, position))
		}
	}
	return len(dst)
}
