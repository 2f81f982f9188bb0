package source

import (
	"io"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// OpenFiles keeps the files open that were read last: at most as many as were asked for, and those that are being read beside them. A file that has to leave while it is read is
// closed by its last reader. Safe for any number of goroutines.
type OpenFiles[Key comparable, F io.Closer] struct {
	mu   sync.Mutex // protects kept, and users and left of all files
	kept *simplelru.LRU[Key, *Open[F]]
}

// Open is an open file.
type Open[F io.Closer] struct {
	File  F
	users int  // between Get or Put, and Release
	left  bool // it is kept no longer
}

// NewOpenFiles keeps at most so many files; at least 1.
func NewOpenFiles[Key comparable, F io.Closer](most int) *OpenFiles[Key, F] {
	kept, err := simplelru.NewLRU(most, func(_ Key, o *Open[F]) {
		o.left = true
		o.closeIfUnused()
	})
	if err != nil {
		panic(err) // it refuses nothing but a size below 1
	}
	return &OpenFiles[Key, F]{kept: kept}
}

// closeIfUnused closes a file that is neither kept nor read. With mu held.
func (o *Open[F]) closeIfUnused() {
	if o.left && o.users == 0 {
		_ = o.File.Close() // it was opened for reading: no data can be lost
	}
}

// Get returns the file of a key; nil: it is not kept. The caller MUST release it.
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

// Put keeps a file that was opened, and returns it. If another goroutine has put one first, Put closes this file and returns that one. The caller MUST release it.
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

// Drop keeps a file no longer, unless another one is kept for its key by now.
func (c *OpenFiles[Key, F]) Drop(key Key, o *Open[F]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, ok := c.kept.Peek(key); ok && now == o {
		c.kept.Remove(key)
	}
}

// Clear keeps nothing any longer, and returns how many files it kept.
func (c *OpenFiles[Key, F]) Clear() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.kept.Len()
	c.kept.Purge()
	return n
}
