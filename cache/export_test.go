package cache

import (
	"time"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/memory"
)

// ShortOfMemory makes all further checks of this handle find no memory.
func (c *Cache) ShortOfMemory() {
	c.allowance.Usable = func(time.Duration) (memory.Space, error) { return memory.Space{}, nil }
	for k := range uint32(shm.AllowanceWords) {
		c.seg.Grant(k).Store(0)
	}
}

// PlentyOfMemory makes this handle find memory without a look at the kernel's files.
func (c *Cache) PlentyOfMemory() {
	c.allowance.Usable = func(time.Duration) (memory.Space, error) { return memory.Space{Left: 1 << 40}, nil }
}
