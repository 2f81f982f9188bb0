package remote

import (
	"bytes"
	"context"
	"crypto/md5" // S3 names the state of a part by it
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/stocached/stocached/source"
)

// PartDriver is a Driver that writes objects in parts, which stay if the writer dies.
type PartDriver interface {
	Driver
	// Begin returns the newest unfinished upload of an object with its parts by number, or begins one.
	// Without goOn it removes unfinished uploads.
	Begin(ctx context.Context, name string, goOn bool) (upload string, parts map[int]Part, err error)
	// Part sends a part. Numbers begin with 1. It returns the part's tag.
	Part(ctx context.Context, name, upload string, number int, data []byte, sum [md5.Size]byte) (tag string, err error)
	// Complete makes the object of its parts, whose tags are in their order.
	Complete(ctx context.Context, name, upload string, tags []string, only bool) error
	// Put writes an object at once. only: fs.ErrExist if it exists.
	Put(ctx context.Context, name string, data []byte, sum [md5.Size]byte, only bool) error
	// Remove removes an object, if it exists.
	Remove(ctx context.Context, name string) error
}

// Part is a part of an unfinished upload.
type Part struct {
	Bytes int64
	Tag   string // without quotes; for many servers the MD5 of the part in hexadecimal
}

// StreamDriver is a Driver that writes an object as one stream.
type StreamDriver interface {
	Driver
	// Stream begins to write an object. Its Close makes the object appear, unless ctx has ended.
	Stream(ctx context.Context, name string, only bool) (io.WriteCloser, error)
	Remove(ctx context.Context, name string) error
}

const (
	leastPart  = 8 << 20 // bytes of a part
	usualParts = 5000    // of a large object: servers allow 10,000
	partsAhead = 4       // that are sent at a time
	partStalls = 30      // times the key stall: a request that writes and takes longer is given up
)

// NewWritable is New for a PartDriver or a StreamDriver. The result is a source.Writable.
func NewWritable(driver Driver, o Options) *WritableStore { return &WritableStore{New(driver, o)} }

// WritableStore is a Store that also writes.
type WritableStore struct{ *Store }

var _ source.Writable = (*WritableStore)(nil)

// Remove is part of source.Writable.
func (s *WritableStore) Remove(ctx context.Context, name string) error {
	_, err := again(ctx, func() (struct{}, error) {
		return struct{}{}, s.driver.(interface {
			Remove(ctx context.Context, name string) error
		}).Remove(ctx, name)
	})
	return err
}

// Create is part of source.Writable.
func (s *WritableStore) Create(ctx context.Context, name string, about int64, goOn bool) (source.Upload, error) {
	if d, ok := s.driver.(StreamDriver); ok {
		return &stream{driver: d, ctx: ctx, name: name}, nil
	}
	d := s.driver.(PartDriver)
	size := max(leastPart, (about/usualParts+leastPart-1)/leastPart*leastPart)
	u := &upload{driver: d, limit: partStalls * s.stall, ctx: ctx, name: name, goOn: goOn, free: make(chan []byte, partsAhead)}
	for range partsAhead {
		u.free <- nil
	}
	u.size = int(size)
	return u, nil
}

// upload sends an object in parts of one size, several at a time. An object that fits into one part is put
// at once.
type upload struct {
	driver PartDriver
	ctx    context.Context
	name   string
	goOn   bool
	limit  time.Duration // of a request
	size   int           // of a part, which depends on nothing but the size of the object
	free   chan []byte   // buffers; nil: not allocated yet

	part []byte // that Write fills
	n    int    // parts before it
	id   string // of the upload; "": not begun
	kept map[int]Part

	sending sync.WaitGroup
	mu      sync.Mutex // protects the fields below
	tags    []string
	err     error // the first one
}

func (u *upload) failed() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// Write is part of source.Upload.
func (u *upload) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if len(u.part) == u.size {
			if err := u.send(); err != nil {
				return n, err
			}
		}
		if u.part == nil {
			select {
			case u.part = <-u.free:
			case <-u.ctx.Done():
				return n, context.Cause(u.ctx)
			}
			if u.part == nil {
				u.part = make([]byte, 0, u.size)
			}
		}
		m := min(len(p), u.size-len(u.part))
		u.part = append(u.part, p[:m]...)
		p, n = p[m:], n+m
	}
	return n, nil
}

