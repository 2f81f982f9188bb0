package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/wrap"
)

// FetchOne measures the fetch of one missing sample that its source has in the page cache, with the
// copy to the caller's memory. Beside it: a bare pread and a bare pwrite to a file on the tmpfs,
// the cost of a miss without a server. Also beside it: another process that does these two on
// request. Two measurements: the percentiles.
func FetchOne(b *Box, r Records, size string, program []string, runs int) (all []report.Measurement, err error) {
	s, err := b.Data.raw(r)
	if err != nil {
		return nil, err
	}
	read, end, err := oneFile(s["path"].(string))()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	order := r.order()
	buffer := make([]byte, r.Bytes)
	var theirs, ours, others []float64
	var h *servedCache
	var out *os.File
	var other *asked
	return Latencies("server/fetch-one", size, runs,
		Subject{Name: "Fetch", Samples: len(order), Times: &ours,
			Setup: func() (err error) { h, err = b.serveOne("one", b.cache("one", s)); return err },
			Run: func() error {
				return timed(&ours, order,
					func(i int) error { return h.client.Fetch(context.Background(), []int{i}, buffer, r.Bytes) })
			},
			Clean: func() error { return h.end() }, Helper: func() int { return h.pid() }},
		Subject{Name: "pread, pwrite", Samples: len(order), Times: &theirs,
			Setup: func() (err error) {
				out, err = bareFile(b.Dir, int64(r.Samples)*int64(r.Bytes), false)
				return err
			},
			Run: func() error {
				return timed(&theirs, order, func(i int) error {
					if err := read(i, buffer); err != nil {
						return err
					}
					return writeAt(int(out.Fd()), buffer, int64(i)*int64(r.Bytes))
				})
			},
			Clean: func() error { return out.Close() }},
		Subject{Name: "another process, asked", Samples: len(order), Times: &others,
			Setup: func() (err error) {
				if out, err = bareFile(b.Dir, int64(r.Samples)*int64(r.Bytes), false); err == nil {
					other, err = startAsked(program, s["path"].(string), r, out)
				}
				return err
			},
			Run: func() error { return timed(&others, order, func(i int) error { return other.fetch(i, buffer) }) },
			Clean: func() error {
				return errors.Join(other.end(), out.Close())
			}, Helper: func() int { return other.command.Process.Pid }})
}

// timed records the time of each sample.
func timed(times *[]float64, order []int, one func(i int) error) error {
	for _, i := range order {
		began := time.Now()
		if err := one(i); err != nil {
			return err
		}
		*times = append(*times, time.Since(began).Seconds())
	}
	return nil
}

// FetchBatch measures batches of missing samples. Beside it: reads of the samples by as many
// goroutines as the server has, and the same with a pwrite to a file on the tmpfs after each.
func FetchBatch(b *Box, r Records, size string, batch, runs int) (m report.Measurement, err error) {
	s, err := b.Data.raw(r)
	if err != nil {
		return m, err
	}
	read, end, err := oneFile(s["path"].(string))()
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, end()) }()
	h, err := b.serveOne("batches", b.cache("batches", s))
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, h.end()) }()
	order := r.order()
	rows := make([]byte, batch*r.Bytes)
	touch(rows)
	batches := func(name string, one func(indices []int) error) Subject {
		return Subject{Name: name, Samples: len(order) / batch * batch, Run: func() error {
			for at := 0; at+batch <= len(order); at += batch {
				if err := one(order[at : at+batch]); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	ours := batches("Fetch", func(indices []int) error {
		return h.client.Fetch(context.Background(), indices, rows,
			r.Bytes)
	})
	ours.Setup, ours.Helper = func() error { return emptied(h.client) }, func() int { return h.pid() }
	var out *os.File
	bound := batches("pread, pwrite", func(indices []int) error {
		return each(indices, r.Bytes, func(i int, buffer []byte) error {
			if err := read(i, buffer); err != nil {
				return err
			}
			return writeAt(int(out.Fd()), buffer, int64(i)*int64(r.Bytes))
		})
	})
	bound.Setup = func() (err error) { out, err = bareFile(b.Dir, int64(r.Samples)*int64(r.Bytes), true); return err }
	bound.Clean = func() error { return out.Close() }
	return Alternate("server/fetch-batch", size, runs, ours,
		batches("pread", func(indices []int) error { return each(indices, r.Bytes, read) }), bound)
}

// device is a slow source, such as files of a network.
var device = source.Settings{"latency": "5ms", "heads": parallel, "bytes_per_second": "1GB"}

// FetchSlow is FetchBatch from a slow device, beside the same reads of the device by as many
// goroutines.
func FetchSlow(b *Box, r Records, size string, batch, runs int) (m report.Measurement, err error) {
	settings, err := b.Data.raw(r)
	if err != nil {
		return m, err
	}
	bare, err := kinds.Open(context.Background(), settings)
	if err != nil {
		return m, err
	}
	slow, err := wrap.Apply(bare, map[string]any{"limits": map[string]any(device)}, nil)
	if err != nil {
		return m, errors.Join(err, bare.Close())
	}
	defer func() { err = errors.Join(err, slow.Close()) }()
	settings["limits"] = map[string]any(device)
	h, err := b.serveOne("slow", b.cache("slow", settings))
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, h.end()) }()
	order := r.order()[:batch]
	rows := make([]byte, batch*r.Bytes)
	touch(rows)
	return Alternate("server/fetch-batch-slow", size, runs,
		Subject{Name: "Fetch", Samples: batch, Setup: func() error {
			return emptied(h.client)
		}, Helper: func() int { return h.pid() },
			Run: func() error { return h.client.Fetch(context.Background(), order, rows, r.Bytes) }},
		Subject{Name: "reads", Samples: batch, Run: func() error {
			return each(order, r.Bytes, func(i int, buffer []byte) error {
				_, err := slow.Read(context.Background(), i, buffer)
				return err
			})
		}})
}

// FetchHits measures batches that are completely in the cache, beside Gather of the same handle.
func FetchHits(b *Box, r Records, size string, batch, runs int) (m report.Measurement, err error) {
	s, err := b.Data.raw(r)
	if err != nil {
		return m, err
	}
	h, err := b.serveOne("hits", b.cache("hits", s))
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, h.end()) }()
	order := r.order()
	if err := fillAll(h.client, order); err != nil {
		return m, err
	}
	rows, hit := make([]byte, batch*r.Bytes), make([]bool, batch)
	touch(rows)
	const rounds = 2 // over all samples
	batches := func(name string, one func(indices []int) error) Subject {
		return Subject{Name: name, Samples: rounds * (len(order) / batch) * batch, Run: func() error {
			for range rounds {
				for at := 0; at+batch <= len(order); at += batch {
					if err := one(order[at : at+batch]); err != nil {
						return err
					}
				}
			}
			return nil
		}}
	}
	return Alternate("server/fetch-hits", size, runs,
		batches("Fetch", func(indices []int) error {
			return h.client.Fetch(context.Background(), indices, rows,
				r.Bytes)
		}),
		batches("Gather", func(indices []int) error {
			if n, err := h.client.Gather(indices, rows, client.GatherOptions{Stride: r.Bytes, Hit: hit}); n != batch || err != nil {
				return fmt.Errorf("%d of %d: %w", n, batch, errors.Join(errMiss, err))
			}
			return nil
		}))
}
