package loader

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Batch is some samples, in the order of a Loader. It is a small value; copies are the same batch.
//
// The caller owns its memory until Release. After that the caller MUST NOT use slices that Indices,
// Data and Sample returned, because another batch reuses them. A batch that is never
// released never changes, and its memory is freed when nothing refers to it. A batch is safe for
// concurrent use. Any goroutine may release it, also after the loop.
type Batch struct {
	b     *buffer
	lease uint64
}

// Release gives the batch's memory back. A second Release does nothing, even if another batch uses
// the memory by then. Release of the batch that came with an error does nothing. All other methods
// of a released batch panic.
func (b Batch) Release() {
	if b.b != nil && b.b.lease.CompareAndSwap(b.lease, b.lease+1) {
		b.b.pool.put(b.b)
	}
}

// get returns the buffer of a batch that was not released.
func (b Batch) get() *buffer {
	if b.b == nil {
		panic("loader: use of the empty batch that came with an error: check the error first")
	}
	if b.b.lease.Load() != b.lease {
		panic("loader: use of a batch after its Release")
	}
	return b.b
}

// Len returns the number of samples.
func (b Batch) Len() int { return len(b.get().indices) }

// Real returns the number of samples that are no padding (Ends). They come first.
func (b Batch) Real() int { return b.get().real }

// Hits returns the number of samples that were in the cache.
func (b Batch) Hits() int { return b.get().hits }

// Epoch returns the epoch of the batch.
func (b Batch) Epoch() uint64 { return b.get().epoch }

// Indices returns the indices of the samples.
func (b Batch) Indices() []int { return b.get().indices }

// Data returns the samples one after the other if all have the same size; else nil.
func (b Batch) Data() []byte { return b.get().rows }

// Sample returns the k-th sample.
func (b Batch) Sample(k int) []byte { return b.get().sample(k) }

// buffer is the memory of a batch, and its state while the loader makes it.
type buffer struct {
	pool  *pool
	lease atomic.Uint64 // counts releases, so that a released Batch is recognised

	// What Batch returns.
	epoch   uint64
	indices []int
	real    int
	hits    int
	rows    []byte   // samples of one size
	samples [][]byte // samples of any size: in packed or memory

	// State of the batch while it is made.
	hit              []bool
	size             int          // bytes of a sample; -1: they differ
	packed           []byte       // hits of any size
	offsets, lengths []uint64     // places in packed
	memory           sampleMemory // for misses of any size
	misses           []int        // positions that are not in the cache
	taken            int          // number of misses that workers have taken; protected by the mutex of its queue
	missIndices      []int        // indices of the misses, for a server
	left             atomic.Int64
	done             chan struct{} // receives a value when left becomes 0

	mu     sync.Mutex // protects the fields below
	failed int        // the first position that failed
	err    error      // its error; nil: no position has failed
}

func newBuffer(p *pool) *buffer {
	return &buffer{pool: p, done: make(chan struct{}, 1), size: p.size}
}

// begin prepares the buffer for n samples.
func (b *buffer) begin(n int) {
	b.indices = resized(b.indices, n)
	b.hit = resized(b.hit, n)
	b.misses = b.misses[:0]
	b.taken, b.hits, b.err = 0, 0, nil
	if b.size >= 0 {
		b.rows = resized(b.rows, n*b.size)
		return
	}
	b.samples, b.offsets, b.lengths = resized(b.samples, n), resized(b.offsets, n), resized(b.lengths, n)
	b.memory.clear()
}

// resized returns a slice of n items with any content. It reuses the memory of s if that is large
// enough.
func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

func (b *buffer) sample(k int) []byte {
	if b.size < 0 {
		return b.samples[k]
	}
	if uint(k) >= uint(len(b.indices)) {
		panic(fmt.Sprintf("loader: sample %d of a batch of %d", k, len(b.indices)))
	}
	return b.rows[k*b.size : (k+1)*b.size : (k+1)*b.size]
}

// place returns the memory for n bytes of the k-th sample.
func (b *buffer) place(k, n int) []byte {
	if b.size < 0 {
		b.samples[k] = b.memory.take(n)
	}
	return b.sample(k)
}

// bytes returns the bytes of all samples.
func (b *buffer) bytes() (n int64) {
	if b.size >= 0 {
		return int64(len(b.rows))
	}
	for _, s := range b.samples {
		n += int64(len(s))
	}
	return n
}

// fail keeps the error of the first position that failed.
func (b *buffer) fail(k int, err error) {
	b.mu.Lock()
	if b.err == nil || k < b.failed {
		b.failed, b.err = k, err
	}
	b.mu.Unlock()
}

// failedBefore says whether a sample before the k-th has failed, so that this one will not be
// delivered.
func (b *buffer) failedBefore(k int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err != nil && b.failed < k
}

// settle says that n more samples were loaded or have failed.
func (b *buffer) settle(n int) {
	if b.left.Add(int64(-n)) == 0 {
		b.done <- struct{}{}
	}
}

// memoryBytes is the size of a block of sampleMemory.
const memoryBytes = 1 << 20

// sampleMemory allocates memory for samples of any size, and frees all of it at once. take is safe
// for concurrent use.
type sampleMemory struct {
	mu     sync.Mutex
	blocks [][]byte
	at     int // the block that take uses
	used   int // bytes used of that block
}

func (r *sampleMemory) take(n int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.at < len(r.blocks) && len(r.blocks[r.at])-r.used < n {
		r.at, r.used = r.at+1, 0
	}
	if r.at == len(r.blocks) {
		r.blocks = append(r.blocks, make([]byte, max(n, memoryBytes)))
	}
	from := r.used
	r.used += n
	return r.blocks[r.at][from:r.used:r.used]
}

func (r *sampleMemory) clear() { r.at, r.used = 0, 0 }

// pool keeps the memory of released batches.
type pool struct {
	size int // bytes of a sample; -1: they differ
	most int // the most buffers that it keeps

	mu   sync.Mutex // protects free
	free []*buffer
}

func (p *pool) get() *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		return newBuffer(p)
	}
	b := p.free[n-1]
	p.free = p.free[:n-1]
	return b
}

func (p *pool) put(b *buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < p.most {
		p.free = append(p.free, b)
	}
}
