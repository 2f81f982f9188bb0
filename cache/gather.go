package cache

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/stocached/stocached/shm"
)

const (
	// Whole is the field of Gather that means whole samples.
	Whole = -1
	// gatherChunk is how many rows a goroutine takes at a time at most: enough that taking costs nothing and that their cache misses overlap. Of a small
	// batch it takes fewer, so that all have some and end together.
	gatherChunk = 8
	// turnsPerThread is how many chunks there are for a goroutine, at least, where there are that many rows.
	turnsPerThread = 4
	// bytesPerThread is the least that is worth another goroutine: starting and waiting for one costs a few microseconds, copying this much 20.
	bytesPerThread = 256 << 10
	// fetched is how many bytes of a row are asked for before the rows of its chunk are copied; the processor's own prefetching sees to the rest.
	fetched = 256
)

// Gather copies n samples of a fixed-size cache, row k to dst[k*stride:], and returns how many were READY; rows of misses are left alone. hit[k]
// says which were; it may be nil. With field >= 0 only that field of each. At most threads goroutines copy, fewer when it does not pay; 0 and 1: the caller's only.
// A row is never torn; a row of a miss may hold anything if its sample changed while it was copied.
//
// ErrIndex (nothing was copied: indices are checked first), ErrSchema (variable-size cache, no such field, a stride below the row's bytes, dst too short), ErrInvalid
// (hit too short), ErrClosed, ErrCorrupt.
func (c *Cache) Gather(indices []int, field int, dst []byte, stride int, hit []bool, threads int) (int, error) {
	l, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer l.leave()
	g := gathers.Get().(*gather)
	*g = gather{c: c, indices: indices, dst: dst, hit: hit, stride: stride, step: g.step, rowBytes: int(c.sampleBytes)}
	if err := g.checkRows(field); err != nil {
		return 0, g.end(err)
	}
	return g.do(l, threads, g.rowBytes)
}

// GatherPacked copies samples of any size: sample indices[k] to dst[offsets[k]:], if it is READY and its length is exactly lengths[k]; see Lengths.
// Counted, and errors, as Gather.
func (c *Cache) GatherPacked(indices []int, dst []byte, offsets, lengths []uint64, hit []bool, threads int) (int, error) {
	l, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer l.leave()
	g := gathers.Get().(*gather)
	*g = gather{c: c, indices: indices, dst: dst, hit: hit, offsets: offsets, lengths: lengths, step: g.step, packed: true}
	mean, err := g.checkPacked()
	if err != nil {
		return 0, g.end(err)
	}
	return g.do(l, threads, mean)
}

// Miss is the length that Lengths gives for a sample that is not READY.
const Miss = 1<<64 - 1

// Lengths writes the lengths of samples as they are now, Miss for those that are not READY, and returns how many are. Not counted.
// ErrIndex, ErrInvalid (lengths too short), ErrClosed.
func (c *Cache) Lengths(indices []int, lengths []uint64) (int, error) {
	l, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer l.leave()
	if len(lengths) < len(indices) {
		return 0, fmt.Errorf("%w: room for %d lengths of %d samples", shm.ErrInvalid, len(lengths), len(indices))
	}
	ready := 0
	for k, i := range indices {
		if err := c.checkIndex(i); err != nil {
			return ready, err
		}
		lengths[k] = Miss
		if _, m, ok := c.find(uint64(i)); ok {
			lengths[k] = c.length(m)
			ready++
		}
	}
	return ready, nil
}

// gather is one call under way, shared by its goroutines. They are pooled, so that a batch costs no allocation.
type gather struct {
	c                *Cache
	indices          []int
	dst              []byte
	hit              []bool
	stride           int    // rows of one size: from row to row
	rowBytes         int    // of a row
	skip             uint64 // bytes of the sample before the field
	packed           bool
	offsets, lengths []uint64
	step             func() // runs as a goroutine: made once, because a go statement with arguments allocates

	chunk int          // rows that a goroutine takes at a time
	next  atomic.Int64 // first row nobody has taken
	hits  atomic.Int64
	wait  sync.WaitGroup
	fault atomic.Pointer[error] // the first corrupt sample
}

var gathers = sync.Pool{New: func() any {
	g := new(gather)
	g.step = func() {
		defer g.wait.Done()
		g.rows()
	}
	return g
}}

// end forgets the caller's memory and gives the gather back.
func (g *gather) end(err error) error {
	step := g.step
	*g = gather{step: step}
	gathers.Put(g)
	return err
}

