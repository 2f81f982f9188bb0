package server_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
)

// Ensure that a client that cancels and repeats a fetch of a read that ignores its context waits
// for that read. It uses no further reader, others go on, and the sample is read once.
func TestAskedForAgainWhileItIsRead(t *testing.T) {
	o, d := hanging(t, 20, 2)
	o.Caches[0].ReadTimeout = time.Minute
	s, _ := start(t, o)
	release := d.hold(t, 3)
	p, q := dial(t, s.Dir()), dial(t, s.Dir())
	number, seg := p.attach("pets")
	q.attach("pets")
	for range 5 {
		id := p.startFetch(number, 3)
		fatal.Until(t, "it is being read", func() bool { return d.begun(3) >= 1 })
		p.send(control.AppendCancel(nil, id))
		if a := p.answer(id, 1); len(a.failures) != 1 || a.failures[0].Code != control.CodeCancelled {
			t.Fatalf("%+v", a)
		}
	}
	id := p.startFetch(number, 3)
	q.wantFetched(number, 4, 5)
	release()
	if a := p.answer(id, 1); len(a.failures) != 0 || len(a.samples) != 0 {
		t.Errorf("%+v", a)
	}
	expect.Equal(t, d.begun(3), 1, "reads")
	wantReady(t, view(t, seg), 3, 100)
}

// Ensure that a client gets a sample that it requests just after all others have given it up.
func TestAskedForAsItIsGivenUp(t *testing.T) {
	m := newMemory(200, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 2}))
	p, q := dial(t, s.Dir()), dial(t, s.Dir())
	number, seg := p.attach("pets")
	q.attach("pets")
	c := view(t, seg)
	for i := range m.samples {
		release := m.hold(t, i)
		first := p.startFetch(number, int64(i))
		fatal.Until(t, "it is being read", func() bool { return m.begun(i) == 1 })
		p.send(control.AppendCancel(nil, first))
		second := q.startFetch(number, int64(i))
		p.answer(first, 1)
		release()
		if a := q.answer(second, 1); len(a.failures) != 0 || len(a.samples) != 0 {
			t.Fatalf("sample %d: %+v", i, a)
		}
		wantReady(t, c, i, m.bytes)
	}
}

// Ensure that a source that itself reports a cancelled read has failed: the client has cancelled
// nothing.
func TestSourceThatCancels(t *testing.T) {
	m := newMemory(10, 100)
	m.fails[3] = source.ErrClosed
	m.fails[4] = done().Err()
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	p, number, _ := join(t, s)
	if a := p.fetch(number, 0, 4, 5); len(a.failures) != 1 || a.failures[0].Code != control.CodeRead ||
		!strings.Contains(a.failures[0].Text, "sample 4 (memory 4): context canceled") {
		t.Errorf("%+v", a)
	}
}

// Ensure that cancelling the largest number of waiters of one sample takes little time, in which
// other clients wait.
func TestManyWantsOfOneSampleAreGivenUp(t *testing.T) {
	m := newMemory(10, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 2}))
	release := m.hold(t, 3)
	indices := make([]int64, control.MaxIndices)
	for k := range indices {
		indices[k] = 3
	}
	p, number, _ := join(t, s)
	var ids []uint64
	for range control.MaxUnderWay / control.MaxIndices {
		ids = append(ids, p.startFetch(number, indices...))
	}
	p.fetch(number, 0, 11) // is answered after the others
	began := time.Now()
	for _, id := range ids {
		p.send(control.AppendCancel(nil, id))
	}
	for _, id := range ids {
		expect.Equal(t, len(p.answer(id, len(indices)).failures), len(indices), "failed")
	}
	if took := time.Since(began); took > 15*time.Second { // some tenths of a second on an idle machine
		t.Errorf("it took %v", took)
	}
	release()
}

// Ensure that cancelled waiters are dropped at once, even if their queue is not served. A client
// that requests and cancels forever needs no memory.
func TestGivenUpWantsAreForgotten(t *testing.T) {
	m := newMemory(2000, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	release := m.hold(t, 0)
	p, number, _ := join(t, s)
	first := p.startFetch(number, 0)
	fatal.Until(t, "it is being read", func() bool { return m.begun(0) == 1 })
	all := shuffled(m.samples)
	for range 10 {
		id := p.startFetch(number, all...)
		p.send(control.AppendCancel(nil, id))
		p.answer(id, len(all))
	}
	expect.Equal(t, s.Waiters("pets"), 0, "waiters in queues")
	release()
	if a := p.answer(first, 1); len(a.failures) != 0 {
		t.Errorf("%+v", a)
	}
}

// Ensure that waiters are dropped after their answer when too many reads hang.
func TestDroppedWantsAreForgotten(t *testing.T) {
	const samples = 300
	o, d := hanging(t, samples, 32)
	s, _ := start(t, o)
	for i := range samples {
		defer d.hold(t, i)()
	}
	p, number, _ := join(t, s)
	p.fetch(number, 0, shuffled(samples)...) // some of them hang
	expect.Equal(t, len(p.fetch(number, 0, shuffled(samples)...).failures), samples, "failed")
	expect.Equal(t, s.Waiters("pets"), 0, "waiters in queues")
}

// Ensure that a client whose answers wait when the server ends gets all of them, and a failure for
// the rest. Samples that do not fit are not read again, and not forgotten.
func TestEndsBesideAClientThatTakesItsTime(t *testing.T) {
	const size = 33 << 20 // two of them exceed the limit
	m := newMemory(5, size)
	s, stop := start(t, options(t, m, server.CacheOptions{Size: 40 << 20, Parallel: 2}))
	p, number, seg := join(t, s)
	fatal.Equal(t, seg.Slots, 1, "slots")
	p.fetch(number, 0, 0)
	first := p.startFetch(number, 1)
	fatal.Until(t, "it waits for its client", func() bool { return s.Waiting() == size })
	release := m.hold(t, 2)
	second := p.startFetch(number, 2)
	fatal.Until(t, "it is being read", func() bool { return m.begun(2) == 1 })
	ended := make(chan bool)
	go func() {
		stop()
		close(ended)
	}()
	fatal.Until(t, "it is ending", func() bool { return s.Ending() })
	time.Sleep(50 * time.Millisecond)
	release()
	fatal.Until(t, "all reads have ended", func() bool { return s.Readers("pets") == 0 })
	time.Sleep(50 * time.Millisecond) // nothing may be dropped in this time
	if a := p.answer(first, 1); len(a.failures) != 0 || !bytes.Equal(a.samples[0], sourcetest.Content(1, size)) {
		t.Errorf("%d failed, %d came", len(a.failures), len(a.samples))
	}
	if a := p.answer(second, 1); len(a.failures) != 1 || a.failures[0].Code != control.CodeClosing {
		t.Errorf("%d came, %+v", len(a.samples), a.failures)
	}
	<-ended
}

// Ensure that two requests of one number end the connection, because their answers could not be
// told apart.
func TestRequestOfANumberThatIsUnderWay(t *testing.T) {
	m := newMemory(10, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	m.hold(t, 3)
	p, number, _ := join(t, s)
	id := p.startFetch(number, 3)
	p.send(control.AppendFetch(nil, control.Prefetch, id, control.FetchBody{Cache: number, Indices: []int64{4}}))
	if remote := p.last(); remote == nil || remote.Code != control.CodeProtocol ||
		!strings.Contains(remote.Text, "under way already") {
		t.Errorf("%+v", remote)
	}
}
