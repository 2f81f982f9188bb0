package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"go.uber.org/goleak"
)

// memory is a source whose reads a test can count, hold and fail.
type memory struct {
	samples, bytes int
	fingerprint    string
	latency        time.Duration
	reads          []atomic.Int32 // reads begun, of each sample
	cancelled      atomic.Int32   // reads that their context ended
	onRead         func(i int)    // called when a read begins; nil: not called
	variable       bool           // declares samples of variable size: see size
	formats        bool           // formats in source.Info
	notes          []source.Note  // notes in source.Info

	mu    sync.Mutex
	gate  map[int]chan struct{} // reads of these samples wait for it
	fails map[int]error
}

func newMemory(samples, bytes int) *memory {
	return &memory{samples: samples, bytes: bytes, fingerprint: "memory-1", reads: make([]atomic.Int32, samples),
		gate: map[int]chan struct{}{}, fails: map[int]error{}}
}

func (m *memory) Info() source.Info {
	dims := []uint64{uint64(m.bytes)}
	if m.variable {
		dims[0] = shm.VariableDim
	}
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: dims}}, m.variable)
	if err != nil {
		panic(err)
	}
	return source.Info{Kind: "memory", Samples: m.samples, Schema: schema, Fingerprint: m.fingerprint, Formats: m.formats, Notes: m.notes}
}

func (m *memory) Size(i int) (int, error) { return m.size(i), nil }

// size returns the bytes of a sample: m.bytes, or between an eighth and all of it.
func (m *memory) size(i int) int {
	if !m.variable {
		return m.bytes
	}
	return m.bytes - i*i*7919%(7*m.bytes/8)
}

func (m *memory) Read(ctx context.Context, i int, dst []byte) (int, error) {
	m.reads[i].Add(1)
	if m.onRead != nil {
		m.onRead(i)
	}
	m.mu.Lock()
	gate, failure := m.gate[i], m.fails[i]
	m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			m.cancelled.Add(1)
			return 0, context.Cause(ctx)
		}
	}
	if m.latency > 0 {
		time.Sleep(m.latency)
	}
	return copy(dst, sourcetest.Content(i, m.size(i))), failure
}

func (m *memory) Where(i int) string { return fmt.Sprintf("memory %d", i) }
func (m *memory) Close() error       { return nil }

// hold makes reads of a sample wait until release is called.
func (m *memory) hold(t *testing.T, i int) (release func()) {
	gate := make(chan struct{})
	m.mu.Lock()
	m.gate[i] = gate
	m.mu.Unlock()
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return release
}

func (m *memory) begun(i int) int { return int(m.reads[i].Load()) }

func (m *memory) total() (n int) {
	for i := range m.reads {
		n += m.begun(i)
	}
	return n
}

// options of a server with one cache over a source.
func options(t testing.TB, m *memory, c server.CacheOptions) server.Options {
	t.Helper()
	if c.Name == "" {
		c.Name = "pets"
	}
	if c.Dir == "" {
		c.Dir = tmpfs.Folder(t)
	}
	o := server.Options{Caches: []server.CacheOptions{c}, SocketsDir: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	return server.WithSource(o, func(context.Context, source.Settings) (source.Source, error) { return m, nil })
}

// run runs a server until stop is called, which checks that it ends.
func run(t testing.TB, o server.Options) (s *server.Server, stop func()) {
	t.Helper()
	s = fatal.Value(server.New(context.Background(), o))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	return s, func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the server does not end")
		}
	}
}

// start runs a server until the test ends, or stop is called. Then no goroutine of it is left.
func start(t testing.TB, o server.Options) (s *server.Server, stop func()) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	s, end := run(t, o)
	stop = sync.OnceFunc(func() {
		end()
		goleak.VerifyNone(t, leaks)
	})
	t.Cleanup(stop)
	return s, stop
}

// view attaches a client to a segment.
func view(t *testing.T, seg *shm.Segment) *cache.Cache {
	t.Helper()
	c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// wantReady checks that the cache has the sample with the right bytes.
func wantReady(t *testing.T, c *cache.Cache, i, n int) {
	t.Helper()
	if got, hit, err := c.View(i); !hit || err != nil || !bytes.Equal(got, sourcetest.Content(i, n)) {
		t.Errorf("sample %d: hit %v, %v, %d bytes", i, hit, err, len(got))
	}
}

// upTo returns the indices 0..n-1.
func upTo(n int) (indices []int64) {
	for i := range int64(n) {
		indices = append(indices, i)
	}
	return indices
}
