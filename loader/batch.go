package loader

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Batch is what a Loader hands out: some samples, in its order. It is a small value, to be passed on as it is; copies are the same batch.
//
// Its memory is the caller's until Release, which gives it back for another batch: slices that Indices, Data and Sample returned MUST NOT be used after that. A batch that is never
// released never changes, and costs memory of its own until nothing refers to it. A batch may be used by many goroutines, and released by any one of them, also after the loop.
type Batch struct {
	b     *buffer
	lease uint64
}

// Release gives the batch's memory back. It is an error of nobody to release a batch twice, or one that came with an error: the second time does nothing, even if its memory has become
// another batch by then. All other methods of a released batch panic.
func (b Batch) Release() {
	if b.b != nil && b.b.lease.CompareAndSwap(b.lease, b.lease+1) {
		b.b.pool.put(b.b)
	}
}

// get returns the buffer of the batch, while the caller has it.
func (b Batch) get() *buffer {
	if b.b == nil {
		panic("loader: use of a batch that is none: look at the error that came with it first")
	}
	if b.b.lease.Load() != b.lease {
		panic("loader: use of a batch after its Release")
	}
	return b.b
}

// Len returns how many samples there are.
func (b Batch) Len() int { return len(b.get().indices) }

// Real returns how many of them are no padding (Ends): the first ones.
func (b Batch) Real() int { return b.get().real }

// Hits returns how many of them were in the cache.
func (b Batch) Hits() int { return b.get().hits }

// Epoch is the one that the batch belongs to.
func (b Batch) Epoch() uint64 { return b.get().epoch }

// Indices returns the indices of the samples.
func (b Batch) Indices() []int { return b.get().indices }

// Data returns the samples one after the other, where all are of one size; else nil.
func (b Batch) Data() []byte { return b.get().rows }

// Sample returns the k-th sample.
func (b Batch) Sample(k int) []byte { return b.get().sample(k) }

// buffer is the memory of a batch, and what happens to it until it is one.
type buffer struct {
	pool  *pool
	lease atomic.Uint64 // counts releases, so that a Batch of an earlier one is known

	// What a Batch shows.
	epoch   uint64
	indices []int
	real    int
	hits    int
	rows    []byte   // samples of one size
	samples [][]byte // of any size: in packed or room

	// How it becomes one.
	hit              []bool
	size             int      // of a sample; -1: they differ
	packed           []byte   // hits of any size
	offsets, lengths []uint64 // of these
	room             room     // for misses of any size
	misses           []int    // positions that are not in the cache
	taken            int      // of these, by workers; protected by the mutex of the queue that it is in
	wanted           []int    // indices of the misses, for a server
	left             atomic.Int64
	done             chan struct{} // has something in it when left has come to 0

	mu     sync.Mutex // protects what follows
	failed int        // the first position that failed
	err    error      // of it; nil: none has
}

func newBuffer(p *pool) *buffer {
	return &buffer{pool: p, done: make(chan struct{}, 1), size: p.size}
}

// begin makes room for n samples.
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
	b.room.clear()
}

// resized returns a slice of n items, in the memory of s if that is enough. What they hold is anything.
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

// place returns where n bytes of the k-th sample go.
func (b *buffer) place(k, n int) []byte {
	if b.size < 0 {
		b.samples[k] = b.room.take(n)
	}
	return b.sample(k)
}

// bytes returns how many there are of the samples.
func (b *buffer) bytes() (n int64) {
	if b.size >= 0 {
		return int64(len(b.rows))
	}
	for _, s := range b.samples {
		n += int64(len(s))
	}
	return n
}

// fail keeps the error of the first position that has one.
func (b *buffer) fail(k int, err error) {
	b.mu.Lock()
	if b.err == nil || k < b.failed {
		b.failed, b.err = k, err
	}
	b.mu.Unlock()
}

// failedBefore says whether a sample before the k-th failed, so that this one will not be delivered.
func (b *buffer) failedBefore(k int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err != nil && b.failed < k
}

// settle says that n more samples have come, or failed.
func (b *buffer) settle(n int) {
	if b.left.Add(int64(-n)) == 0 {
		b.done <- struct{}{}
	}
}

// roomBytes is how much is taken at a time for samples of any size.
const roomBytes = 1 << 20

// room hands out memory for samples of any size, and has all of it back at once. Safe for many goroutines.
type room struct {
	mu     sync.Mutex
	blocks [][]byte
	at     int // block that is handed out from
	used   int // of it
}

func (r *room) take(n int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.at < len(r.blocks) && len(r.blocks[r.at])-r.used < n {
		r.at, r.used = r.at+1, 0
	}
	if r.at == len(r.blocks) {
		r.blocks = append(r.blocks, make([]byte, max(n, roomBytes)))
	}
	from := r.used
	r.used += n
	return r.blocks[r.at][from:r.used:r.used]
}

func (r *room) clear() { r.at, r.used = 0, 0 }

// pool keeps memory of batches that were released.
type pool struct {
	size int // of a sample; -1: they differ
	most int // kept

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
