package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// BatchSizes are the sizes of the loader's cases; quick ones only show that all works. A run reads
// an epoch, or Reads samples of it.
func BatchSizes(quick bool) []Size {
	if quick {
		return []Size{{Name: "image", Bytes: 196608, Samples: 128, Reads: 128, Batch: 64},
			{Name: "small", Bytes: 3072, Samples: 2048, Reads: 2048, Batch: 256}}
	}
	return []Size{{Name: "image", Bytes: 196608, Samples: 1500, Reads: 1472, Batch: 64},
		{Name: "small", Bytes: 3072, Samples: 200000, Reads: 65536, Batch: 256}}
}

// ahead is the number of batches made ahead. Gathering alone uses as many further buffers.
const ahead = 2

// stepThreads gather during a step: the other core runs the step.
const stepThreads = 1

// Batches measures a loader's batches when all samples are in the cache, against gathering the same
// samples alone. It does so without a training step, and with one that takes as long as a gather.
func Batches(z Size, dir string, runs int, emit func(report.Measurement)) error {
	c, remove, err := z.filled(dir, "batches")
	if err != nil {
		return err
	}
	defer remove() //nolint:errcheck // a file that stays fails nothing
	of := order.Order{Samples: uint64(z.Samples), Kind: order.Shuffled, Seed: 7}
	epoch, err := of.Epoch(0)
	if err != nil {
		return err
	}
	indices := make([]int, z.Reads/z.Batch*z.Batch)
	epoch.Fill(indices, 0, 1)
	buffers := make([][]byte, ahead+2) // as many as the loader has
	for k := range buffers {
		buffers[k] = make([]byte, z.Batch*z.Bytes)
		touch(buffers[k])
	}
	gather := func(threads int, step func()) func() error {
		return func() error {
			for at := 0; at < len(indices); at += z.Batch {
				n, err := c.Gather(indices[at:at+z.Batch], buffers[at/z.Batch%len(buffers)], client.GatherOptions{Stride: z.Bytes, Threads: threads})
				if n != z.Batch || err != nil {
					return errors.Join(errMiss, err)
				}
				step()
			}
			return nil
		}
	}
	batches := func(threads int, step func()) (func() error, error) {
		l, err := loader.New(loader.FromCache(c, miss),
			loader.Options{BatchSize: z.Batch, Order: of, Ahead: ahead, Threads: threads})
		return func() error {
			if err := l.SetEpoch(0); err != nil {
				return err
			}
			left := len(indices) / z.Batch
			for b, err := range l.Batches(context.Background()) {
				if err != nil {
					return err
				}
				step()
				b.Release()
				if left--; left == 0 {
					return nil
				}
			}
			return fmt.Errorf("%d batches too few", left)
		}, err
	}
	none := func() {}
	for _, threads := range []int{1, 2} {
		ours, err := batches(threads, none)
		if err != nil {
			return err
		}
		m, err := Alternate(fmt.Sprintf("loader/go-batches-%d", threads), z.Name, runs,
			Subject{Name: "batches", Samples: len(indices), Run: ours},
			Subject{Name: "gather alone", Samples: len(indices), Run: gather(threads, none)})
		if err != nil {
			return err
		}
		emit(m)
	}
	step, err := asLongAs(gather(stepThreads, none), len(indices)/z.Batch)
	if err != nil {
		return err
	}
	ours, err := batches(stepThreads, step)
	if err != nil {
		return err
	}
	m, err := Alternate("loader/go-step", z.Name, runs,
		Subject{Name: "batches, each followed by a step", Samples: len(indices), Run: ours},
		Subject{Name: "gather, each followed by a step", Samples: len(indices), Run: gather(stepThreads, step)},
		Subject{Name: "steps alone", Samples: len(indices), Run: func() error {
			for range len(indices) / z.Batch {
				step()
			}
			return nil
		}})
	if err != nil {
		return err
	}
	emit(m)
	return nil
}

func miss(context.Context, int, []byte) ([]byte, error) { return nil, errMiss }

// asLongAs returns a busy loop that takes the n-th part of the time of a run, the fastest of three.
func asLongAs(run func() error, n int) (step func(), err error) {
	best := time.Duration(0)
	for range 3 {
		began := time.Now()
		if err := run(); err != nil {
			return nil, err
		}
		if took := time.Since(began); best == 0 || took < best {
			best = took
		}
	}
	const probe = 1 << 22
	began := time.Now()
	runtime.KeepAlive(compute(probe))
	turns := int(float64(probe) * best.Seconds() / float64(n) / time.Since(began).Seconds())
	return func() { runtime.KeepAlive(compute(turns)) }, nil // else the compiler could remove the loop
}

// compute uses processor time and no memory.
//
//go:noinline
func compute(turns int) (x uint64) {
	for x = 1; turns > 0; turns-- {
		x = x*0x9E3779B97F4A7C15 + 1
	}
	return x
}

// sleeping is a source whose reads only sleep.
type sleeping struct {
	source.Source // the other methods, which are not called
	samples       int
}

// latency of a read.
const latency = time.Millisecond

func (s sleeping) Info() source.Info {
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{64}}}, false)
	if err != nil {
		panic(err)
	}
	return source.Info{Samples: s.samples, Schema: schema}
}

func (s sleeping) Size(int) (int, error) { return 64, nil }

func (s sleeping) Where(i int) string { return fmt.Sprint(i) }

func (s sleeping) Read(_ context.Context, _ int, dst []byte) (int, error) {
	time.Sleep(latency)
	return len(dst), nil
}

// SleepingLoads measures how loads that sleep for a millisecond scale with the goroutines of a
// loader, against as many bare goroutines that sleep.
func SleepingLoads(quick bool, runs int, emit func(report.Measurement)) error {
	perWorker := 320
	if quick {
		perWorker = 32
	}
	for workers := 1; workers <= 8; workers++ {
		samples := perWorker * workers
		l, err := loader.New(loader.FromSource(sleeping{samples: samples}),
			loader.Options{BatchSize: 32, Workers: workers})
		if err != nil {
			return err
		}
		m, err := Alternate("loader/go-workers", fmt.Sprint(workers), runs,
			Subject{Name: "batches", Samples: samples, Run: func() error {
				for b, err := range l.Batches(context.Background()) {
					if err != nil {
						return err
					}
					b.Release()
				}
				return nil
			}},
			Subject{Name: "bare goroutines", Samples: samples, Run: func() error {
				var next atomic.Int64
				var all sync.WaitGroup
				for range workers {
					all.Go(func() {
						for next.Add(1) <= int64(samples) {
							time.Sleep(latency)
						}
					})
				}
				all.Wait()
				return nil
			}})
		if err != nil {
			return err
		}
		emit(m)
	}
	return nil
}
