//go:build faultpoints

package server_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source/sourcetest"
)

// once calls do when a point is passed for the first time, in the goroutine that passes it.
func once(t *testing.T, point string, do func()) (passed *atomic.Int32) {
	passed = new(atomic.Int32)
	fault.SetHook(func(at string) {
		if at == point && passed.Add(1) == 1 {
			do()
		}
	})
	t.Cleanup(func() { fault.SetHook(nil) })
	return passed
}

// If a client stores a sample while the server reads it, the server keeps that one.
func TestPointStoredByAClientMeanwhile(t *testing.T) {
	m := newMemory(10, 1000)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	p, number, c := attachTo(t, s)
	once(t, "fill.read", func() {
		expect.Gives(c.Set(3, sourcetest.Content(3, 1000), 0))(t, cache.Stored)
	})
	if a := p.fetch(number, 0, 3, 4); len(a.failures) != 0 || len(a.samples) != 0 {
		t.Errorf("%+v", a)
	}
	wantReady(t, c, 3, 1000)
	if stats, err := c.Stats(); err != nil || stats.Stored != 2 || stats.Exists != 1 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// The server sends a sample as bytes if a live client has claimed it and does not finish. When that
// client gives up or dies, the next fetch stores it.
func TestPointClaimedByAClientMeanwhile(t *testing.T) {
	m := newMemory(10, 1000)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
	p, number, c := attachTo(t, s)
	var claim *cache.Claim
	once(t, "fill.read", func() {
		var r cache.Result
		var err error
		if claim, r, err = c.Claim(3, 1000, 0); r != cache.Stored || err != nil {
			t.Error(r, err)
		}
	})
	for range 2 {
		a := p.fetch(number, 0, 3, 4)
		if len(a.failures) != 0 || len(a.samples) != 1 || string(a.samples[0]) != string(sourcetest.Content(3, 1000)) {
			t.Errorf("%+v", a)
		}
	}
	if a := p.fetch(number, control.SlotsOnly, 3); len(a.failures) != 1 || a.failures[0].Code != control.CodeNoSlot {
		t.Errorf("only with a slot: %+v", a)
	}
	fatal.If(t, claim.Abort())
	if a := p.fetch(number, 0, 3); len(a.failures) != 0 || len(a.samples) != 0 {
		t.Errorf("%+v", a)
	}
	wantReady(t, c, 3, 1000)
}

// A clear while the server stores: the cache ends with what was requested after the clear, and no
// sample is torn.
func TestPointClearedMeanwhile(t *testing.T) {
	for _, point := range []string{"fill.taken", "fill.read", "fill.stored"} {
		m := newMemory(10, 1000)
		s, stop := start(t, options(t, m, server.CacheOptions{Parallel: 1}))
		p, number, c := attachTo(t, s)
		once(t, point, func() {
			expect.Gives(c.Clear(context.Background()))(t, cache.Stored, point)
		})
		p.wantFetched(number, 3, 4)
		if _, hit, err := c.View(3); hit != (point != "fill.stored") || err != nil {
			t.Errorf("%s: hit %v, %v", point, hit, err)
		}
		wantReady(t, c, 4, 1000)
		if a := p.fetch(number, 0, 3); len(a.failures) != 0 || len(a.samples) != 0 {
			t.Errorf("%s: %+v", point, a)
		}
		wantReady(t, c, 3, 1000)
		fault.SetHook(nil)
		stop()
	}
}

// All waiters of a sample give up, and another client requests it while the read still goes on.
// This client gets one answer.
func TestPointCancelledMeanwhile(t *testing.T) {
	for _, point := range []string{"fill.taken", "fill.read", "fill.stored"} {
		m := newMemory(10, 1000)
		s, stop := start(t, options(t, m, server.CacheOptions{Parallel: 2}))
		first, second := dial(t, s.Dir()), dial(t, s.Dir())
		number, seg := first.attach("pets")
		second.attach("pets")
		hold := make(chan struct{})
		passed := once(t, point, func() { <-hold })
		id := first.startFetch(number, 3)
		fatal.Until(t, "it is at it", func() bool { return passed.Load() == 1 })
		first.send(control.AppendCancel(nil, id))
		if a := first.answer(id, 1); len(a.failures) != 1 || a.failures[0].Code != control.CodeCancelled {
			t.Errorf("%s: %+v", point, a)
		}
		again := second.startFetch(number, 3)
		close(hold)
		if a := second.answer(again, 1); len(a.failures) != 0 {
			t.Errorf("%s: %+v", point, a)
		}
		if a := first.fetch(number, 0, 3, 4); len(a.failures) != 0 || len(a.samples) != 0 {
			t.Errorf("%s: %+v", point, a)
		}
		c := view(t, seg)
		wantReady(t, c, 3, 1000)
		fault.SetHook(nil)
		stop()
	}
}

// A client that vanishes when its sample arrives affects no other client.
func TestPointClientVanishes(t *testing.T) {
	for _, point := range []string{"fill.stored", "send.piece"} {
		m := newMemory(100, 1<<20)
		s, stop := start(t, options(t, m, server.CacheOptions{Parallel: 2, Size: 24 << 20}))
		p, other := dial(t, s.Dir()), dial(t, s.Dir())
		number, seg := p.attach("pets")
		other.attach("pets")
		if seg.Slots == 0 || seg.Slots > 90 {
			t.Fatalf("%d slots", seg.Slots)
		}
		passed := once(t, point, func() { p.socket.Close() })
		p.startFetch(number, upTo(100)...)
		fatal.Until(t, point+" is passed", func() bool { return passed.Load() > 0 })
		fatal.Until(t, "it is forgotten", func() bool { return s.Connections() == 1 })
		began := time.Now()
		if a := other.fetch(number, 0, upTo(100)...); len(a.failures) != 0 || len(a.samples) != 100-int(seg.Slots) {
			t.Errorf("%s: %d failed, %d came", point, len(a.failures), len(a.samples))
		}
		// the server waits a little longer for a client that reads nothing
		if took := time.Since(began); took > 25*time.Second {
			t.Errorf("%s: another client waited %v", point, took)
		}
		fault.SetHook(nil)
		stop()
	}
}
