package client

import (
	"slices"

	"github.com/stocached/stocached/shm"
)

// Info says what a cache is. It never changes.
type Info struct {
	Samples     int     // samples of the dataset
	SampleBytes int     // bytes of each sample; in a variable-size cache, of the largest that it accepts
	Fields      []Field // schema: the fields of a sample
	Variable    bool    // samples differ in size
	Slots       int     // how many samples fit; 0 in a variable-size cache, where the number depends on their sizes

	// Evicts: a Set into a full cache may give the space of another sample to its own. Then a sample may be gone at
	// any time, and the cache gives out no views.
	Evicts   bool
	ReadOnly bool // this handle may only read. Its reads are not counted

	// Path is where the cache was created or found, for Attach in another process; "" for a cache without a name.
	Path string
	// FD is the descriptor of the cache. The handle keeps it: pass it to another process, and do not write, lock or
	// close it. AttachFD in that process attaches with it, also to a cache without a name.
	FD int

	// Decode says how to make pictures of the files that a server keeps in the first field (docs/spec/stores.md,
	// In a server). "": samples are as they lie.
	Decode string
	// Programs: programs load the samples of the cache (a source of the kind none). Then a Served knows which samples
	// other programs and machines have.
	Programs bool
}

// Info returns what the cache is. The caller owns the slice of fields.
func (c *Cache) Info() Info {
	h := c.seg.Header
	return Info{Samples: c.c.Samples(), SampleBytes: c.sampleBytes(), Fields: slices.Clone(h.Fields),
		Variable: c.seg.Variable(), Slots: int(c.seg.SampleSlots()), Evicts: c.c.Evicts(), ReadOnly: c.c.ReadOnly(),
		Path: c.seg.Path(), FD: c.seg.FD(), Decode: h.Decode, Programs: c.programs()}
}

func (c *Cache) programs() bool { return c.seg.Header.Flags&shm.FlagPrograms != 0 }

func (c *Cache) sampleBytes() int { return int(c.seg.Header.SampleBytes) }
