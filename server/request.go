package server

import (
	"sync"

	"github.com/stocached/stocached/control"
)

// request is a FETCH or PREFETCH under way, or what a plan has read.
type request struct {
	connection *connection // nil: of a plan
	plan       *plan       // nil: of a connection
	id         uint64
	filler     *filler
	queue      *queue // that its wants wait in
	wants      []*want
	asked      int  // bytes that its connection has taken for it
	prefetch   bool // nobody waits for its samples
	slotsOnly  bool

	mu        sync.Mutex // protects what follows
	remaining int
	failures  []control.Failure
}

// takes says whether its client has room for n more bytes of a sample without a slot. Who does not want them sent has.
func (r *request) takes(n int) bool { return r.prefetch || r.slotsOnly || r.connection.out.takes(n) }

// finish answers one want. The last one answers the request. A sample's bytes are sent from the buffer that the outcome shares.
func (r *request) finish(w *want, result outcome) {
	failure := control.Failure{Position: w.position, Code: result.code, Text: result.text}
	switch {
	case result.data == nil:
	case r.prefetch:
		result.data.release()
		if r.plan != nil {
			failure.Code, failure.Text = control.CodeNoSlot, "the cache has no slot for it"
			r.plan.noSlot()
		}
	case r.slotsOnly:
		result.data.release()
		failure.Code, failure.Text = control.CodeNoSlot, "the cache has no slot for it"
	default:
		r.connection.out.sample(r.id, w.position, result.data)
	}
	r.mu.Lock()
	if failure.Code != 0 {
		r.failures = append(r.failures, failure)
	}
	r.remaining--
	last := r.remaining == 0
	r.mu.Unlock()
	switch {
	case !last:
	case r.plan != nil:
		r.plan.ended(r)
	default:
		r.connection.ended(r)
	}
}

// cancel gives up what has not been answered.
func (r *request) cancel() {
	for _, w := range r.filler.cancel(r) {
		r.finish(w, outcome{code: control.CodeCancelled, text: "cancelled"})
	}
}