// send begins to send the part that Write has filled.
func (u *upload) send() error {
	if err := u.failed(); err != nil {
		return err
	}
	if u.id == "" {
		err := u.request(func(ctx context.Context) (err error) {
			u.id, u.kept, err = u.driver.Begin(ctx, u.name, u.goOn)
			return err
		})
		if err != nil {
			return err
		}
	}
	data, number := u.part, u.n+1
	u.part, u.n = nil, number
	u.mu.Lock()
	u.tags = append(u.tags, "")
	u.mu.Unlock()
	u.sending.Go(func() {
		tag, err := u.sendPart(number, data)
		u.mu.Lock()
		u.tags[number-1] = tag
		if u.err == nil {
			u.err = err
		}
		u.mu.Unlock()
		u.free <- data[:0]
	})
	return nil
}

// sendPart sends a part, unless an interrupted upload has sent the same bytes.
func (u *upload) sendPart(number int, data []byte) (tag string, err error) {
	sum := md5.Sum(data)
	if kept, ok := u.kept[number]; ok && kept.Bytes == int64(len(data)) && kept.Tag == hex.EncodeToString(sum[:]) {
		return kept.Tag, nil
	}
	err = u.request(func(ctx context.Context) (err error) {
		tag, err = u.driver.Part(ctx, u.name, u.id, number, data, sum)
		return err
	})
	return tag, err
}

// request sends a request, again after an error that may pass.
func (u *upload) request(send func(ctx context.Context) error) error {
	_, err := again(u.ctx, func() (struct{}, error) {
		ctx, stop := context.WithTimeout(u.ctx, u.limit)
		defer stop()
		err := send(ctx)
		if ctx.Err() != nil && u.ctx.Err() == nil {
			err = fmt.Errorf("%w: %s: no answer to a request that writes for %v (%d x remote.stall)",
				source.ErrUnavailable, u.name, u.limit, partStalls)
		}
		return struct{}{}, err
	})
	return err
}

// Commit is part of source.Upload.
func (u *upload) Commit(only bool) error {
	if u.n == 0 {
		sum := md5.Sum(u.part)
		return u.request(func(ctx context.Context) error { return u.driver.Put(ctx, u.name, u.part, sum, only) })
	}
	err := u.send()
	u.sending.Wait()
	if err = errors.Join(err, u.err); err != nil {
		return err
	}
	return u.request(func(ctx context.Context) error { return u.driver.Complete(ctx, u.name, u.id, u.tags, only) })
}

// Close is part of source.Upload.
func (u *upload) Close() error {
	u.sending.Wait()
	return nil
}

// stream is an Upload of a StreamDriver. What an interrupted one has sent is lost.
type stream struct {
	driver StreamDriver
	ctx    context.Context
	name   string
	to     io.WriteCloser
	held   bytes.Buffer // the first bytes: Commit says whether the object may exist, and it must be known at the begin
	stop   context.CancelFunc
}

// Write is part of source.Upload.
func (s *stream) Write(p []byte) (int, error) {
	if s.to == nil && s.held.Len()+len(p) <= leastPart {
		return s.held.Write(p)
	}
	if err := s.begin(false); err != nil {
		return 0, err
	}
	n, err := s.to.Write(p)
	if err != nil {
		err = fmt.Errorf("%w: %s: %w", source.ErrUnavailable, s.name, err)
	}
	return n, err
}

func (s *stream) begin(only bool) (err error) {
	if s.to != nil {
		return nil
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(s.ctx)
	if s.to, err = s.driver.Stream(ctx, s.name, only); err == nil {
		_, err = s.to.Write(s.held.Bytes())
	}
	return err
}

// Commit is part of source.Upload. only holds for objects of at most one part.
func (s *stream) Commit(only bool) error {
	if err := s.begin(only); err != nil {
		return errors.Join(err, s.Close())
	}
	defer s.stop()
	return s.to.Close()
}

// Close is part of source.Upload.
func (s *stream) Close() error {
	if s.to == nil {
		return nil
	}
	s.stop() // before Close, which then makes no object
	_ = s.to.Close()
	return nil
}
