package remote

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"

	"github.com/stocached/stocached/source"
)

// window limits the requests at a time to what the server and the link can do. It follows TCP Vegas. The
// fastest answers show how long one takes without a queue. So the mean of all answers shows how many
// requests only wait in a queue. The window grows while these are few, and shrinks when they are many.
// When the server says that it is busy, the window shrinks at once. For a while, it then stays below the
// width at which that happened.
//
// Answers with more bytes take longer, so each class of sizes has a fastest answer of its own. A server that
// answers within nearby has no queue to speak of: there a wait for the window would cost more than the queue.
type window struct {
	mu      sync.Mutex
	most    int // requests at a time that the settings allow
	size    float64
	inside  int
	waiting []chan struct{}

	fastest  [65]time.Duration // by the binary digits of the bytes; 0: none
	measured time.Time         // when fastest began
	resume   float64           // size after the round that measures; 0: no such round

	ceiling float64   // the server was busy with more
	busy    time.Time // when the window last shrank because of that

	answers int           // answers in the current round
	took    time.Duration // they took, all together
	ratios  float64       // sum of the ratios of the fastest time to that of an answer
	full    bool          // in this round a request had to wait
}

const (
	firstWindow  = 4
	nearby       = 4 * time.Millisecond
	defaultMost  = 64
	leastAnswers = 8   // answers in a round
	fewQueued    = 4   // requests in a queue, below which the window grows
	manyQueued   = 8   // above which it shrinks
	shrunk       = 0.8 // factor of the window, after a server was busy
	ceilingLasts = 5 * time.Second
	// Fastest answers are measured again so often, in a round with half the window, because a link may
	// become slower for good.
	measureAgain = 10 * time.Second
)

func newWindow(most int) *window {
	return &window{most: most, size: min(firstWindow, float64(most)), ceiling: float64(most)}
}

// enter waits until a request may begin. It returns the cause of ctx.
func (w *window) enter(ctx context.Context) error {
	w.mu.Lock()
	if w.inside < int(w.size) {
		w.inside++
		w.mu.Unlock()
		return nil
	}
	w.full = true
	turn := make(chan struct{})
	w.waiting = append(w.waiting, turn)
	w.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, other := range w.waiting {
		if other == turn {
			w.waiting = append(w.waiting[:k], w.waiting[k+1:]...)
			return context.Cause(ctx)
		}
	}
	w.inside-- // its turn came at the same moment
	w.admit()
	return context.Cause(ctx)
}

// leave ends a request that began at a time and has read so many bytes.
func (w *window) leave(begun time.Time, bytes int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside--
	switch {
	case errors.Is(err, source.ErrUnavailable):
		// Requests that began before the window shrank say nothing about its new size.
		if begun.After(w.busy) {
			w.ceiling, w.busy = max(1, w.size-1), time.Now()
			w.size, w.resume = max(1, w.size*shrunk), 0
			w.next()
		}
	case err == nil:
		w.answer(max(time.Since(begun), 1), bits.Len(uint(bytes)))
	}
	w.admit()
}

// answer counts an answer, and ends the round if it was the last one. The caller holds mu.
func (w *window) answer(took time.Duration, class int) {
	if w.measured.IsZero() {
		w.measured = time.Now()
	}
	if fastest := &w.fastest[class]; *fastest == 0 || took < *fastest {
		*fastest = took
	}
	w.answers++
	w.took += took
	w.ratios += float64(w.fastest[class]) / float64(took)
	if w.answers >= max(leastAnswers, int(w.size)) {
		w.turn()
		w.next()
	}
}

// turn sets the size for the next round. The caller holds mu.
func (w *window) turn() {
	switch {
	case w.resume > 0:
		w.size, w.resume = w.resume, 0
		return
	case !w.full:
		return // the callers want no more at a time: nothing is known of a wider window
	case time.Since(w.measured) > measureAgain:
		w.fastest, w.measured = [65]time.Duration{}, time.Now()
		w.resume, w.size = w.size, max(1, w.size/2)
		return
	}
	if time.Since(w.busy) > ceilingLasts {
		w.ceiling = float64(w.most)
	}
	queued := w.size * (1 - w.ratios/float64(w.answers))
	if w.took < nearby*time.Duration(w.answers) {
		queued = 0
	}
	switch {
	case queued < fewQueued/2 && w.busy.IsZero():
		w.size *= 1.5 // far from the limit, as at the start
	case queued < fewQueued:
		w.size++
	case queued > manyQueued:
		w.size = max(1, w.size-1)
	}
	w.size = min(w.size, w.ceiling)
}

// isBusy says whether the server has lately said that it is busy.
func (w *window) isBusy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.busy) < ceilingLasts
}

// next begins a round. The caller holds mu.
func (w *window) next() { w.answers, w.took, w.ratios, w.full = 0, 0, 0, len(w.waiting) > 0 }

// admit lets waiting requests begin. The caller holds mu.
func (w *window) admit() {
	for len(w.waiting) > 0 && w.inside < int(w.size) {
		close(w.waiting[0])
		w.waiting = w.waiting[1:]
		w.inside++
	}
}
