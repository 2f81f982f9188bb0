package cache

import "iter"

// Ready iterates over the READY samples in the order of their indices, with a view of each, or a copy
// in a cache that evicts or lies on a disk. It checks each sample just before it yields it, and counts no hits. It ends
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
	if c.evicts() || c.seg.OnDisk() {
		data, hit, _ := c.ReadOwn(int(sample), c.Copy, own) // an error is of this sample only
		return data, hit
	}
	l, err := c.enter()
	if err != nil {
		return nil, false
	}
	defer l.leave()
	w, m, ok := c.find(sample)
	if !ok {
		return nil, false
	}
	length := c.length(m)
	offset, ok := c.locate(w, length)
	if !ok {
		return nil, false
	}
	return c.seg.Bytes(offset, length), true
}
