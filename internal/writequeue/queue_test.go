package writequeue

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// held is a Write that waits until it is let go.
type held struct {
	let chan struct{}

	mu      sync.Mutex
	written map[int]string
}

func newHeld() *held { return &held{let: make(chan struct{}), written: map[int]string{}} }

func (h *held) write(ctx context.Context, key int, sample []byte) {
	select {
	case <-h.let:
	case <-ctx.Done():
		return
	}
	h.mu.Lock()
	h.written[key] = string(sample)
	h.mu.Unlock()
}

func TestQueue(t *testing.T) {
	h := newHeld()
	q := New(Options[int]{Limit: 30, Writers: 2, Spare: 4, Write: h.write})
	sample := []byte("ten bytes.")
	for k := range 3 {
		if !q.Put(k, sample) {
			t.Errorf("sample %d of three that fit was refused", k)
		}
	}
	sample[0] = 'T' // the queue has a copy
	if q.Put(3, sample) || q.Dropped() != 1 || q.Bytes() != 30 {
		t.Errorf("full: %d dropped, %d bytes", q.Dropped(), q.Bytes())
	}
	short, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("enough"))
	defer cancel()
	if err := q.Flush(short); err == nil || err.Error() != "enough" {
		t.Errorf("a flush beside a write that hangs: %v", err)
	}
	close(h.let)
	if err := q.Flush(t.Context()); err != nil || len(h.written) != 3 || h.written[2] != "ten bytes." {
		t.Errorf("%v, %v", err, h.written)
	}
	if !q.Put(4, bytes.Repeat([]byte("x"), 100)) {
		t.Error("an empty queue takes a sample above its limit")
	}
	if err := q.Flush(t.Context()); err != nil || len(h.written[4]) != 100 {
		t.Errorf("%v, %v", err, h.written)
	}
	if !q.Put(6, nil) || q.Flush(t.Context()) != nil {
		t.Error("a sample without bytes")
	}
	if _, there := h.written[6]; !there {
		t.Error("a flush does not wait for a sample without bytes")
	}
	q.Put(7, sample)
	q.Close(time.Minute)
	if h.written[7] != string(sample) || q.Put(8, sample) {
		t.Errorf("after the close: %v", h.written)
	}
}

func TestCloseBesideAWriteThatHangs(t *testing.T) {
	h := newHeld()
	q := New(Options[int]{Limit: 100, Writers: 1, Write: h.write})
	for k := range 5 {
		q.Put(k, []byte("sample"))
	}
	q.Close(time.Millisecond)
	if len(h.written) != 0 || q.Dropped() < 4 {
		t.Errorf("%v, %d dropped", h.written, q.Dropped())
	}
}
