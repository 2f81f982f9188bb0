package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/server/admin"
	"github.com/stocached/stocached/source"
)

// What programs will ask for soon: its memory, the reads at a time, and how long it waits for a program.
const (
	soonBytes = 64 << 20
	soonAge   = time.Minute
	soonMost  = 4096 // parts
)

// soonParts has parts of objects that are read before programs ask for them. It is safe for concurrent use.
type soonParts struct {
	mu    sync.Mutex
	bytes int
	parts []*soonPart // the oldest first
	slots chan struct{}

	reads sync.WaitGroup
	ctx   context.Context // of the reads
	end   context.CancelFunc
}

type soonPart struct {
	of    object
	at    int64
	size  int
	begun time.Time
	given int           // bytes that programs got of it
	done  chan struct{} // closed when data, or failed, are there
	data  []byte
	fails bool
}

// object is an object in a state.
type object struct {
	place *source.Place
	path  string
	stamp source.Stamp
}

func newSoonParts() *soonParts {
	s := &soonParts{slots: make(chan struct{}, addressParallel)}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// add begins to read a part, if there is room beside the parts that are not read yet.
func (s *soonParts) add(of object, at int64, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := len(s.parts)
	s.parts = slices.DeleteFunc(s.parts, func(p *soonPart) bool {
		old := p.isDone() && (s.bytes+size > soonBytes || kept >= soonMost || time.Since(p.begun) > soonAge)
		if old {
			s.bytes, kept = s.bytes-p.size, kept-1
		}
		return old
	})
	if kept >= soonMost || s.find(of, at, size) != nil || s.bytes+size > soonBytes || s.ctx.Err() != nil {
		return
	}
	p := &soonPart{of: of, at: at, size: size, begun: time.Now(), done: make(chan struct{})}
	s.parts, s.bytes = append(s.parts, p), s.bytes+size
	s.reads.Go(func() {
		defer close(p.done)
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-s.ctx.Done():
			p.fails = true
			return
		}
		data := make([]byte, size)
		if of.place.Objects().ReadAt(s.ctx, of.path, of.stamp, data, at) != nil { // who asks for it gets the error
			p.fails = true
			return
		}
		p.data = data
	})
}

func (p *soonPart) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// find is under mu.
func (s *soonParts) find(of object, at int64, size int) *soonPart {
	for _, p := range s.parts {
		if p.of == of && p.at <= at && at+int64(size) <= p.at+int64(p.size) {
			return p
		}
	}
	return nil
}

// take returns size bytes, and up to more after them, of a part that was added; nil: there is none. A part that programs
// have got goes.
func (s *soonParts) take(ctx context.Context, o *admin.Part, of object) []byte {
	s.mu.Lock()
	p := s.find(of, o.At, o.Size)
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var data []byte
	if !p.fails {
		data = p.data[o.At-p.at:]
		data = data[:min(len(data), o.Size+o.More)]
		p.given += len(data)
	}
	if at := slices.Index(s.parts, p); at >= 0 && (p.fails || p.given >= p.size) {
		s.parts, s.bytes = slices.Delete(s.parts, at, at+1), s.bytes-p.size
	}
	return data
}

// close ends all reads.
func (s *soonParts) close() {
	s.end()
	s.reads.Wait()
}

// Ahead is part of admin.Parts.
func (s *parts) Ahead(_ context.Context, a admin.Ahead) error {
	defer s.onDemand.request()()
	for _, p := range a.Parts {
		settings := source.Settings{"path": p.Path}
		if remote, given := a.Source["remote"]; given {
			settings["remote"] = remote
		}
		place, path, err := s.place(&admin.Part{Source: settings, Keys: a.Keys})
		if err != nil {
			return err
		}
		s.onDemand.soon.add(object{place, path, source.Stamp{Bytes: p.Bytes, ModifiedNs: p.Tag}}, p.At, p.Size)
	}
	return nil
}
