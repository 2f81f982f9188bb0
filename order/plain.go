package order

// plain is the order of one epoch of one dataset. It is a value, and safe for concurrent use after
// begin.
type plain struct {
	Order
	number uint64

	whole   permutation // permutes the samples (Shuffled) or the blocks (Blocks)
	block   uint64      // samples of a block; Windows has blocks of 1 sample, which are not shuffled
	blocks  uint64      // number of blocks
	window  uint64      // blocks of a window
	missing uint64      // samples that the last block has fewer than the others
	short   uint64      // position of the last block among the blocks
}

// begin sets e to an epoch of a valid order.
func (e *plain) begin(o *Order, number uint64) {
	*e = plain{Order: *o, number: number}
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
}

// window is a part of an epoch whose samples are shuffled together.
type window struct {
	number  uint64
	first   uint64 // position
	samples uint64
	// short is where the missing samples of the last block would begin among the window's samples
	// in the order of blocks. It is samples if the last block is in another window.
	short   uint64
	shuffle permutation
}

// beginOf returns the position at which a window begins.
func (e *plain) beginOf(number uint64) uint64 {
	block := min(number*e.window, e.blocks)
	first := block * e.block
	if e.short < block {
		first -= e.missing
	}
	return first
}

// windowAt returns the window of a position.
func (e *plain) windowAt(position uint64) window {
	size := e.window * e.block
	number := position / size
	if after := e.short/e.window + 1; number >= after || position >= e.beginOf(after) {
		number = (position + e.missing) / size
	}
	return e.windowOf(number)
}

func (e *plain) windowOf(number uint64) window {
	w := window{number: number, first: e.beginOf(number)}
	w.samples = e.beginOf(number+1) - w.first
	w.short = w.samples
	if e.short/e.window == number {
		w.short = (e.short%e.window+1)*e.block - e.missing
	}
	w.shuffle = newPermutation(w.samples, e.Seed, e.number, ofWindow, number)
	return w
}

// within returns the index at a position of a window.
func (e *plain) within(w *window, position uint64) uint64 {
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

// at returns the index at a position. w is the window of an earlier call, or an empty one; at sets
// it to the window of the position.
func (e *plain) at(position uint64, w *window) uint64 {
	switch e.Kind {
	case Sequential:
		return position
	case Shuffled:
		return e.whole.at(position)
	}
	if position-w.first >= w.samples { // true for an empty window too
		*w = e.windowAt(position)
	}
	return e.within(w, position)
}

// position returns the position of a sample: the inverse of at.
func (e *plain) position(index uint64) uint64 {
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
