package source

import (
	"io"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// OpenFiles keeps the last used files open: at most a fixed number, and those of inflight reads
// besides. The last reader of a file that is no longer kept closes it. It is safe for concurrent
// use.
type OpenFiles[Key comparable, F io.Closer] struct {
	mu   sync.Mutex // protects kept, and users and left of all files
	kept *simplelru.LRU[Key, *Open[F]]
}

// Open is an open file.
type Open[F io.Closer] struct {
	File  F
	users int  // calls of Get or Put without Release
	left  bool // the file is no longer kept
}

// NewOpenFiles returns an OpenFiles that keeps at most `most` files; `most` is at least 1.
func NewOpenFiles[Key comparable, F io.Closer](most int) *OpenFiles[Key, F] {
	kept, err := simplelru.NewLRU(most, func(_ Key, o *Open[F]) {
		o.left = true
		o.closeIfUnused()
	})
	if err != nil {
		panic(err) // it fails only for a size below 1
	}
	return &OpenFiles[Key, F]{kept: kept}
}

// closeIfUnused closes a file that is neither kept nor in use. The caller holds mu.
func (o *Open[F]) closeIfUnused() {
	if o.left && o.users == 0 {
		_ = o.File.Close() // the file was opened for reading: no data can be lost
	}
}

// Get returns the file of a key, or nil if it is not kept. The caller MUST release it.
func (c *OpenFiles[Key, F]) Get(key Key) *Open[F] {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.kept.Get(key)
	if !ok {
		return nil
	}
	o.users++
	return o
}

// Put keeps an opened file and returns it. If another goroutine has put a file for the key first,
// Put closes this one and returns the other. The caller MUST release it.
func (c *OpenFiles[Key, F]) Put(key Key, file F) *Open[F] {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.kept.Get(key)
	if ok {
		_ = file.Close()
	} else {
		o = &Open[F]{File: file}
		c.kept.Add(key, o)
	}
	o.users++
	return o
}

// Release ends the use of a file.
func (c *OpenFiles[Key, F]) Release(o *Open[F]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o.users--
	o.closeIfUnused()
}

// Drop stops keeping a file, unless another file is kept for its key.
func (c *OpenFiles[Key, F]) Drop(key Key, o *Open[F]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, ok := c.kept.Peek(key); ok && now == o {
		c.kept.Remove(key)
	}
}

// Clear stops keeping all files, and returns their number.
func (c *OpenFiles[Key, F]) Clear() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.kept.Len()
	c.kept.Purge()
	return n
}
