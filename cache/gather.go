package cache

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stocached/stocached/shm"
)

const (
	// gatherChunk is the most rows that a goroutine takes at a time: so many that their cache
	// misses overlap. Of a small batch a goroutine takes fewer, so that all goroutines have rows
	// and end together.
	gatherChunk = 8
	// chunksPerThread is the least number of chunks for a goroutine, if there are enough rows.
	chunksPerThread = 4
	// bytesPerThread is the least that pays for another goroutine: a start and a wait cost a few
	// microseconds, this copy 20.
	bytesPerThread = 256 << 10
	// fetched is the number of bytes of a row that fetch loads before the copy. The processor
	// prefetches the rest itself.
	fetched = 256
)

// GatherOptions say how Gather copies. The zero value copies whole samples, one after the other.
type GatherOptions struct {
	Field   string // the name of the only field to copy. "": whole samples
	Stride  int    // bytes from row to row of dst. 0: the bytes of a row
	Hit     []bool // Gather says here of each sample whether it was READY. nil: it does not
	Threads int    // at most so many goroutines copy, fewer for small copies. 0: the caller's only
}

// Gather copies samples of a fixed-size cache, indices[k] to dst[k*Stride:], and returns how many were
// READY. A row is never torn. A row of a miss keeps its bytes, except if the sample changed during
// the copy: then it may hold anything.
//
// Errors: ErrIndex (indices are checked first, nothing was copied), ErrSchema (variable-size cache,
// no such field, a stride below the row's bytes, dst too short), ErrInvalid (Hit too short),
// ErrClosed, ErrCorrupt.
func (c *Cache) Gather(indices []int, dst []byte, o GatherOptions) (int, error) {
	l, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer l.leave()
	g := gathers.Get().(*gather)
	*g = gather{c: c, indices: indices, dst: dst, hit: o.Hit, stride: o.Stride, step: g.step, rowBytes: int(c.sampleBytes)}
	if err := g.checkRows(o.Field); err != nil {
		return 0, g.end(err)
	}
	return g.do(l, o.Threads, g.rowBytes)
}

