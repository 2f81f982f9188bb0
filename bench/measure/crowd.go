package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/source"
)

// Number of readers, and of caches of one server.
const (
	crowdReaders = 100
	crowdCaches  = 64
)

// Crowd measures the fetch of one missing sample by many readers at the same time, beside one
// reader of a server with one cache. Each reader has its own connection and handle, and requests
// the next sample as soon as it has the last. each is the number of samples of a reader. Two
// measurements: the percentiles.
func Crowd(b *Box, r Records, size string, each, runs int) (all []report.Measurement, err error) {
	s, err := b.Data.raw(r)
	if err != nil {
		return nil, err
	}
	many, err := b.crowd("crowd", s, crowdCaches, crowdReaders)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, many.end()) }()
	one, err := b.crowd("alone", s, 1, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, one.end()) }()
	return Latencies("server/crowd", size, runs,
		many.subject(r, fmt.Sprintf("%d readers, %d caches", crowdReaders, crowdCaches), each),
		one.subject(r, "1 reader, 1 cache", r.Samples))
}

// crowd is a server and its readers.
type crowd struct {
	server  *server
	readers []*client.Served // reader k reads cache k % caches
	caches  int
}

func (b *Box) crowd(name string, s source.Settings, caches, readers int) (c *crowd, err error) {
	var configured []served
	for k := range caches {
		configured = append(configured, b.cache(fmt.Sprintf("%s-%d", name, k), s))
	}
	c = &crowd{caches: caches}
	if c.server, err = b.serve(name, configured...); err != nil {
		return nil, err
	}
	for k := range readers {
		r, err := c.server.dial(configured[k%caches].Name)
		if err != nil {
			return nil, errors.Join(err, c.end())
		}
		c.readers = append(c.readers, r)
	}
	return c, nil
}

func (c *crowd) end() (err error) {
	for _, r := range c.readers {
		err = errors.Join(err, r.Close())
	}
	return errors.Join(err, c.server.end())
}

// subject fetches `each` samples with every reader, no sample twice.
func (c *crowd) subject(r Records, name string, each int) Subject {
	var times []float64
	order := r.order()
	return Subject{Name: name, Samples: each * len(c.readers), Times: &times, Helper: c.server.pid,
		Setup: func() (err error) {
			for k := range min(c.caches, len(c.readers)) {
				err = errors.Join(err, emptied(c.readers[k]))
			}
			return err
		},
		Run: func() error {
			own := make([][]float64, len(c.readers))
			errs := make([]error, len(c.readers))
			var all sync.WaitGroup
			for k, reader := range c.readers {
				all.Go(func() {
					row := make([]byte, r.Bytes)
					errs[k] = timed(&own[k], order[k/c.caches*each:][:each], func(i int) error {
						return reader.Fetch(context.Background(), []int{i}, row, r.Bytes)
					})
				})
			}
			all.Wait()
			for _, part := range own {
				times = append(times, part...)
			}
			return errors.Join(errs...)
		}}
}
