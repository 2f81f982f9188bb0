package measure

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"

	"golang.org/x/sys/unix"
)

var errMiss = errors.New("a sample of a filled cache was not there")

// Reads measures View, Get and Gather against bare copies of the same bytes in the same order.
func Reads(z Size, dir string, runs int, emit func(report.Measurement)) error {
	c, remove, err := z.filled(dir, "reads")
	if err != nil {
		return err
	}
	defer remove() //nolint:errcheck // a file that stays fails nothing
	all, err := z.payload(c)
	if err != nil {
		return err
	}
	order := z.order()
	touch(all)

	// Normal pages as of an index, not huge ones.
	pages, err := unix.Mmap(-1, 0, 16*len(order), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(pages)
	table, counter := unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&pages[0])), 2*len(order)), new(atomic.Uint64)
	for _, i := range order {
		table[2*i].Store(1)
	}
	m, err := Alternate("go/view", z.Name, runs,
		Subject{Name: "View", Samples: z.Views, Run: func() error {
			for done := 0; done < z.Views; {
				for _, i := range order[:min(len(order), z.Views-done)] {
					if _, hit, err := c.View(i); !hit || err != nil {
						return errors.Join(errMiss, err)
					}
					done++
				}
			}
			return nil
		}},
		Subject{Name: "bare lookup, counted", Samples: z.Views, Run: func() error {
			for done := 0; done < z.Views; {
				for _, i := range order[:min(len(order), z.Views-done)] {
					if look(table, i, counter) == 0 {
						return errMiss
					}
					done++
				}
			}
			return nil
		}})
	if err != nil {
		return err
	}
	emit(m)

	dst := make([]byte, z.Bytes)
	turn := walk{order: order}
	m, err = Alternate("go/get", z.Name, runs,
		Subject{Name: "Get", Samples: z.Reads, Setup: turn.take(z.Reads), Run: func() error {
			for _, i := range turn.now {
				if _, hit, err := c.Get(i, dst); !hit || err != nil {
					return errors.Join(errMiss, err)
				}
			}
			return nil
		}},
		Subject{Name: "copy", Samples: z.Reads, Setup: turn.take(z.Reads), Run: func() error {
			for _, i := range turn.now {
				copy(dst, all[i*z.Bytes:][:z.Bytes])
			}
			return nil
		}},
		Subject{Name: "copy after a lookup", Samples: z.Reads, Setup: turn.take(z.Reads), Run: func() error {
			for _, i := range turn.now {
				// the word is 1: where to copy from depends on it
				copy(dst, all[i*int(look(table, i, counter))*z.Bytes:][:z.Bytes])
			}
			return nil
		}})
	if err != nil {
		return err
	}
	emit(m)

	m, err = gather(z, c, all, order, runs)
	if err != nil {
		return err
	}
	emit(m)
	return nil
}

// look is the least work of a counted lookup in a table in memory. It loads the word of sample i,
// one of every 16 bytes, and adds 1 to counter.
//
//go:noinline
func look(table []atomic.Uint64, i int, counter *atomic.Uint64) uint64 {
	word := table[2*i].Load()
	counter.Add(1)
	return word
}

func gather(z Size, c *client.Cache, all []byte, order []int, runs int) (report.Measurement, error) {
	out, hit := make([]byte, z.Batch*z.Bytes), make([]bool, z.Batch)
	touch(out)
	turn := walk{order: order}
	batches := func(name string, one func(indices []int) error) Subject {
		return Subject{Name: name, Samples: z.Reads, Setup: turn.take(z.Reads), Run: func() error {
			for at := 0; at+z.Batch <= len(turn.now); at += z.Batch {
				if err := one(turn.now[at : at+z.Batch]); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	ours := func(threads int) func([]int) error {
		return func(indices []int) error {
			if n, err := c.Gather(indices, out, client.GatherOptions{Stride: z.Bytes, Hit: hit, Threads: threads}); n != z.Batch || err != nil {
				return errors.Join(errMiss, err)
			}
			return nil
		}
	}
	bare := func(indices []int, out []byte) {
		for k, i := range indices {
			copy(out[k*z.Bytes:][:z.Bytes], all[i*z.Bytes:])
		}
	}
	return Alternate("go/gather", z.Name, runs,
		batches("gather", ours(1)),
		batches("copy loop", func(indices []int) error { bare(indices, out); return nil }),
		batches("gather 2 threads", ours(2)),
		batches("copy loop 2 threads", func(indices []int) error {
			var other sync.WaitGroup
			half := len(indices) / 2
			other.Go(func() { bare(indices[half:], out[half*z.Bytes:]) })
			bare(indices[:half], out)
			other.Wait()
			return nil
		}))
}

// walk hands out a random order piece by piece. So a run does not find the samples of the run
// before in the processor's cache, if there are more samples than one run reads.
type walk struct {
	order []int
	at    int
	now   []int
}

// take returns the set-up of a run that reads n samples.
func (w *walk) take(n int) func() error {
	return func() error {
		if w.at+n > len(w.order) {
			w.at = 0
		}
		w.now = w.order[w.at : w.at+n]
		w.at += n
		return nil
	}
}

// touch maps all pages.
func touch(p []byte) {
	sum := byte(0)
	for i := 0; i < len(p); i += 4096 {
		sum += p[i]
	}
	runtime.KeepAlive(sum)
}