// GatherPacked copies samples of any size. It copies sample indices[k] to dst[offsets[k]:] if it is
// READY and its length is exactly lengths[k]; see Lengths. It counts and returns errors like
// Gather.
func (c *Cache) GatherPacked(indices []int, dst []byte, offsets, lengths []uint64, hit []bool,
	threads int) (int, error) {
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

// Miss is the length that Lengths writes for a sample that is not READY.
const Miss = 1<<64 - 1

// Lengths writes the current lengths of samples, and Miss for those that are not READY or have an impossible index
// record. It returns how many are READY, and counts no hits. Errors: ErrIndex, ErrInvalid (lengths too short),
// ErrClosed.
func (c *Cache) Lengths(indices []int, lengths []uint64) (int, error) {
	l, err := c.enter()
	if err != nil {
		return 0, err
	}
	defer l.leave()
	if len(lengths) < len(indices) {
		return 0, fmt.Errorf("%w: %d lengths for %d samples", shm.ErrInvalid, len(lengths), len(indices))
	}
	ready := 0
	for k, i := range indices {
		if err := c.checkIndex(i); err != nil {
			return ready, err
		}
		lengths[k] = Miss
		w, m, ok := c.find(uint64(i))
		if _, placed := c.locate(w, c.length(m)); ok && placed {
			lengths[k] = c.length(m)
			ready++
		}
	}
	return ready, nil
}

// gather is the state of one call, shared by its goroutines. A pool keeps gathers, so that a batch
// allocates nothing.
type gather struct {
	c                *Cache
	indices          []int
	dst              []byte
	hit              []bool
	stride           int    // bytes from row to row, for rows of one size
	rowBytes         int    // bytes of a row
	skip             uint64 // bytes of the sample before the field
	packed           bool
	offsets, lengths []uint64
	step             func() // the body of a goroutine, made once: a go statement with arguments allocates

	chunk int          // rows that a goroutine takes at a time
	next  atomic.Int64 // the first row that no goroutine has taken
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

// end drops the references to the caller's memory and returns the gather to the pool.
func (g *gather) end(err error) error {
	step := g.step
	*g = gather{step: step}
	gathers.Put(g)
	return err
}

func (g *gather) checkRows(field string) error {
	c := g.c
	if c.variable {
		return fmt.Errorf("%w: samples of a variable-size cache have no common row; use Lengths and GatherPacked",
			shm.ErrSchema)
	}
	if field != "" {
		fields := c.seg.Header.Fields
		k := slices.IndexFunc(fields, func(f shm.Field) bool { return f.Name == field })
		if k < 0 {
			names := make([]string, len(fields))
			for k, f := range fields {
				names[k] = f.Name
			}
			return fmt.Errorf("%w: no field %q; the cache has %q", shm.ErrSchema, field, names)
		}
		g.skip, g.rowBytes = fields[k].Offset, int(fields[k].Bytes)
	}
	if g.stride == 0 {
		g.stride = g.rowBytes
	}
	if g.stride < g.rowBytes {
		return fmt.Errorf("%w: rows of %d bytes with a stride of %d", shm.ErrSchema, g.rowBytes, g.stride)
	}
	if n := len(g.indices); n > 0 && (len(g.dst) < g.rowBytes || (len(g.dst)-g.rowBytes)/max(g.stride, 1) < n-1) {
		return fmt.Errorf("%w: %d rows of %d bytes with a stride of %d do not fit into the %d bytes of dst",
			shm.ErrSchema, n, g.rowBytes, g.stride, len(g.dst))
	}
	return g.checkIndices()
}

func (g *gather) checkPacked() (mean int, err error) {
	n := len(g.indices)
	if len(g.offsets) < n || len(g.lengths) < n {
		return 0, fmt.Errorf("%w: %d offsets and %d lengths for %d samples", shm.ErrInvalid, len(g.offsets),
			len(g.lengths), n)
	}
	var total uint64
	for k := range n {
		o, b := g.offsets[k], g.lengths[k]
		if b == Miss {
			continue
		}
		if o > uint64(len(g.dst)) || b > uint64(len(g.dst))-o {
			return 0, fmt.Errorf("%w: row %d of %d bytes at %d does not fit into the %d bytes of dst",
				shm.ErrSchema, k, b, o, len(g.dst))
		}
		total += b
	}
	return int(total) / max(n, 1), g.checkIndices()
}

func (g *gather) checkIndices() error {
	if g.hit != nil && len(g.hit) < len(g.indices) {
		return fmt.Errorf("%w: %d hits for %d samples", shm.ErrInvalid, len(g.hit), len(g.indices))
	}
	for _, i := range g.indices {
		if err := g.c.checkIndex(i); err != nil {
			return err
		}
	}
	return nil
}

// do copies the rows and counts hits and misses.
func (g *gather) do(l *stripe, threads, rowBytes int) (int, error) {
	n := len(g.indices)
	threads = max(min(threads, n, n*rowBytes/bytesPerThread), 1)
	g.chunk = min(max(n/(threads*chunksPerThread), 1), gatherChunk)
	for range threads - 1 {
		g.wait.Add(1)
		go g.step()
	}
	g.rows()
	g.wait.Wait()
	hits := int(g.hits.Load())
	if err := g.fault.Load(); err != nil {
		l.count(hits, 0)
		return hits, g.end(*err)
	}
	l.count(hits, n-hits)
	return hits, g.end(nil)
}

// rows copies chunks until none is left.
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

// fetch loads the index words and the first cache lines of a chunk's samples. Small samples in
// random order miss the processor's cache at both. fetch lets the misses of a chunk overlap; the
// copies alone would wait for one after the other.
func (g *gather) fetch(first, last int) {
	c, sum := g.c, byte(0)
	for _, i := range g.indices[first:last] {
		c.seg.Word(uint64(i)).Load()
	}
	if c.chains {
		return // their first bytes are the last of a walk
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

// fail keeps the first error. It is a function, so that only an error costs an allocation.
func (g *gather) fail(err error) { g.fault.CompareAndSwap(nil, &err) }

// row copies one sample or its field, and checks after the copy that the sample has not changed.
func (g *gather) row(k int) (bool, error) {
	c, sample := g.c, uint64(g.indices[k])
	record := c.indexRecord(sample)
	for range copyTries {
		w, m, ok := record.load()
		if !ok {
			return false, c.checkStates(sample, w)
		}
		length := c.length(m)
		matches := !g.packed || length == g.lengths[k]
		offset, placed := c.locate(w, length)
		switch {
		case !placed || !matches:
		case c.chains:
			placed = c.copyChain(g.dst[g.offsets[k]:][:length], w)
		case g.packed:
			copyBytes(g.dst[g.offsets[k]:], c.seg.Bytes(offset, length))
		default:
			copyBytes(g.dst[k*g.stride:], c.seg.Bytes(offset+g.skip, uint64(g.rowBytes)))
		}
		if record.unchanged(w, m) {
			if !placed {
				return false, c.corruptWord(sample, w, m)
			}
			if c.references && matches {
				slot, now := c.layout.Place(w)-1, c.now()
				if reference := c.seg.Reference(slot); !c.hits.Settled(reference, sample, now) {
					c.seg.SetReference(slot, c.hits.After(reference, sample, now))
				}
			}
			return matches, nil
		}
		if placed && matches {
			c.count(shm.Retried, 1)
		}
	}
	return false, nil
}
