package server

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/stocached/stocached/server/admin"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"

	"github.com/cenkalti/backoff/v5"
)

// parts reads objects of addresses for programs that know what is in them: files of formats.
type parts Server

// partRetry is for how long a read that may succeed is tried again.
const partRetry = 30 * time.Second

// How many bytes of parts programs get at a time: other requests wait. And how many storages stay open without a request.
var (
	mostPartBytes int64 = 256 << 20
	mostPlaces          = 64
)

// openPlace is storage that requests share.
type openPlace struct {
	*source.Place
	uses int // requests under way; under mu of OnDemand, as last
	last time.Time
}

// List lists the objects of an address. Errors: those of source.Objects; ErrInvalid; ErrEnding.
func (s *parts) List(ctx context.Context, p admin.Part, each func(o admin.Object)) (err error) {
	defer s.onDemand.request()()
	defer s.sayEnding(&err)
	place, path, err := s.place(&p)
	if err != nil {
		return err
	}
	defer s.onDemand.leave(place)
	ctx = s.onDemand.failures.Context(source.Opening(ctx))
	if !p.List {
		stamp, err := place.Stamp(ctx, path)
		if err == nil {
			each(admin.Object{Name: path, Stamp: stamp})
		}
		return err
	}
	return place.Objects().List(ctx, path, func(name string, stamp source.Stamp) error {
		if !source.StandsForFolder(name) {
			each(admin.Object{Name: name, Stamp: stamp})
		}
		return nil
	})
}

// Read reads a part of an object, and calls give with it. Errors: those of source.Objects; ErrInvalid; ErrEnding.
func (s *parts) Read(ctx context.Context, p admin.Part, give func(data []byte)) (err error) {
	defer s.onDemand.request()()
	defer s.sayEnding(&err)
	bytes := int64(p.Size + p.More)
	if err := s.onDemand.room.Acquire(ctx, bytes); err != nil {
		return err
	}
	defer s.onDemand.room.Release(bytes)
	var b buffer
	defer b.free()
	data, err := s.read(ctx, p, &b)
	if err == nil {
		give(data)
	}
	return err
}

// read reads a part into a buffer, or returns one that was read before. What another request reads now is not read again.
func (s *parts) read(ctx context.Context, p admin.Part, into *buffer) (data []byte, err error) {
	place, path, err := s.place(&p)
	if err != nil {
		return nil, err
	}
	defer s.onDemand.leave(place)
	soon := s.onDemand.soon
	of := object{place, path, source.Stamp{Bytes: p.Bytes, ModifiedNs: p.Tag}}
	pieces, size := soon.share(&p, of, into)
	if len(pieces) == 1 && !pieces[0].own && pieces[0].readers == nil {
		if data := soon.take(ctx, pieces[0], p.More); data != nil {
			return data, nil
		}
	}
	data = into.take(size)
	return data, s.fill(ctx, of, &p, pieces, data, into, false)
}

// fill reads the pieces of a request that are its own, and copies those of others as soon as they are there: no request waits
// for one that reads for longer. again: others read what these pieces have, and failed.
func (s *parts) fill(ctx context.Context, of object, p *admin.Part, pieces []piece, data []byte, into *buffer, again bool) (err error) {
	soon, lacks := s.onDemand.soon, make([]bool, len(pieces))
	waits, stop := context.WithCancel(ctx)
	defer stop()
	var copies sync.WaitGroup
	for k, each := range pieces {
		if each.own {
			continue
		}
		copies.Go(func() {
			got := soon.take(waits, each, 0)
			copy(each.in(data, p.At), got)
			if each.readers != nil {
				each.readers.Done()
			}
			lacks[k] = got == nil
		})
	}
	for _, each := range pieces { // who waits for others first may wait for one that waits for it
		if each.own {
			part := each.in(data, p.At)
			if err == nil {
				err = s.readAt(ctx, of, part, each.at)
			}
			more := max(0, int(each.at+int64(each.size)-p.At)-p.Size)
			soon.finish(each.part, part, more, err)
		}
	}
	if err != nil {
		stop()
	}
	copies.Wait()
	for k, each := range pieces {
		if !lacks[k] || err != nil {
			continue
		}
		part := each.in(data, p.At)
		if again { // requests that wait for each other's retries would wait for all of them
			err = s.readAt(ctx, of, part, each.at)
			continue
		}
		lost := admin.Part{At: each.at, Size: each.size}
		pieces, _ := soon.share(&lost, of, into)
		err = s.fill(ctx, of, &lost, pieces, part, into, true)
	}
	return err
}

