package cache

import (
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync/atomic"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
)

// copyTries is how often a copy is made again because the sample changed during the copy. After
// that it is a miss. Only a clear, an overwrite or an eviction changes a sample, so even two changes
// in a row are rare.
const copyTries = 16

// View returns a sample as memory of the cache, and whether it was READY. The package comment,
// Views, says what the bytes may show and how long. The caller MUST NOT write to the slice. Errors:
// ErrIndex, ErrInvalid in a cache that evicts, ErrClosed, ErrCorrupt.
func (c *Cache) View(i int) ([]byte, bool, error) {
	c.seg.KeepWords() // instead of enter, so Close need not wait: a view touches only words, and c keeps the segment
	if c.closed.Load() {
		return nil, false, errClosed
	}
	if uint64(i) >= c.samples {
		return nil, false, c.checkIndex(i)
	}
	w := shm.Word(c.seg.Word(uint64(i)).Load())
	if offset, ok := c.slotOf(w); ok && c.rule == nil && w.State() == shm.Ready {
		view := c.seg.Bytes(offset, c.sampleBytes) // in a fixed-size cache the word alone is enough
		c.stripeNow().hits.Add(1)
		runtime.KeepAlive(c)
		return view, true, nil
	}
	return c.view(uint64(i), w)
}

// view is the part of View for samples of their own sizes, misses and errors.
func (c *Cache) view(sample uint64, w shm.Word) ([]byte, bool, error) {
	defer runtime.KeepAlive(c)
	m, length, ready := shm.Meta(0), c.sampleBytes, w.State() == shm.Ready
	switch {
	case c.evicts():
		return nil, false, errNoViews
	case c.variable:
		w, m, ready = c.find(sample)
		length = c.length(m)
	}
	if !ready {
		err := c.checkStates(sample, w)
		if err == nil {
			c.stripeNow().misses.Add(1)
		}
		return nil, false, err
	}
	offset, ok := c.locate(w, length)
	if !ok {
		return nil, false, c.corruptWord(sample, w, m)
	}
	view := c.seg.Bytes(offset, length)
	c.stripeNow().hits.Add(1)
	return view, true, nil
}

// errNoViews: the bytes of a view would become those of another sample.
var errNoViews = fmt.Errorf("%w: a cache that evicts gives out no views; use Get or Gather", shm.ErrInvalid)

// refuseRead ends a read of a closed cache or of an invalid index.
func (c *Cache) refuseRead(l *stripe, i int) error {
	defer l.leave()
	if c.closed.Load() {
		return errClosed
	}
	return c.checkIndex(i)
}

// find loads a consistent pair of a sample's words, and says whether it is READY.
func (c *Cache) find(sample uint64) (shm.Word, shm.Meta, bool) {
	for r := c.indexRecord(sample); ; {
		w, m, ok := r.load()
		if !ok || r.unchanged(w, m) {
			return w, m, ok
		}
	}
}

// indexRecord holds the two words of a sample in the index.
type indexRecord struct{ word, meta *atomic.Uint64 }

func (c *Cache) indexRecord(sample uint64) indexRecord {
	return indexRecord{c.seg.Word(sample), c.seg.Meta(sample)}
}

// load begins a read: it loads the two words of a sample, and says whether the sample is READY. The
// words belong together only if unchanged returns true at the end of the read.
func (r indexRecord) load() (shm.Word, shm.Meta, bool) {
	w := shm.Word(r.word.Load())
	if w.State() != shm.Ready {
		return w, 0, false
	}
	fault.At("find.word")
	return w, shm.Meta(r.meta.Load()), true
}

// unchanged ends a read: it says whether the sample stayed the same. It loads the word first;
// docs/spec/protocol.md, Memory order, gives the reason.
func (r indexRecord) unchanged(w shm.Word, m shm.Meta) bool {
	shm.LoadFence() // a copy's loads come before these
	return r.word.Load() == uint64(w) && r.meta.Load() == uint64(m)
}

// length returns the bytes of a READY sample. The caller checks it before use.
func (c *Cache) length(m shm.Meta) uint64 {
	if c.variable {
		return uint64(m.Content())
	}
	return c.sampleBytes
}

// checkStates returns an error for an impossible state, and nil for a miss.
func (c *Cache) checkStates(sample uint64, w shm.Word) error {
	if !c.possible(w.State()) {
		return c.corruptWord(sample, w, 0)
	}
	return nil
}

// possible says whether a sample of this cache may have that state.
func (c *Cache) possible(s shm.State) bool {
	return s <= shm.Ready || s == shm.Retiring && c.retires
}

// Get copies a sample into dst. It returns its length, and whether it was READY. On a miss dst may
// hold anything. The copy is never torn. Errors: ErrSchema when dst is too short (the first result
// is the length), ErrIndex, ErrClosed, ErrCorrupt.
func (c *Cache) Get(i int, dst []byte) (int, bool, error) {
	l := c.stripeNow()
	l.entered.Add(1)
	if c.closed.Load() || uint64(i) >= c.samples {
		return 0, false, c.refuseRead(l, i)
	}
	n, hit, err := c.copySample(uint64(i), dst, c.references)
	switch {
	case hit:
		l.hit()
	case err == nil:
		l.miss()
	default:
		l.leave()
	}
	return n, hit, err
}

// Copy is Get without counting: for a sample that an earlier call has counted.
func (c *Cache) Copy(i int, dst []byte) (int, bool, error) {
	l := c.stripeNow()
	l.entered.Add(1)
	if c.closed.Load() || uint64(i) >= c.samples {
		return 0, false, c.refuseRead(l, i)
	}
	defer l.leave()
	return c.copySample(uint64(i), dst, false)
}

