package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/source"

	"github.com/cenkalti/backoff/v5"
)

// Store is source.Objects over a Driver.
type Store struct {
	driver Driver
	stall  time.Duration // an answer without a byte for so long is given up
	window *window
	hedge  hedge

	noHead atomic.Bool // the server answers GET, and not HEAD

	traffic source.Traffic
	untagged
	running sync.WaitGroup // second requests
}

// The default of the key stall, the tries of a request that reads no sample, and how slow an answer may be whose bytes
// come steadily: slowBytes in slowStalls times the key stall.
const (
	defaultStall = 10 * time.Second
	openTries    = 5
	slowStalls   = 6
	slowBytes    = 1 << 20
	pageBytes    = 4 << 20 // bytes of a page of 1,000 long names
)

// New returns a Store. It owns the driver.
func New(driver Driver, o Options) *Store {
	return &Store{driver: driver, stall: o.Stall, window: newWindow(o.Requests),
		hedge: hedge{off: o.Hedge != nil && !*o.Hedge, tokens: mostHedges}}
}

// Close is part of source.Objects.
func (s *Store) Close() {
	s.running.Wait()
	s.driver.Close()
}

// Traffic is part of source.Objects.
func (s *Store) Traffic() *source.Traffic { return &s.traffic }

// Stamp is part of source.Objects.
func (s *Store) Stamp(ctx context.Context, name string) (source.Stamp, error) {
	return again(ctx, func() (source.Stamp, error) {
		ctx, timer := s.watch(ctx, name)
		defer timer.end()
		a, err := s.state(ctx, name)
		if err != nil {
			return source.Stamp{}, timer.cause(ctx, err)
		}
		if a.Tag == "" && a.Bytes > 0 {
			s.add(name)
		}
		return stamp(a.Bytes, a.Tag), nil
	})
}

// state asks for the state of an object. If the answer to HEAD does not give it, the answer to a request for the
// first byte does: a presigned address permits no HEAD, and some servers have none.
func (s *Store) state(ctx context.Context, name string) (Answer, error) {
	var head Answer
	var refused error
	if !s.noHead.Load() {
		head, refused = s.driver.Head(ctx, name)
		if refused == nil && head.Bytes > 0 || errors.Is(refused, source.ErrUnavailable) || ctx.Err() != nil {
			return head, refused
		}
	}
	first, err := s.driver.Get(ctx, name, 0, 1, "")
	switch {
	case errors.Is(err, source.ErrChanged): // it has no first byte
		return Answer{Tag: head.Tag}, nil
	case err != nil:
		return Answer{}, err
	case refused != nil:
		s.noHead.Store(true)
	}
	_, _ = io.CopyN(io.Discard, first.Body, 2) // to its end, so that the connection can be used again
	return first, first.Body.Close()
}

// untagged counts the objects of which only the size tells a change.
type untagged struct {
	mu    sync.Mutex
	names int
	first string // the name of one of them
}

func (u *untagged) add(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names++; u.first == "" {
		u.first = name
	}
}

// Notes is part of source.Objects.
func (u *untagged) Notes() []source.Note {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names == 0 {
		return nil
	}
	return []source.Note{{Name: "changes unnoticed", Advice: true, Data: true, Text: fmt.Sprintf("the server sends neither ETag nor "+
		"Last-Modified (objects: %d, such as %s), so a change that keeps the size is not noticed; set the server up to send one "+
		"of them, or give each changed object another name", u.names, u.first)}}
}

