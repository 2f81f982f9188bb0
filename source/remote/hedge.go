package remote

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/source"
)

// hedge decides when a read that takes long gets a second request. The second one begins when the first
// has taken longer than 99 of 100 reads of its size, and whichever ends first is the answer. Second
// requests are at most 1 % of all reads, and none begins while the server says that it is busy.
type hedge struct {
	off bool

	mu      sync.Mutex
	classes [65]recent // by the binary digits of the bytes
	tokens  float64    // second requests that may begin now
}

// recent are the times of the latest reads of one class of sizes.
type recent struct {
	times [recentReads]time.Duration
	n     int           // count of all reads so far
	after time.Duration // a second request begins then; 0: not known yet
}

const (
	recentReads  = 200
	measureEvery = 50   // reads
	hedgeShare   = 0.01 // share of reads that may have a second request
	mostHedges   = 4    // second requests that may begin without reads between them
	leastLonger  = 1.5  // a second request never begins before so many medians
)

// errOvertaken is why the first request of a read ends: the second one was faster.
var errOvertaken = errors.New("the second request was faster")

// after returns when a read of n bytes gets a second request; 0: never.
func (h *hedge) after(n int) time.Duration {
	if h.off {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.classes[bits.Len(uint(n))].after
}

// took counts a read that succeeded.
func (h *hedge) took(n int, took time.Duration) {
	if h.off {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens = min(h.tokens+hedgeShare, mostHedges)
	r := &h.classes[bits.Len(uint(n))]
	r.times[r.n%recentReads] = took
	if r.n++; r.n >= recentReads/2 && r.n%measureEvery == 0 {
		sorted := slices.Sorted(slices.Values(r.times[:min(r.n, recentReads)]))
		r.after = max(sorted[len(sorted)*99/100], time.Duration(float64(sorted[len(sorted)/2])*leastLonger))
	}
}

// begin says whether a second request may begin now, and counts it if so.
func (h *hedge) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tokens < 1 {
		return false
	}
	h.tokens--
	return true
}

// race are the two requests of a read. The first one makes nothing for the second until that begins.
type race struct {
	mu        sync.Mutex
	over      bool                    // the read has its answer
	endFirst  context.CancelCauseFunc // the request that runs; nil: none
	endSecond context.CancelFunc      // nil: it has not begun
}

// first notes the request that runs. It ends at once if the second one was faster.
func (r *race) first(end context.CancelCauseFunc) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endFirst = end; r.over {
		end(errOvertaken)
	}
}

// second returns the context of the second request. ok is false if the first one has ended.
func (r *race) second(ctx context.Context) (second context.Context, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return nil, false
	}
	second, r.endSecond = context.WithCancel(ctx)
	return second, true
}

// finish ends both requests.
func (r *race) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.endFirst != nil {
		r.endFirst(errOvertaken)
	}
	if r.endSecond != nil {
		r.endSecond()
	}
}

// hedged is read with a second request if the first one takes long.
func (s *Store) hedged(ctx context.Context, name string, state source.Stamp, dst []byte, offset int64) error {
	begun, after := time.Now(), s.hedge.after(len(dst))
	if after == 0 {
		err := s.read(ctx, nil, name, state, dst, offset)
		if err == nil {
			s.hedge.took(len(dst), time.Since(begun))
		}
		return err
	}
	var (
		race   race
		other  []byte // what the second request has read
		second error
		done   = make(chan struct{})
	)
	s.running.Add(1)
	timer := time.AfterFunc(after, func() {
		defer s.running.Done()
		defer close(done)
		if second = errOvertaken; s.window.isBusy() || !s.hedge.begin() {
			return
		}
		ctx, ok := race.second(ctx)
		if !ok {
			return
		}
		s.traffic.Hedged.Add(1)
		other = make([]byte, len(dst))
		if second = s.read(ctx, nil, name, state, other, offset); second == nil {
			race.finish()
		}
	})
	err := s.read(ctx, &race, name, state, dst, offset)
	if timer.Stop() {
		s.running.Done()
	} else {
		if err != nil && ctx.Err() == nil { // the first request failed, or was overtaken
			if <-done; second == nil {
				s.traffic.HedgesWon.Add(1)
				copy(dst, other)
				err = nil
			}
		}
		race.finish()
	}
	if err == nil {
		s.hedge.took(len(dst), time.Since(begun))
	}
	return err
}
