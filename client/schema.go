package client

import "github.com/stocached/stocached/shm"

// Part is one field of one sample: its shape, and its items in C order, little-endian. Dims is the
// shape; nil: the field's. Data has the items.
type Part = shm.Part

// Split returns the fields of a sample. The parts point into sample. It returns ErrSchema for a
// sample that does not fit this cache.
func (c *Cache) Split(sample []byte) ([]Part, error) { return c.schema().Split(sample) }

// Join makes a sample from its fields, for Set. A part without Dims has those of the field. It
// returns ErrSchema when number, shapes or sizes do not fit this cache.
func (c *Cache) Join(parts []Part) ([]byte, error) { return c.schema().Join(parts) }

func (c *Cache) schema() *shm.Schema {
	h := c.seg.Header
	return &shm.Schema{Fields: h.Fields, Variable: c.seg.Variable(), SampleBytes: h.SampleBytes}
}