// ReadOwn returns a copy of a sample of any size, and whether it was READY. read is Get, or Copy, which does not
// count. place returns memory for n bytes. ReadOwn calls it again for a sample that changes during the call: the last
// one counts. It returns the errors of read.
func (c *Cache) ReadOwn(i int, read func(i int, dst []byte) (int, bool, error), place func(n int) []byte) ([]byte, bool, error) {
	var dst []byte
	if !c.variable {
		dst = place(int(c.sampleBytes))
	}
	for {
		n, hit, err := read(i, dst)
		switch {
		case hit && n == len(dst) && dst != nil:
			return dst, true, nil
		case hit: // shorter than the sample for which the memory was
			return append(place(n)[:0], dst[:n]...), true, nil
		case n > len(dst) && errors.Is(err, shm.ErrSchema): // at the next try it may be longer again
			dst = place(n)
		default:
			return nil, false, err
		}
	}
}

// own is the place of ReadOwn in new memory.
func own(n int) []byte { return make([]byte, n) }

// copySample copies a READY sample, and checks after the copy that the sample has not changed.
func (c *Cache) copySample(sample uint64, dst []byte, refer bool) (int, bool, error) {
	record := c.indexRecord(sample)
	for range copyTries {
		w, m, ok := record.load()
		if !ok {
			return 0, false, c.checkStates(sample, w)
		}
		n := c.length(m)
		offset, placed := c.locate(w, n)
		fits := n <= uint64(len(dst))
		reference := -1 // reference of the slot
		if refer {
			if slot := c.layout.Place(w) - 1; slot < c.slots {
				reference = int(c.seg.Reference(slot)) // before the copy, which takes longer than the byte takes to come
			}
		}
		switch {
		case !placed || !fits:
		case c.chains:
			placed = c.copyChain(dst[:n], w)
		case c.seg.OnDisk():
			if err := c.readDisk(sample, record, w, m, dst[:n], offset); err != nil {
				return 0, false, err
			}
		default:
			copyBytes(dst, c.seg.Bytes(offset, n))
		}
		switch {
		case !record.unchanged(w, m):
			if placed && fits {
				c.count(shm.Retried, 1)
			}
		case !placed:
			return 0, false, c.corruptWord(sample, w, m)
		case !fits:
			return int(n), false, fmt.Errorf("%w: sample %d has %d bytes, the buffer has %d", shm.ErrSchema, sample, n, len(dst))
		default:
			if reference >= 0 {
				if now := c.now(); !c.hits.Settled(uint8(reference), sample, now) {
					c.seg.SetReference(c.layout.Place(w)-1, c.hits.After(uint8(reference), sample, now))
				}
			}
			return int(n), true, nil
		}
	}
	return 0, false, nil
}

// readDisk reads a sample of a segment on a disk, and compares its checksum. A sample that changes under way
// is no error: the caller sees it. ErrCorrupt: the file has other bytes than were stored.
func (c *Cache) readDisk(sample uint64, record indexRecord, w shm.Word, m shm.Meta, dst []byte, offset uint64) error {
	want := c.seg.Checksum(sample, m)
	if err := c.seg.ReadPayload(dst, offset); err != nil {
		return err
	}
	if have := crc32.Checksum(dst, shm.Castagnoli); have != want && record.unchanged(w, m) {
		c.count(shm.Corrupt, 1)
		return fmt.Errorf("%w: sample %d has the checksum %#x on the disk, and %#x was stored", shm.ErrCorrupt, sample, have, want)
	}
	return nil
}

// copyBytes is copy with a fault point in the middle, at which a test can stop.
func copyBytes(dst, src []byte) {
	if fault.Enabled {
		half := len(src) / 2
		copy(dst, src[:half])
		fault.At("copy.half")
		dst, src = dst[half:], src[half:]
		defer fault.At("copy.done")
	}
	copy(dst, src)
}

// Peek copies the bytes of a sample's slot into dst, in any state of the sample. Bytes that were
// never written are zeros. It returns whether the sample has a slot: with first-indices each sample
// below slots, else each READY sample. It reads with pread, so that holes stay holes. It counts
// nothing, and the copy may be torn. Errors: ErrSchema for a variable-size cache or a short dst,
// ErrIndex, ErrClosed, ErrSystem.
func (c *Cache) Peek(i int, dst []byte) (int, bool, error) {
	l, err := c.enter()
	if err != nil {
		return 0, false, err
	}
	defer l.leave()
	switch err := c.checkIndex(i); {
	case err != nil:
		return 0, false, err
	case c.variable:
		return 0, false, fmt.Errorf("%w: samples of a variable-size cache have no slots to peek at; use Get", shm.ErrSchema)
	case c.sampleBytes > uint64(len(dst)):
		return int(c.sampleBytes), false, fmt.Errorf("%w: sample %d has %d bytes, the buffer has %d",
			shm.ErrSchema, i, c.sampleBytes, len(dst))
	}
	var offset uint64
	record := c.indexRecord(uint64(i))
	var w shm.Word
	var m shm.Meta
	if c.seg.HasSlotTable() {
		var ok bool
		w, m, ok = c.find(uint64(i))
		if !ok {
			return 0, false, c.checkStates(uint64(i), w)
		}
		if offset, ok = c.locate(w, c.length(m)); !ok {
			return 0, false, c.corruptWord(uint64(i), w, m)
		}
	} else if uint64(i) < c.slots {
		offset = uint64(i) * c.stride
	} else {
		return 0, false, nil
	}
	if err := c.seg.ReadPayload(dst[:c.sampleBytes], offset); err != nil {
		return 0, false, err
	}
	if c.evicts() && !record.unchanged(w, m) {
		return 0, false, nil // the slot may be another sample's now
	}
	return int(c.sampleBytes), true, nil
}
