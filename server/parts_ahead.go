package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stocached/stocached/server/admin"
	"github.com/stocached/stocached/source"
)

// What programs will ask for soon: its memory, and how long a part that is read waits for a program.
const (
	soonBytes = 64 << 20
	soonMost  = 4096 // parts
	soonOver  = 64   // bytes that an element has of the next one, at most: members of zip do
)

var soonAge = 20 * time.Second

// soonLook is how long a look whether an object has changed counts, for bytes that are given again, or late.
var soonLook = time.Second

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
	left  [][2]int      // where the bytes begin and end that no program has got
	seen  time.Time     // when a look found that the object had not changed
	asked chan struct{} // closed when a program waits for it
	done  chan struct{} // closed when the fields below are there
	ready time.Time
	data  []byte
	fails bool
}

// object is an object in a state.
type object struct {
	place *openPlace
	path  string
	stamp source.Stamp
}

func newSoonParts() *soonParts {
	s := &soonParts{slots: make(chan struct{}, addressParallel)}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// expire drops what waits for programs that do not come.
func (s *soonParts) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts = slices.DeleteFunc(s.parts, func(p *soonPart) bool {
		old := p.isDone() && time.Since(p.ready) > soonAge
		if old {
			s.bytes -= p.size
		}
		return old
	})
}

// add begins to read a part, if there is room beside those that programs have not got yet: to drop one of them, which a program
// will ask for sooner, costs a second read. end is called when nothing reads the part any more.
func (s *soonParts) add(of object, at int64, size int, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.find(of, at, size) != nil || s.ctx.Err() != nil
	at, size = s.lacking(of, at, size)
	known = known || size == 0
	full := func() bool { return len(s.parts) >= soonMost || s.bytes+size > soonBytes }
	for !known && full() {
		got := slices.IndexFunc(s.parts, func(p *soonPart) bool { return len(p.left) == 0 })
		if got < 0 {
			break
		}
		s.drop(s.parts[got])
	}
	if known || full() {
		end()
		return
	}
	p := &soonPart{of: of, at: at, size: size, left: [][2]int{{0, size}}, asked: make(chan struct{}), done: make(chan struct{})}
	s.parts, s.bytes = append(s.parts, p), s.bytes+size
	s.reads.Go(func() {
		defer end()
		s.read(p)
	})
}

func (s *soonParts) read(p *soonPart) {
	defer close(p.done)
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-p.asked: // it waits for no other: these may be of storage that does not answer
	case <-s.ctx.Done():
		p.fails = true
		return
	}
	data := make([]byte, p.size)
	err := p.of.place.Objects().ReadAt(s.ctx, p.of.path, p.of.stamp, data, p.at)
	p.data, p.fails, p.ready = data, err != nil, time.Now() // who asks for it gets the error
}

func (p *soonPart) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// drop is under mu.
func (s *soonParts) drop(p *soonPart) {
	if at := slices.Index(s.parts, p); at >= 0 {
		s.parts, s.bytes = slices.Delete(s.parts, at, at+1), s.bytes-p.size
	}
}

// isFresh says whether no program has got these bytes. It is under mu.
func (p *soonPart) isFresh(begin, end int) bool {
	return slices.ContainsFunc(p.left, func(l [2]int) bool { return l[0] <= begin && end <= l[1] })
}

// gave notes that a program got some bytes. It is under mu.
func (p *soonPart) gave(begin, end int) {
	var left [][2]int
	for _, l := range p.left {
		for _, rest := range [][2]int{{l[0], min(begin, l[1])}, {max(end, l[0]), l[1]}} {
			if rest[0] < rest[1] {
				left = append(left, rest)
			}
		}
	}
	p.left = left
}

// ask is under mu.
func (p *soonPart) ask() {
	select {
	case <-p.asked:
	default:
		close(p.asked)
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

// lacking returns what other parts do not have, at the begin and the end of these bytes: ranks that share a file in order ask
// for nearly the same. It is under mu.
func (s *soonParts) lacking(of object, at int64, size int) (int64, int) {
	end := at + int64(size)
	for again := true; again && at < end; {
		again = false
		for _, p := range s.parts {
			stop := p.at + int64(p.size)
			if p.of == of && p.at <= at && at < stop-soonOver {
				at, again = stop-soonOver, true
			}
			if p.of == of && p.at+soonOver < end && end <= stop {
				end, again = p.at+soonOver, true
			}
		}
	}
	return at, int(max(end-at, 0))
}

// before returns how many of some bytes lie before the next part: what is read ahead is read once.
func (s *soonParts) before(of object, at int64, size int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		if p.of == of && at < p.at+int64(p.size) && p.at < at+int64(size) {
			size = int(max(p.at-at, 0))
		}
	}
	return size
}

// take returns size bytes, and up to more after them, of a part that was added; nil: there is none. A part that programs have
// got stays until others need its room: a worker may get more than it reads, and then another one asks for some of it. If
// they were given before, or are old, it looks whether the object has changed.
func (s *soonParts) take(ctx context.Context, o *admin.Part, of object) []byte {
	s.mu.Lock()
	p := s.find(of, o.At, o.Size)
	if p != nil {
		p.ask()
	}
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil
	}
	begin := int(o.At - p.at)
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := p.isFresh(begin, begin+o.Size) && time.Since(p.ready) <= soonAge
	if !p.fails && !fresh && time.Since(p.seen) > soonLook {
		s.mu.Unlock()
		now, err := of.place.Stamp(ctx, of.path)
		s.mu.Lock()
		p.fails, p.seen = p.fails || err != nil || now != of.stamp, time.Now()
	}
	if p.fails {
		s.drop(p)
		return nil
	}
	data := p.data[begin:min(len(p.data), begin+o.Size+o.More)]
	p.gave(begin, begin+len(data))
	return data
}

// close ends all reads.
func (s *soonParts) close() {
	s.mu.Lock() // no read begins after it
	s.end()
	s.mu.Unlock()
	s.reads.Wait()
}

// Ahead is part of admin.Parts.
func (s *parts) Ahead(_ context.Context, a admin.Ahead) error {
	defer s.onDemand.request()()
	s.onDemand.soon.expire()
	for _, p := range a.Parts {
		settings := source.Settings{"path": p.Path}
		if remote, given := a.Source["remote"]; given {
			settings["remote"] = remote
		}
		place, path, err := s.place(&admin.Part{Source: settings, Keys: a.Keys})
		if err != nil {
			return err
		}
		of := object{place, path, source.Stamp{Bytes: p.Bytes, ModifiedNs: p.Tag}}
		s.onDemand.soon.add(of, p.At, p.Size, func() { s.onDemand.leave(place) })
	}
	return nil
}
