package server_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"

	"go.uber.org/goleak"
)

// deaf is a source whose held reads ignore their context, as if they hung in the kernel. Close
// waits for them.
type deaf struct {
	*memory
	reads sync.WaitGroup
}

func (d *deaf) Read(_ context.Context, i int, dst []byte) (int, error) {
	d.reads.Add(1)
	defer d.reads.Done()
	return d.memory.Read(context.Background(), i, dst)
}

func (d *deaf) Close() error { d.reads.Wait(); return nil }

// hanging returns options of a server with a cache over a deaf source and one over another.
func hanging(t *testing.T, samples, parallel int) (o server.Options, d *deaf) {
	t.Helper()
	server.SetJanitorPause(t, 50*time.Millisecond)
	d = &deaf{memory: newMemory(samples, 100)}
	other := newMemory(10, 100)
	dir := tmpfs.Folder(t)
	o = options(t, d.memory, server.CacheOptions{Dir: dir, Parallel: parallel, ReadTimeout: time.Second,
		Source: source.Settings{"deaf": true}})
	o.Caches = append(o.Caches, server.CacheOptions{Name: "other", Dir: dir, Parallel: 1})
	return server.WithSource(o, func(_ context.Context, settings source.Settings) (source.Source, error) {
		if settings["deaf"] == true {
			return d, nil
		}
		return other, nil
	}), d
}

// Ensure that clients get a failure for a read that hangs, that other samples and caches are
// served, that its late result is stored, and that it is counted.
func TestReadThatHangs(t *testing.T) {
	o, d := hanging(t, 20, 1)
	s, _ := start(t, o)
	release := d.hold(t, 3)
	p, q := dial(t, s.Dir()), dial(t, s.Dir())
	number, seg := p.attach("pets")
	otherNumber, _ := q.attach("other")
	id := p.startFetch(number, 3, 4, 5, 3)
	fatal.Until(t, "it is being read", func() bool { return d.begun(3) == 1 })
	q.wantFetched(otherNumber, 1, 2)
	began := time.Now()
	a := p.answer(id, 4)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, position := range []uint32{0, 3} {
		if f := a.failures[position]; f.Code != control.CodeRead ||
			!strings.Contains(f.Text, "sample 3 (memory 3): the read took more than 1s") ||
			!strings.Contains(f.Text, "read_timeout") {
			t.Errorf("%+v", f)
		}
	}
	expect.Equal(t, len(a.failures), 2, "%+v", a)
	c := view(t, seg)
	wantReady(t, c, 4, 100)
	wantReady(t, c, 5, 100)
	p.wantFetched(number, 6, 7, 8)
	wantMetrics(t, s, `stocached_stuck_reads{cache="pets"} 1`,
		`stocached_source_errors_total{cache="pets",kind="unavailable"} 1`, `stocached_stuck_reads{cache="other"} 0`)
	release()
	fatal.Until(t, "it has returned",
		func() bool {
			_, text := ask(t, s, "/metrics")
			return strings.Contains(text, `stocached_stuck_reads{cache="pets"} 0`+"\n")
		})
	wantReady(t, c, 3, 100)
}

// Ensure that the number of hanging reads is bounded. Beyond it, clients get a failure at once, and
// after the reads return all is served again.
func TestReadsThatHangAreBounded(t *testing.T) {
	const samples, parallel = 300, 32
	o, d := hanging(t, samples, parallel)
	s, _ := start(t, o)
	var releases []func()
	for i := range samples {
		releases = append(releases, d.hold(t, i))
	}
	before := runtime.NumGoroutine()
	p, number, seg := join(t, s)
	began := time.Now()
	a := p.fetch(number, 0, shuffled(samples)...)
	if took := time.Since(began); len(a.failures) != samples || took > 20*time.Second {
		t.Errorf("%d failed after %v", len(a.failures), took)
	}
	atOnce := 0
	for _, f := range a.failures {
		expect.Equal(t, f.Code, control.CodeRead, "%+v", f)
		if strings.Contains(f.Text, "reads of this source hang, so the server begins no more") {
			atOnce++
		}
	}
	begun := 0
	for i := range samples {
		begun += d.begun(i)
	}
	if begun < 64 || begun > 64+parallel || atOnce != samples-begun {
		t.Errorf("%d reads were begun, %d were refused at once", begun, atOnce)
	}
	if now := runtime.NumGoroutine(); now > before+64+parallel+20 {
		t.Errorf("%d goroutines, %d before", now, before)
	}
	for _, release := range releases {
		release()
	}
	c := view(t, seg)
	fatal.Until(t, "it is well again",
		func() bool { return len(p.fetch(number, 0, shuffled(samples)...).failures) == 0 })
	for i := range samples {
		fatal.Until(t, "a read that returned late has stored its sample", func() bool {
			_, hit, _ := c.View(i)
			return hit
		})
		wantReady(t, c, i, 100)
	}
}

