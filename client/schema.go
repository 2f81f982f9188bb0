package client

import (
	"slices"

	"github.com/stocached/stocached/shm"
)

// Part is one field of one sample: its shape, and its items in C order, little-endian.
type Part = shm.Part

// Fields returns the schema: what a sample is made of.
func (c *Cache) Fields() []Field { return slices.Clone(c.seg.Header.Fields) }

// Split takes a sample apart into its fields. The parts point into sample. ErrSchema when it is no sample of this cache.
func (c *Cache) Split(sample []byte) ([]Part, error) { return c.schema().Split(sample) }

// Join makes a sample of its fields, for Set; a part without Dims has the field's own. ErrSchema when their number, shapes or sizes are not those of this cache.
func (c *Cache) Join(parts []Part) ([]byte, error) { return c.schema().Join(parts) }

func (c *Cache) schema() *shm.Schema {
	h := c.seg.Header
	return &shm.Schema{Fields: h.Fields, Variable: c.seg.Variable(), SampleBytes: h.SampleBytes}
}
