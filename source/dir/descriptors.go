package dir

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sys/unix"
)

// descriptors are open files that were read last. There are at most as many as were asked for, and those beside them that are being read: one that has to leave
// while somebody reads it is closed by its last reader. Safe for any number of goroutines.
type descriptors struct {
	mu   sync.Mutex                       // guards kept, and users and left of all descriptors
	kept *simplelru.LRU[int, *descriptor] // by sample
}

// descriptor is an open file.
type descriptor struct {
	fd    int
	users int  // between get or put, and release
	left  bool // it is kept no longer
}

func newDescriptors(most int) *descriptors {
	// It refuses nothing but a size below 1.
	kept, err := simplelru.NewLRU(most, func(_ int, d *descriptor) {
		d.left = true
		d.closeIfUnused()
	})
	if err != nil {
		panic(err)
	}
	return &descriptors{kept: kept}
}

// closeIfUnused closes what is neither kept nor read; mu is held.
func (d *descriptor) closeIfUnused() {
	if d.left && d.users == 0 {
		unix.Close(d.fd) // opened for reading: there is nothing that could be lost
	}
}

// get returns the open file of a sample, nil when it is not kept. The caller MUST release it.
func (c *descriptors) get(sample int) *descriptor {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.kept.Get(sample)
	if !ok {
		return nil
	}
	d.users++
	return d
}

// put keeps a file that was opened, and returns it; or the one that another goroutine put first, and closes this. The caller MUST release it.
func (c *descriptors) put(sample, fd int) *descriptor {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.kept.Get(sample)
	if ok {
		unix.Close(fd)
	} else {
		d = &descriptor{fd: fd}
		c.kept.Add(sample, d)
	}
	d.users++
	return d
}

// release ends the use of a file.
func (c *descriptors) release(d *descriptor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.users--
	d.closeIfUnused()
}

// drop keeps a file no longer, unless another one is kept for its sample by now.
func (c *descriptors) drop(sample int, d *descriptor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, ok := c.kept.Peek(sample); ok && now == d {
		c.kept.Remove(sample)
	}
}

// clear keeps nothing any longer, and returns how many files it kept.
func (c *descriptors) clear() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.kept.Len()
	c.kept.Purge()
	return n
}
