package cache

import "iter"

// Ready iterates over the READY samples in the order of their indices, with a view of each, or a copy
// in a cache that evicts. It checks each sample just before it yields it, and counts no hits. It ends
// early when the handle is closed. The loop's body may call anything, Close too.
func (c *Cache) Ready() iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for i := range c.samples {
			view, hit := c.viewUncounted(i)
			if c.closed.Load() || hit && !yield(int(i), view) {
				return
			}
		}
	}
}

func (c *Cache) viewUncounted(sample uint64) ([]byte, bool) {
	l, err := c.enter()
	if err != nil {
		return nil, false
	}
	defer l.leave()
	w, m, ok := c.find(sample)
	if !ok {
		return nil, false
	}
	if c.evicts() {
		if c.chains && c.slotsFor(c.length(m)) > c.slots {
			return nil, false
		}
		dst := make([]byte, c.length(m))
		n, hit, err := c.copySample(sample, dst, false)
		return dst[:n], hit && err == nil
	}
	offset, ok := c.locate(w, c.length(m))
	if !ok {
		return nil, false
	}
	return c.seg.Bytes(offset, c.length(m)), true
}
