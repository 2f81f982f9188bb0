package cache

import (
	"time"

	"github.com/stocached/stocached/shm"
)

// ShortOfMemory makes all further checks of this handle find no memory.
func (c *Cache) ShortOfMemory() {
	c.allowance.Usable = func(time.Duration) (shm.Space, error) { return shm.Space{}, nil }
	for k := range uint32(shm.AllowanceWords) {
		c.seg.Grant(k).Store(0)
	}
}