func (g *gather) checkRows(field int) error {
	c := g.c
	if c.variable {
		return fmt.Errorf("%w: samples of a variable-size cache have no common row; use Lengths and GatherPacked", shm.ErrSchema)
	}
	if field != Whole {
		fields := c.seg.Header.Fields
		if field < 0 || field >= len(fields) {
			return fmt.Errorf("%w: field %d, the cache has fields 0 to %d, and %d means whole samples", shm.ErrSchema, field, len(fields)-1, Whole)
		}
		g.skip, g.rowBytes = fields[field].Offset, int(fields[field].Bytes)
	}
	if g.stride < g.rowBytes {
		return fmt.Errorf("%w: rows of %d bytes, %d bytes apart", shm.ErrSchema, g.rowBytes, g.stride)
	}
	if n := len(g.indices); n > 0 && (len(g.dst) < g.rowBytes || (len(g.dst)-g.rowBytes)/max(g.stride, 1) < n-1) {
		return fmt.Errorf("%w: %d rows of %d bytes, %d apart, do not fit the %d bytes of dst", shm.ErrSchema, n, g.rowBytes, g.stride, len(g.dst))
	}
	return g.checkIndices()
}

func (g *gather) checkPacked() (mean int, err error) {
	n := len(g.indices)
	if len(g.offsets) < n || len(g.lengths) < n {
		return 0, fmt.Errorf("%w: %d offsets and %d lengths for %d samples", shm.ErrInvalid, len(g.offsets), len(g.lengths), n)
	}
	var total uint64
	for k := range n {
		o, b := g.offsets[k], g.lengths[k]
		if b == Miss {
			continue
		}
		if o > uint64(len(g.dst)) || b > uint64(len(g.dst))-o {
			return 0, fmt.Errorf("%w: row %d of %d bytes at %d does not fit the %d bytes of dst", shm.ErrSchema, k, b, o, len(g.dst))
		}
		total += b
	}
	return int(total) / max(n, 1), g.checkIndices()
}

func (g *gather) checkIndices() error {
	if g.hit != nil && len(g.hit) < len(g.indices) {
		return fmt.Errorf("%w: room for %d hits of %d samples", shm.ErrInvalid, len(g.hit), len(g.indices))
	}
	for _, i := range g.indices {
		if err := g.c.checkIndex(i); err != nil {
			return err
		}
	}
	return nil
}

// do runs the copies and counts them.
func (g *gather) do(l *stripe, threads, rowBytes int) (int, error) {
	n := len(g.indices)
	threads = max(min(threads, n, n*rowBytes/bytesPerThread), 1)
	g.chunk = min(max(n/(threads*turnsPerThread), 1), gatherChunk)
	for range threads - 1 {
		g.wait.Add(1)
		go g.step()
	}
	g.rows()
	g.wait.Wait()
	hits := int(g.hits.Load())
	if err := g.fault.Load(); err != nil {
		l.tally(hits, 0)
		return hits, g.end(*err)
	}
	l.tally(hits, n-hits)
	return hits, g.end(nil)
}

// rows copies chunk after chunk until none is left.
func (g *gather) rows() {
	n, hits := len(g.indices), 0
	for {
		first := int(g.next.Add(int64(g.chunk))) - g.chunk
		if first >= n {
			break
		}
		last := min(first+g.chunk, n)
		g.fetch(first, last)
		for k := first; k < last; k++ {
			ok, err := g.row(k)
			if err != nil {
				g.fail(err)
			}
			if ok {
				hits++
			}
			if g.hit != nil {
				g.hit[k] = ok
			}
		}
	}
	g.hits.Add(int64(hits))
}

// fetch reads the index words and the first lines of the samples of a chunk. Small samples in a random order miss the processor's cache at both, and their copies
// cannot begin before: all of a chunk at the same time, not one by one.
func (g *gather) fetch(first, last int) {
	c, sum := g.c, byte(0)
	for _, i := range g.indices[first:last] {
		c.seg.Word(uint64(i)).Load()
	}
	for _, i := range g.indices[first:last] {
		w, m, ok := c.indexRecord(uint64(i)).load()
		if !ok || c.length(m) < fetched {
			continue
		}
		if offset, ok := c.locate(w, c.length(m)); ok {
			p := c.seg.Bytes(offset, fetched)
			sum += p[0] + p[64] + p[128] + p[192]
		}
	}
	runtime.KeepAlive(sum)
}

// fail keeps the first error. A function of its own, so that only an error costs an allocation.
func (g *gather) fail(err error) { g.fault.CompareAndSwap(nil, &err) }

// row copies one sample, or its field, and checks afterwards that it was the same all the time.
func (g *gather) row(k int) (bool, error) {
	c, sample := g.c, uint64(g.indices[k])
	record := c.indexRecord(sample)
	for range copyTries {
		w, m, ok := record.load()
		if !ok {
			return false, c.checkStates(sample, w)
		}
		length := c.length(m)
		offset, placed := c.locate(w, length)
		wanted := !g.packed || length == g.lengths[k]
		switch {
		case !placed || !wanted:
		case g.packed:
			copyBytes(g.dst[g.offsets[k]:], c.seg.Bytes(offset, length))
		default:
			copyBytes(g.dst[k*g.stride:], c.seg.Bytes(offset+g.skip, uint64(g.rowBytes)))
		}
		if record.unchanged(w, m) {
			if !placed {
				return false, c.corruptWord(sample, w, m)
			}
			return wanted, nil
		}
		if placed && wanted {
			c.count(shm.Retried, 1)
		}
	}
	return false, nil
}
