package cache_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

const evictBytes = 3000

var evicting = shm.Options{Samples: 12, Slots: 4, SampleBytes: evictBytes, ClientRecords: 8, Policy: shm.PolicyFIFO}

// A full cache gives the slots in turn to the samples that are set. It counts the evicted samples,
// and it gives out copies only.
func TestEvict(t *testing.T) {
	for name, seg := range map[string]*shm.Segment{"heap": heap(t, evicting), "mapped": mapped(t, evicting)} {
		t.Run(name, func(t *testing.T) {
			c := attach(t, seg)
			for i := range 7 {
				set(t, c, i, payload(i, 1, evictBytes), 0, cache.Stored)
			}
			for i := range 12 {
				if i >= 3 && i < 7 {
					wantSample(t, c, i, payload(i, 1, evictBytes))
				} else {
					wantMiss(t, c, i)
				}
			}
			set(t, c, 5, payload(5, 2, evictBytes), 0, cache.Exists)
			set(t, c, 5, payload(5, 2, evictBytes), cache.Overwrite, cache.Stored) // keeps its slot
			wantSample(t, c, 3, payload(3, 1, evictBytes))
			if s := stats(t, c); s.Evicted != 3 || s.Ready != 4 || s.Full != 0 || s.Corrupt != 0 {
				t.Errorf("%+v", s)
			}
			if _, hit, err := c.View(5); hit || !errors.Is(err, shm.ErrInvalid) {
				t.Errorf("view: %v, %v", hit, err)
			}
			var ready []int
			for i, data := range c.Ready() {
				ready = append(ready, i)
				if i != 5 && string(data) != string(payload(i, 1, evictBytes)) {
					t.Errorf("sample %d has other bytes", i)
				}
			}
			expect.Slice(t, ready, []int{3, 4, 5, 6}, "ready")
			// An aborted set has evicted its victim. The next one takes the free slot.
			k, r, err := c.Claim(0, evictBytes, 0)
			if err != nil || r != cache.Stored || k.Abort() != nil {
				t.Fatal(r, err)
			}
			wantMiss(t, c, 0)
			set(t, c, 1, payload(1, 1, evictBytes), 0, cache.Stored)
			if s := stats(t, c); s.Evicted != 4 || s.Ready != 4 {
				t.Errorf("%+v", s)
			}
			fatal.Gives(c.Clear(t.Context()))(t, cache.Stored)
			checkSound(t, seg)
		})
	}
}

// A slot that holds one sample is enough, also while a client fills it: then a set of another sample
// finds no victim.
func TestEvictFromOneSlot(t *testing.T) {
	o := evicting
	o.Slots = 1
	seg := mapped(t, o)
	c, other := attach(t, seg), attach(t, seg)
	for i := range 12 {
		set(t, c, i, payload(i, 1, evictBytes), 0, cache.Stored)
		wantSample(t, other, i, payload(i, 1, evictBytes))
	}
	k, _, err := c.Claim(0, evictBytes, 0)
	fatal.If(t, err)
	set(t, other, 1, payload(1, 1, evictBytes), 0, cache.Full)
	fatal.If(t, errors.Join(func() error { _, err := k.WriteAt(payload(0, 2, evictBytes), 0); return err }(), k.Publish()))
	wantSample(t, other, 0, payload(0, 2, evictBytes))
	checkSound(t, seg)
}

// evictTogether has goroutines of several clients set and get samples of a cache with few slots. Each
// copy has one sample's bytes. The segment lies on the heap, so that the race detector sees its words.
func evictTogether(t *testing.T, seg *shm.Segment, length func(sample int) int) {
	t.Helper()
	var clients sync.WaitGroup
	for k := range 4 {
		c := attach(t, seg)
		clients.Go(func() {
			dst := make([]byte, evictBytes)
			for n := range 1000 {
				i := (n*7 + k*13) % int(seg.Samples)
				hit, bytes := false, 0
				var err error
				if !raceDetector { // a copy races with the fill that its check detects
					bytes, hit, err = c.Get(i, dst)
				}
				if err == nil && !hit {
					_, err = c.SetLoaded(i, [][]byte{payload(i, 1, length(i))}, cache.Flags(n%2)*cache.Overwrite,
						time.Duration(1+i)*time.Millisecond)
				} else if err == nil && string(dst[:bytes]) != string(payload(i, 1, length(i))) {
					err = fmt.Errorf("sample %d has other bytes", i)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	if s := stats(t, attach(t, seg)); s.Ready == 0 || !seg.Chains() && s.Ready != seg.Slots || s.Evicted == 0 ||
		s.Corrupt != 0 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
	checkSound(t, seg)
}

// SetFree fills free slots, and evicts no sample.
func TestSetFree(t *testing.T) {
	for name, seg := range map[string]*shm.Segment{
		"slots":  heap(t, shm.Options{Samples: 40, Slots: 4, SampleBytes: evictBytes, Policy: shm.PolicyRandom}),
		"chains": heap(t, chained(t, shm.PolicyRandom, 40, 16, 1024)),
	} {
		t.Run(name, func(t *testing.T) {
			c := attach(t, seg)
			data := payload(1, 0, min(evictBytes, 4096))
			stored := 0
			for i := range 40 {
				switch r, err := c.SetFree(i, data, 0); {
				case err != nil || r != cache.Stored && r != cache.Full:
					t.Fatal(r, err)
				case r == cache.Stored:
					stored++
				}
			}
			if s := stats(t, c); stored == 0 || stored == 40 || int(s.Ready) != stored || s.Evicted != 0 {
				t.Errorf("%d stored, %+v", stored, s)
			}
			expect.Gives(c.Set(39, data, 0))(t, cache.Stored)
			checkSound(t, seg)
		})
	}
}