// List is part of source.Objects. The unit of its tries is a page: what was listed is not asked for again.
func (s *Store) List(ctx context.Context, prefix string, each func(name string, stamp source.Stamp) error) error {
	var pages circle
	empty := 0 // pages, one after the other
	for from := ""; ; {
		page, err := again(ctx, func() (Page, error) {
			ctx, stop := s.within(ctx, prefix, pageBytes)
			defer stop()
			ctx, timer := s.watch(ctx, prefix)
			defer timer.end()
			page, err := s.driver.List(ctx, prefix, from, timer.alive)
			if err != nil {
				err = timer.cause(ctx, err)
			}
			return page, err
		})
		if err != nil {
			return err
		}
		for _, o := range page.Objects {
			if !strings.HasPrefix(o.Name, prefix) {
				return fmt.Errorf("%w: the server lists %s among the objects that begin with %s; check remote.endpoint",
					source.ErrInvalid, o.Name, prefix)
			}
			if o.Tag == "" {
				s.add(o.Name)
			}
			if err := each(o.Name, stamp(o.Bytes, o.Tag)); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		if empty++; len(page.Objects) > 0 {
			empty = 0
		}
		if empty == mostEmpty {
			return fmt.Errorf("%w: %s: the server answered %d pages of the list, one after the other, without an object and each with "+
				"a next page, so its list may have no end; check remote.endpoint", source.ErrInvalid, prefix, empty)
		}
		if pages.comesAgain(&page) {
			return fmt.Errorf("%w: %s: the server lists a page again, so its list has no end; check remote.endpoint",
				source.ErrInvalid, prefix)
		}
		from = page.Next
	}
}

// mostEmpty is how many pages of a list may follow each other without an object: storage that passes over removed
// objects or to another of its parts answers a few.
const mostEmpty = 1000

// circle finds a list without an end in constant memory: it compares each page with the last one whose number was a
// power of two. So it needs at most three rounds of a list that goes in a circle.
type circle struct {
	pages       int
	next        string // Next of that page
	first, last string // its first and its last object; "": it has none
}

// comesAgain says whether a page is the one that was kept: it names the same next page, or has the same objects.
func (c *circle) comesAgain(p *Page) bool {
	first, last := "", ""
	if n := len(p.Objects); n > 0 {
		first, last = p.Objects[0].Name, p.Objects[n-1].Name
	}
	if p.Next == c.next || len(p.Objects) > 1 && first == c.first && last == c.last {
		return true
	}
	if c.pages++; c.pages&(c.pages-1) == 0 {
		c.next, c.first, c.last = p.Next, first, last
	}
	return false
}

// again calls do until it succeeds, fails with an error that another try will meet, or has failed
// openTries times.
func again[T any](ctx context.Context, do func() (T, error)) (T, error) {
	return backoff.Retry(ctx, func() (T, error) {
		result, err := do()
		if err != nil && !errors.Is(err, source.ErrUnavailable) {
			err = backoff.Permanent(err)
		}
		return result, err
	}, backoff.WithMaxTries(openTries), backoff.WithNotify(func(err error, _ time.Duration) {
		source.RetriesOf(ctx).Failed(err)
	}))
}

// ReadAt is part of source.Objects.
func (s *Store) ReadAt(ctx context.Context, name string, state source.Stamp, dst []byte, offset int64) error {
	if len(dst) == 0 {
		now, err := s.Stamp(ctx, name)
		if err != nil {
			return err
		}
		if state.Bytes == 0 && now.Bytes == 0 { // an answer without bytes may have no tag
			return nil
		}
		return state.Check(name, now)
	}
	if offset < 0 || offset+int64(len(dst)) > state.Bytes {
		return fmt.Errorf("%s: %w: %d bytes at %d of %d", name, io.ErrUnexpectedEOF, len(dst), offset, state.Bytes)
	}
	if source.IsOpening(ctx) {
		_, err := again(ctx, func() (struct{}, error) { return struct{}{}, s.readAt(ctx, name, state, dst, offset) })
		return err
	}
	return s.readAt(ctx, name, state, dst, offset)
}

func (s *Store) readAt(ctx context.Context, name string, state source.Stamp, dst []byte, offset int64) error {
	if err := s.window.enter(ctx); err != nil {
		return err
	}
	begun := time.Now()
	err := s.hedged(ctx, name, state, dst, offset)
	s.window.leave(begun, len(dst), err)
	return err
}

// read sends requests until dst is full. A request that gave at least one byte is followed by one for
// the rest. race, if not nil, may end it.
func (s *Store) read(ctx context.Context, race *race, name string, state source.Stamp, dst []byte, offset int64) error {
	ctx, stop := s.within(ctx, name, len(dst))
	defer stop()
	tag := ""
	for done := 0; done < len(dst); {
		n, now, err := s.part(ctx, race, name, state, dst[done:], offset+int64(done), tag)
		done, tag = done+n, now
		if done == len(dst) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n == 0 || !errors.Is(err, source.ErrUnavailable) {
			return err
		}
	}
	return nil
}

// part sends one request, and reads its answer. It returns how many bytes of dst it has filled, and the
// tag of the object.
func (s *Store) part(ctx context.Context, race *race, name string, state source.Stamp, dst []byte, offset int64, tag string) (
	n int, now string, err error) {
	ctx, timer := s.watch(ctx, name)
	defer timer.end()
	race.first(timer.cancel)
	s.traffic.Requests.Add(1)
	defer func() { s.traffic.Bytes.Add(uint64(n)) }()
	a, err := s.driver.Get(ctx, name, offset, len(dst), tag)
	if err != nil {
		return 0, tag, timer.cause(ctx, err)
	}
	defer a.Body.Close()
	if err := state.Check(name, stamp(a.Bytes, a.Tag)); err != nil {
		return 0, tag, err
	}
	for n < len(dst) {
		m, err := a.Body.Read(dst[n:])
		n += m
		timer.alive()
		if n == len(dst) {
			if err == nil { // a body that ends here lets its connection be used again
				_, _ = io.CopyN(io.Discard, a.Body, 1)
			}
			break
		}
		if errors.Is(err, source.ErrInvalid) {
			return 0, tag, fmt.Errorf("%s: %w", name, err)
		}
		if err != nil {
			err = timer.cause(ctx, fmt.Errorf("%w: %s: the answer broke off after %d of %d bytes at %d: %v",
				source.ErrUnavailable, name, n, len(dst), offset, err))
			return n, a.Tag, err
		}
	}
	return n, a.Tag, nil
}

// within returns a context that ends when so many bytes take too long, though some of them come all the time.
func (s *Store) within(ctx context.Context, name string, bytes int) (context.Context, context.CancelFunc) {
	limit := slowStalls * s.stall * time.Duration(1+bytes/slowBytes)
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: %s: the server is too slow: up to %d bytes did not come "+
		"in %v", source.ErrUnavailable, name, bytes, limit))
}

// watch returns a context that ends when no byte comes for the time of stall.
func (s *Store) watch(ctx context.Context, name string) (context.Context, *stallTimer) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := &stallTimer{limit: s.stall, cancel: cancel}
	t.timer = time.AfterFunc(s.stall, func() {
		cancel(fmt.Errorf("%w: %s: no byte came for %v (remote.stall)", source.ErrUnavailable, name, s.stall))
	})
	return ctx, t
}

type stallTimer struct {
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func (t *stallTimer) alive() { t.timer.Reset(t.limit) }

func (t *stallTimer) end() {
	t.timer.Stop()
	t.cancel(nil)
}

// cause returns why the context ended, if it did, else err.
func (t *stallTimer) cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
