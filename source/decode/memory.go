package decode

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// memory bounds the bytes that all readers use together. Released bytes are garbage, and count
// until the collector has run. Readers get their bytes in the order in which they asked.
type memory struct {
	limit int64

	mu      sync.Mutex // protects the fields below
	used    int64
	garbage int64
	waiting []*waiter
}

// waiter is a reader that waits.
type waiter struct {
	bytes int64
	ready chan struct{} // closed when the reader has its bytes
}

// acquire waits until n bytes, at most limit, are free, and takes them. It returns the cause of
// ctx.
func (m *memory) acquire(ctx context.Context, n int64) error {
	m.mu.Lock()
	if len(m.waiting) == 0 && m.take(n) {
		m.mu.Unlock()
		return nil
	}
	t := &waiter{n, make(chan struct{})}
	m.waiting = append(m.waiting, t)
	m.mu.Unlock()
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := slices.Index(m.waiting, t); k >= 0 {
		m.waiting = slices.Delete(m.waiting, k, k+1)
	} else {
		m.used -= n // serve has given it the bytes
	}
	m.serve()
	return context.Cause(ctx)
}

// take takes n bytes if they are free. The caller holds mu.
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

// release gives back n bytes to which no references are left. garbage of them are in this process.
func (m *memory) release(n, garbage int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	m.garbage += garbage
	m.serve()
}

// serve gives bytes to waiting readers while enough are free. The caller holds mu.
func (m *memory) serve() {
	for len(m.waiting) > 0 && m.take(m.waiting[0].bytes) {
		close(m.waiting[0].ready)
		m.waiting = slices.Delete(m.waiting, 0, 1)
	}
}
