package order

import "fmt"

// Epoch is the order of one epoch. It is safe for concurrent use.
type Epoch struct {
	// Order has only Samples and Seed in an epoch of a WeightedOrder.
	Order
	number    uint64
	positions uint64
	plain     *plain // nil: of a WeightedOrder
	draws     *draws
}

// Epoch returns the order of an epoch. It returns ErrInvalid.
func (o Order) Epoch(number uint64) (*Epoch, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	e := &Epoch{Order: o, number: number, positions: o.Samples, plain: &plain{}}
	e.plain.begin(&o, number)
	return e, nil
}

// Number returns the number of the epoch.
func (e *Epoch) Number() uint64 { return e.number }

// Positions returns the number of positions: the samples of an Order, or the draws of a WeightedOrder.
func (e *Epoch) Positions() uint64 { return e.positions }

// At returns the index of the sample at a position below Positions; it panics otherwise. For kinds
// with windows, Fill is faster for many positions.
func (e *Epoch) At(position uint64) uint64 {
	if position >= e.positions {
		panic(fmt.Sprintf("order: position %d is not in 0..%d", position, e.positions-1))
	}
	if e.plain != nil && e.Kind <= Shuffled {
		return e.plain.at(position, nil)
	}
	return e.at(position, &window{})
}

// Position returns the position of a sample: the inverse of At. It panics for an index that is not
// below Samples, and for epochs of a WeightedOrder, in which a sample may have several positions or
// none.
func (e *Epoch) Position(index uint64) uint64 {
	if e.plain == nil {
		panic("order: a sample has no single position in an epoch of a WeightedOrder")
	}
	if index >= e.Samples {
		panic(fmt.Sprintf("order: index %d is not in 0..%d", index, e.Samples-1))
	}
	return e.plain.position(index)
}

// Fill writes the indices at positions first, first + step, ... to dst, up to the last position,
// and returns their number.
func (e *Epoch) Fill(dst []int, first, step uint64) int {
	var w window
	done := 0
	if e.plain != nil && e.Kind == Shuffled {
		done = e.plain.whole.fill(dst, first, step)
	}
	for k := done; k < len(dst); k++ {
		position := first + uint64(k)*step
		if position >= e.positions {
			return k
		}
		dst[k] = int(e.at(position, &w))
	}
	return len(dst)
}

// at returns the index at a position. w: as for plain.
func (e *Epoch) at(position uint64, w *window) uint64 {
	if e.plain != nil {
		return e.plain.at(position, w)
	}
	return e.draws.at(position)
}