// readAt reads a part from storage, and again after errors that pass.
func (s *parts) readAt(ctx context.Context, of object, into []byte, at int64) error {
	failures, again := s.onDemand.failures, false
	told := source.RetriesOf(failures.Context(ctx))
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := of.place.Objects().ReadAt(ctx, of.path, of.stamp, into, at)
		if err != nil && !wrap.Retryable(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(partRetry), backoff.WithNotify(func(err error, _ time.Duration) {
		if !again {
			told.Begin()
			again = true
		}
		told.Failed(err)
	}))
	if again {
		told.End()
	}
	if err != nil {
		failures.Failed(ctx, err)
		s.onDemand.counts.Failed(ctx, err)
	}
	return err
}

// partBuffers are those of large parts, by MiB. Without them, garbage was as large as all parts under way, and each buffer took new
// pages of the kernel.
var partBuffers [admin.MostPart>>20 + 1]sync.Pool

type buffer struct {
	data    []byte
	pool    *sync.Pool     // nil: of a small part
	readers sync.WaitGroup // other requests that copy from it
}

func (b *buffer) take(size int) []byte {
	if size < 1<<20 {
		return make([]byte, size)
	}
	class := (size + 1<<20 - 1) >> 20
	b.pool = &partBuffers[class]
	if kept, ok := b.pool.Get().(*[]byte); ok {
		b.data = *kept
	} else {
		b.data = make([]byte, class<<20)
	}
	return b.data[:size]
}

// free keeps the memory for another part. The caller does not use the data after it.
func (b *buffer) free() {
	b.readers.Wait()
	if b.pool != nil {
		b.pool.Put(&b.data)
	}
}

// sayEnding makes the error of a request that the end of the server has cancelled one that tells the program to ask again.
func (s *parts) sayEnding(err *error) {
	if *err != nil && (*Server)(s).ending() {
		*err = ErrEnding
	}
}

// place returns where the objects of a request lie, until leave, and its path without what is private. Requests to one
// storage share their connections.
func (s *parts) place(p *admin.Part) (*openPlace, string, error) {
	if (*Server)(s).ending() {
		return nil, "", ErrEnding
	}
	var settings struct {
		source.Remote `key:",squash"`

		Path string `key:"path"`
	}
	if err := p.Source.Decode(&settings); err != nil {
		return nil, "", err
	}
	if !source.IsRemote(settings.Path) {
		return nil, "", noAddress(p.Source["path"])
	}
	d := s.onDemand
	if p.Keys != nil {
		d.Keys(p.Keys.ID, p.Keys.Secret, p.Keys.Token)
	}
	key, err := json.Marshal([]any{settings.Remote.Remote, storage(settings.Path)})
	if err != nil {
		return nil, "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	place, path := d.places[string(key)], source.Public(settings.Path)
	if place == nil {
		opened, err := settings.Place(&settings.Path)
		if err != nil {
			return nil, "", err
		}
		place, path = &openPlace{Place: opened}, settings.Path
		d.makeRoom()
		d.places[string(key)] = place
	}
	place.uses++
	return place, path, nil
}

// leave ends a use of place.
func (d *OnDemand) leave(p *openPlace) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.uses, p.last = p.uses-1, time.Now()
}

// makeRoom closes the storage that no request has used for the longest time, if there are many. It is under mu.
func (d *OnDemand) makeRoom() {
	if d.places == nil {
		d.places = map[string]*openPlace{}
	}
	oldest := ""
	for key, p := range d.places {
		if p.uses == 0 && (oldest == "" || p.last.Before(d.places[oldest].last)) {
			oldest = key
		}
	}
	if oldest != "" && len(d.places) >= mostPlaces {
		d.places[oldest].Close()
		delete(d.places, oldest)
	}
}

// storage is the part of an address that says who answers, and to whom: its scheme, user, host and query.
func storage(address string) string {
	scheme, rest, _ := strings.Cut(address, "://")
	host, name, _ := strings.Cut(rest, "/")
	query := ""
	if strings.HasPrefix(scheme, "http") {
		_, query, _ = strings.Cut(name, "?")
	}
	return scheme + "://" + host + "/?" + query
}

// close ends the connections, when no request is under way.
func (d *OnDemand) close() {
	d.soon.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, place := range d.places {
		place.Close()
	}
	d.places = nil
}
