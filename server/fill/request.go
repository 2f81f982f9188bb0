package fill

import (
	"sync"
	"sync/atomic"

	"github.com/stocached/stocached/control"
)

// Requester asks for samples: a FETCH or PREFETCH of a client, or a prefetch schedule.
type Requester interface {
	// CanTake says whether the requester can take n bytes of a sample that has no slot. After true,
	// the filler calls Take or Done.
	CanTake(n int) bool
	// Take gets the bytes of a sample that has no slot, and MUST release them later. false: the
	// requester refuses them, and the sample fails with NO_SLOT or
	// NO_MEMORY.
	Take(position uint32, data *Buffer) bool
	// Done gets the failures of a request after its last sample.
	Done(r *Request, failures []control.Failure)
}

// Request is a list of samples that a requester asks a Filler for.
type Request struct {
	// These are set before Submit. Send makes the requester take the bytes of all samples, also of
	// those that are READY. Unstored, with Send, says that these need not be stored: other nodes keep them.
	// FreeOnly says that no sample may lose its slot for these.
	Send, Unstored, FreeOnly bool
	// Files makes the requester take the files of the samples, which nothing stores.
	Files bool
	// Loads is the program that loads samples that fail with LOAD; nil: none.
	Loads any

	by      Requester
	queue   *Queue
	waiters []waiter

	mu        sync.Mutex // protects the fields below
	remaining int
	alone     int
	failures  []control.Failure
}

// waiter is one position of a request, which waits for a sample.
type waiter struct {
	request  *Request
	position uint32
	index    int
	at       int  // its position in the list of its sample
	queued   bool // it is in its request's queue
	done     bool // answered, or cancelled
}

func (w *waiter) key() key { return key{w.index, w.request.Files} }

// NewRequest makes a request for samples. Submit puts its waiters into queue.
func NewRequest[Index int | int64](by Requester, queue *Queue, indices []Index) *Request {
	r := &Request{by: by, queue: queue, waiters: make([]waiter, len(indices)), remaining: len(indices)}
	for k, index := range indices {
		r.waiters[k] = waiter{request: r, position: uint32(k), index: int(index)}
	}
	return r
}

// Index returns the sample at a position.
func (r *Request) Index(position uint32) int { return r.waiters[position].index }

// Len returns the number of samples.
func (r *Request) Len() int { return len(r.waiters) }

// Alone returns how many samples were read for this request, and no client was waiting for them. The request is
// complete.
func (r *Request) Alone() int { return r.alone }

// Refuse answers all samples of a request that no filler takes, because the server is ending or has
// removed the cache.
func (r *Request) Refuse() {
	for k := range r.waiters {
		r.answer(&r.waiters[k], closing)
	}
}

// needs says whether the waiter gets the bytes of a result.
func (w *waiter) needs(r result) bool { return r.data != nil && (!r.stored || w.request.Send) }

// answer answers one waiter. The last one completes the request.
func (r *Request) answer(w *waiter, result result) {
	failure := control.Failure{Position: w.position, Code: result.code, Text: result.text}
	if w.needs(result) && !r.by.Take(w.position, result.data) {
		result.data.Release()
		why := noSlot
		if result.short {
			why = noMemory
		}
		failure.Code, failure.Text = why.code, why.text
	}
	r.mu.Lock()
	if failure.Code != 0 {
		r.failures = append(r.failures, failure)
	}
	if failure.Code == 0 && result.alone {
		r.alone++
	}
	r.remaining--
	last := r.remaining == 0
	r.mu.Unlock()
	if last {
		r.by.Done(r, r.failures)
	}
}

// result of reading a sample. If code is 0, the sample is in the cache or has data.
type result struct {
	code   control.Code
	text   string
	data   *Buffer // its bytes: if it got no slot, or a waiter may need them
	stored bool    // it is in the cache; one that evicts may have lost it since
	short  bool    // it is not, because memory is short
	// the side buffer had it, and a client has fetched it before
	fetched bool
	alone   bool // it was read, and no client was waiting for it
	// with a code: it is no sample of the source's, and programs may load it
	programs bool
}

// closing is the result of a sample that a closing filler does not read.
var closing = result{code: control.CodeClosing, text: "the server is ending, or has removed this cache"}

// noSlot is the result of a sample that the cache has no slot for, and noMemory of one whose slot has no memory.
var (
	noSlot   = result{code: control.CodeNoSlot, text: "the cache has no slot for it"}
	noMemory = result{code: control.CodeNoMemory, text: "the machine, its tmpfs or a cgroup has no memory for it"}
)

// noRoom says whether a sample was not read because it could not be stored.
func (r result) noRoom() bool { return r.code == control.CodeNoSlot || r.code == control.CodeNoMemory }

// failed is the result of a failed read.
func failed(code control.Code, err error) result { return result{code: code, text: err.Error()} }

// Buffer is the bytes of a sample. Several requesters may send it. The last Release
// gives the memory back.
type Buffer struct {
	Bytes []byte
	users atomic.Int32
	free  func()
}

// Release ends the use of one requester.
func (b *Buffer) Release() {
	if b.users.Add(-1) == 0 {
		b.free()
	}
}
