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
	soonMost  = 4096     // parts
	soonGap   = 16 << 10 // bytes that are read again within others
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
	ctx   context.Context // the context of the reads
	end   context.CancelFunc
}

type soonPart struct {
	of    object
	at    int64
	size  int
	room  int             // room in `bytes`
	reads *sync.WaitGroup // who copies from memory that another part will have; nil: it is this part's

	isGiven bool          // a program has read it itself, and its bytes are not here
	left    [][2]int      // where the bytes begin and end that no program has got
	seen    time.Time     // when its read began, or a later look, which found that the object had not changed
	asked   chan struct{} // closed when a program waits for it
	done    chan struct{} // closed when the fields below are there
	ready   time.Time
	data    []byte
	fails   bool
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
			s.bytes -= p.room
		}
		return old
	})
}

// add begins to read the bytes of a part that no read has or will have, if there is room. It drops nothing that programs have
// not got yet: a program will ask for that sooner. It calls end when nothing reads the part any more.
func (s *soonParts) add(of object, at int64, size int, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		end()
		return
	}
	var reads sync.WaitGroup
	for stop := at + int64(size); at < stop; {
		found, next := s.cover(of, at, stop, 0)
		if found == nil && s.makeRoom(int(next-at)) {
			p := newSoonPart(of, at, int(next-at))
			p.room, p.left = p.size, [][2]int{{0, p.size}}
			s.parts, s.bytes = append(s.parts, p), s.bytes+p.size
			reads.Add(1)
			s.reads.Go(func() {
				defer reads.Done()
				s.read(p)
			})
		}
		at = next
	}
	s.reads.Go(func() {
		reads.Wait()
		end()
	})
}

func newSoonPart(of object, at int64, size int) *soonPart {
	return &soonPart{of: of, at: at, size: size, asked: make(chan struct{}), done: make(chan struct{})}
}

// makeRoom says whether there is room for so many bytes, after parts that programs have got are dropped. It is under mu.
func (s *soonParts) makeRoom(size int) bool {
	for len(s.parts) >= soonMost || s.bytes+size > soonBytes {
		got := slices.IndexFunc(s.parts, func(p *soonPart) bool { return len(p.left) == 0 && p.isDone() })
		if got < 0 {
			return false
		}
		s.drop(s.parts[got])
	}
	return true
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
	p.seen = time.Now()
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
		s.parts, s.bytes = slices.Delete(s.parts, at, at+1), s.bytes-p.room
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

// cover returns the part that has a byte of an object and the most after it, and where it ends or, if there is none, where the
// next one begins: more bytes after `end` at the latest. It is under mu.
func (s *soonParts) cover(of object, at, end, more int64) (found *soonPart, next int64) {
	begin, stop := end+more, at
	for _, p := range s.parts {
		if p.of != of || (p.isDone() && p.fails) {
			continue
		}
		last := p.at + int64(p.size)
		if p.at <= at && last > stop {
			found, stop = p, last
		}
		if p.at > at && (p.size >= soonGap || last >= end) { // a request is dearer than a few bytes
			begin = min(begin, p.at)
		}
	}
	if found != nil {
		return found, min(end, stop)
	}
	return nil, begin
}

// piece is some of the bytes of a request, which are those of a part. own: the request reads this part. readers: it is done
// with when the bytes are copied; nil: they stay.
type piece struct {
	part    *soonPart
	at      int64
	size    int
	own     bool
	now     bool // the part is being read, so that no look is needed
	readers *sync.WaitGroup
}

// in returns the memory of a piece in that of its request, which begins at `from`.
func (p piece) in(data []byte, from int64) []byte {
	return data[p.at-from:][:p.size]
}

// share returns the pieces of a request, and the bytes of all: what is read ahead, or by other requests, is read once. The
// last piece may have more bytes than were asked for. into: the memory for the request's own pieces.
func (s *soonParts) share(o *admin.Part, of object, into *buffer) (pieces []piece, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, end := o.At, o.At+int64(o.Size)
	s.parts = slices.DeleteFunc(s.parts, func(p *soonPart) bool {
		return p.isGiven && p.of == of && p.at < end && at < p.at+int64(p.size)
	})
	for at < end {
		found, next := s.cover(of, at, end, int64(o.More))
		if found != nil {
			found.ask()
			if found.reads != nil {
				found.reads.Add(1)
			}
			pieces = append(pieces, piece{found, at, int(next - at), false, !found.isDone(), found.reads})
		} else {
			found = newSoonPart(of, at, int(next-at))
			found.reads, found.seen = &into.readers, time.Now()
			s.parts = append(s.parts, found)
			pieces = append(pieces, piece{found, at, found.size, true, true, nil})
		}
		at = next
	}
	return pieces, int(at - o.At)
}

// finish notes what a request has read of its own part. more: the last bytes, which it did not ask for: they stay for another
// request, if there is room. The others are given, and only those who tell of them late look for them.
func (s *soonParts) finish(p *soonPart, data []byte, more int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.data, p.fails, p.ready = data, err != nil, time.Now()
	close(p.done)
	s.drop(p)
	if err != nil {
		return
	}
	given := *p
	given.size, given.data, given.isGiven = p.size-more, nil, true
	if s.makeRoom(0) {
		s.parts = append(s.parts, &given)
	}
	if more > 0 && s.makeRoom(more) {
		rest := *p
		rest.at, rest.size, rest.room, rest.left, rest.reads = p.at+int64(p.size-more), more, more, [][2]int{{0, more}}, nil
		rest.data = slices.Clone(data[p.size-more:])
		s.parts, s.bytes = append(s.parts, &rest), s.bytes+more
	}
}

// take returns the bytes of a piece, and up to more after them; nil: the part's read has failed. A part that programs have got
// stays until others need its room: a worker may get more than it reads, and then another one asks for some of it. If
// they were given before, or are old, it looks whether the object has changed.
func (s *soonParts) take(ctx context.Context, of piece, more int) []byte {
	p := of.part
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil
	}
	begin := int(of.at - p.at)
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := p.isFresh(begin, begin+of.size) && time.Since(p.ready) <= soonAge
	if !p.fails && !fresh && !of.now && !s.isSeen(p.of) {
		s.mu.Unlock()
		now, err := p.of.place.Stamp(ctx, p.of.path)
		s.mu.Lock()
		p.fails, p.seen = p.fails || err != nil || now != p.of.stamp, time.Now()
	}
	if p.fails {
		s.drop(p)
		return nil
	}
	data := p.data[begin:min(len(p.data), begin+of.size+more)]
	p.gave(begin, begin+len(data))
	return data
}

// isSeen says whether a look or a read within soonLook found that the object had not changed. It is under mu.
func (s *soonParts) isSeen(of object) bool {
	return slices.ContainsFunc(s.parts, func(p *soonPart) bool {
		return p.of == of && p.isDone() && !p.fails && time.Since(p.seen) <= soonLook
	})
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