// Ensure that a server ends, and a cache is removed, despite a hanging read, and that clients get an answer.
func TestEndsBesideAReadThatHangs(t *testing.T) {
	server.SetDrainTimeout(t, 300*time.Millisecond)
	for _, removed := range []bool{false, true} {
		leaks := goleak.IgnoreCurrent()
		o, d := hanging(t, 20, 2)
		release := d.hold(t, 3)
		s, stop := run(t, o)
		p, number, c := attachTo(t, s)
		id := p.startFetch(number, 3, 4)
		fatal.Until(t, "one is there, and one hangs", func() bool { return ready(c, 4) && d.begun(3) == 1 })
		ended := make(chan struct{})
		if removed {
			began := time.Now()
			reload(t, s, without(o, "pets"))
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("after %v", took)
			}
			q := dial(t, s.Dir())
			other, _ := q.attach("other")
			q.wantFetched(other, 1)
			close(ended)
		} else {
			go func() {
				stop()
				close(ended)
			}()
		}
		wantClosing(t, p.answer(id, 2))
		<-ended
		release() // its late result finds no cache
		if removed {
			stop()
		}
		goleak.VerifyNone(t, leaks)
		wantReady(t, c, 4, 100)
	}
}

// Ensure that a server ends despite a source that hangs in a read-ahead and so does not close.
func TestEndsBesideAReadAheadThatHangs(t *testing.T) {
	server.SetDrainTimeout(t, 300*time.Millisecond)
	o, d := hanging(t, 20, 2)
	o.Caches[0].Source["read_ahead"] = map[string]any{"readers": 1}
	release := d.hold(t, 3)
	s, stop := run(t, o)
	p, number, _ := join(t, s)
	p.prefetch(number, 3)
	fatal.Until(t, "it is read ahead", func() bool { return d.begun(3) == 1 })
	stop()
	release()
}

// Ensure that a server that removes a file itself blames no other program, also while the cache is still open.
func TestOwnRemovalIsNoProblem(t *testing.T) {
	s, _ := start(t, options(t, newMemory(20, 1000), server.CacheOptions{}))
	h := s.Cache("pets")
	fatal.If(t, h.Unlink())
	if h.Segment().HasName() || len(h.Problems()) > 0 {
		t.Error(h.Segment().HasName(), h.Problems())
	}
}

// wantClosing checks that the first sample failed because the cache closes, and all others came.
func wantClosing(t *testing.T, a answer) {
	t.Helper()
	if a.failures[0].Code != control.CodeClosing || len(a.failures) != 1 ||
		!strings.Contains(a.failures[0].Text, "ending, or has removed") {
		t.Errorf("%+v", a)
	}
}

// Ensure that prefetched samples are announced to a source that reads ahead. It reads them once
// beside the cache's own readers, which take them from there.
func TestReadAhead(t *testing.T) {
	m := newMemory(100, 100)
	release := m.hold(t, 0)
	s, _ := start(t, options(t, m,
		server.CacheOptions{Parallel: 1,
			Source: source.Settings{"read_ahead": map[string]any{"size": "1MiB", "readers": 2}}}))
	p, number, c := attachTo(t, s)
	id := p.startFetch(number, 0)
	fatal.Until(t, "the only reader is busy", func() bool { return m.begun(0) == 1 })
	expect.Equal(t, p.prefetch(number, 10, 11, 12), 3, "queued")
	fatal.Until(t, "they are read ahead",
		func() bool { return m.begun(10) == 1 && m.begun(11) == 1 && m.begun(12) == 1 })
	release()
	p.answer(id, 1)
	fatal.Until(t, "they are stored", func() bool { return ready(c, 10, 11, 12) })
	for _, i := range []int{10, 11, 12} {
		wantReady(t, c, i, 100)
		expect.Equal(t, m.begun(i), 1, "reads of sample %d", i)
	}
}

// ready says whether all samples are in the cache.
func ready(c *cache.Cache, indices ...int) bool {
	for _, i := range indices {
		if state, err := c.State(i); err != nil || state != cache.StateReady {
			return false
		}
	}
	return true
}
