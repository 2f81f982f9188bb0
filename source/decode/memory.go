package decode

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// memory bounds how many bytes readers take together. What was given back is garbage until the collector has run: it counts until then. Readers take turns in the order in which they came.
type memory struct {
	limit int64

	mu      sync.Mutex // protects what follows
	used    int64
	garbage int64
	waiting []*turn
}

// turn is a reader that waits.
type turn struct {
	bytes int64
	come  chan struct{} // closed when it has its bytes
}

// acquire takes n bytes, at most limit, when they are free. The cause of ctx.
func (m *memory) acquire(ctx context.Context, n int64) error {
	m.mu.Lock()
	if len(m.waiting) == 0 && m.take(n) {
		m.mu.Unlock()
		return nil
	}
	t := &turn{n, make(chan struct{})}
	m.waiting = append(m.waiting, t)
	m.mu.Unlock()
	select {
	case <-t.come:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := slices.Index(m.waiting, t); k >= 0 {
		m.waiting = slices.Delete(m.waiting, k, k+1)
	} else {
		m.used -= n // its turn came meanwhile
	}
	m.serve()
	return context.Cause(ctx)
}

// take takes n bytes if they are free. With mu held.
func (m *memory) take(n int64) bool {
	if m.used+n > m.limit {
		return false
	}
	if m.used+m.garbage+n > m.limit {
		runtime.GC()
		m.garbage = 0
	}
	m.used += n
	return true
}

// release gives back n bytes that nobody refers to any more.
func (m *memory) release(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	m.garbage += n
	m.serve()
}

// serve lets those go on who wait and whose bytes are free. With mu held.
func (m *memory) serve() {
	for len(m.waiting) > 0 && m.take(m.waiting[0].bytes) {
		close(m.waiting[0].come)
		m.waiting = slices.Delete(m.waiting, 0, 1)
	}
}
