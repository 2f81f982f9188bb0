package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// fillBatch is the number of samples of a request. fillRequests requests are under way, so that the
// server is never idle.
const (
	fillBatch    = 256
	fillRequests = 2
)

// FillRaw, FillBlock and FillTree measure how fast a server fills a whole cache from files in the
// page cache. Beside it, as many goroutines as the server has do only what is necessary: they read
// the same bytes in the same order into reused buffers. Others also write them to a file on the
// tmpfs, to show the time of that.
func FillRaw(b *Box, r Records, size string, runs int) (report.Measurement, error) {
	s, err := b.Data.raw(r)
	if err != nil {
		return report.Measurement{}, err
	}
	return b.fill("server/fill-raw", size, r, s, runs, oneFile(s["path"].(string)), "pread")
}

// FillBlock is the same from block files, beside the reads of FillRaw's file.
func FillBlock(b *Box, r Records, size string, runs int) (report.Measurement, error) {
	raw, err := b.Data.raw(r)
	if err != nil {
		return report.Measurement{}, err
	}
	s, err := b.Data.block(r)
	if err != nil {
		return report.Measurement{}, err
	}
	return b.fill("server/fill-block", size, r, s, runs, oneFile(raw["path"].(string)), "pread")
}

// FillTree is the same from a tree of files.
func FillTree(b *Box, r Records, size string, runs int) (report.Measurement, error) {
	s, err := b.Data.tree(r)
	if err != nil {
		return report.Measurement{}, err
	}
	return b.fill("server/fill-dir", size, r, s, runs, manyFiles(s["path"].(string)), "open, read, close")
}

// FillPictures measures how fast a server fills a cache from JPEG files, at 224 x 224: with
// stocached-decode, beside Go's decoder. The server runs twice in a round, to show the noise.
//
// Beside it run bare threads of the C library, one a processor, with the same decoder. Some decode the
// same bytes again and again. Others read the same files as the server, in the same order, and decode
// them. The last ones also write the pixels to a new file on the tmpfs, as the server does. build is the
// folder of the C programs.
func FillPictures(b *Box, picture, build string, n, runs int) (report.Measurement, error) {
	s, err := b.Data.pictures(picture, n)
	if err != nil {
		return report.Measurement{}, err
	}
	order := Records{Samples: n}.order()
	with := func(name, decoder string) Subject {
		var cold *servedCache
		c := b.cache("pictures", s)
		c.Decode, c.Parallel = map[string]any{"resize": []int{224, 224}}, 0 // its default with decode
		return Subject{Name: name, Samples: n,
			Setup: func() (err error) {
				if err = os.Setenv("STOCACHED_DECODE", decoder); err == nil {
					cold, err = b.serveOne("pictures", c)
				}
				return err
			},
			Run: func() error { return fillAll(cold.client, order) }, Clean: func() error { return cold.end() },
			Helper: func() int { return cold.pid() }}
	}
	bare := func(from string, more ...string) error {
		arguments := []string{from, "224", "224", "0", "0", fmt.Sprint(runtime.NumCPU()), fmt.Sprint(n)}
		return exec.Command(filepath.Join(build, "image/pixels"), append(arguments, more...)...).Run()
	}
	list, out := filepath.Join(b.Dir, "list"), filepath.Join(b.Dir, "pixels")
	var names strings.Builder
	for _, i := range order {
		fmt.Fprintln(&names, fileOf(s["path"].(string), i))
	}
	if err := os.WriteFile(list, []byte(names.String()), 0o600); err != nil {
		return report.Measurement{}, err
	}
	helper := filepath.Join(build, "stocached-decode")
	return Alternate("server/fill-jpeg", "JPEG", runs, with("server", helper),
		with("server, Go's decoder", ""),
		with("server again", helper),
		Subject{Name: "bare threads", Samples: n, Run: func() error { return bare(picture) }},
		Subject{Name: "bare threads, read", Samples: n, Run: func() error { return bare(list, "") }},
		Subject{Name: "bare threads, read, pwrite", Samples: n, Run: func() error { return bare(list, out) },
			Clean: func() error { return os.Remove(out) }})
}

// opener returns a function that reads the bytes of a sample into a buffer, and one that closes the
// files.
type opener func() (read func(i int, dst []byte) error, end func() error, err error)

func oneFile(path string) opener {
	return func() (func(int, []byte) error, func() error, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}
		return func(i int, dst []byte) error { return readAt(int(f.Fd()), dst, int64(i)*int64(len(dst))) }, f.Close, nil
	}
}

func manyFiles(tree string) opener {
	return func() (func(int, []byte) error, func() error, error) {
		return func(i int, dst []byte) error { return readFile(fileOf(tree, i), dst) }, func() error { return nil }, nil
	}
}

// readFile opens, reads and closes a file by system calls.
func readFile(path string, dst []byte) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(readAt(fd, dst, 0), unix.Close(fd))
}

func readAt(fd int, dst []byte, offset int64) error {
	if n, err := unix.Pread(fd, dst, offset); n != len(dst) || err != nil {
		return fmt.Errorf("pread of %d bytes: %d, %w", len(dst), n, err)
	}
	return nil
}

func writeAt(fd int, p []byte, offset int64) error {
	if n, err := unix.Pwrite(fd, p, offset); n != len(p) || err != nil {
		return fmt.Errorf("pwrite of %d bytes: %d, %w", len(p), n, err)
	}
	return nil
}

func (b *Box) fill(name, size string, r Records, s source.Settings, runs int, open opener,
	reads string) (m report.Measurement, err error) {
	read, end, err := open()
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, end()) }()
	order := r.order()
	var cold *servedCache
	warm, err := b.serveOne("filled", b.cache("filled", s))
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, warm.end()) }()
	bare := func(reserve bool) Subject {
		var out *os.File
		return Subject{Name: reads + ", pwrite", Samples: r.Samples,
			Setup: func() (err error) {
				out, err = bareFile(b.Dir, int64(r.Samples)*int64(r.Bytes), reserve)
				return err
			},
			Run: func() error {
				return each(order, r.Bytes, func(i int, buffer []byte) error {
					if err := read(i, buffer); err != nil {
						return err
					}
					return writeAt(int(out.Fd()), buffer, int64(i)*int64(r.Bytes))
				})
			},
			Clean: func() error { return out.Close() }}
	}
	intoNew, again := bare(false), bare(true)
	again.Name += ", into pages that are there"
	return Alternate(name, size, runs,
		Subject{Name: "server", Samples: r.Samples,
			Setup: func() (err error) { cold, err = b.serveOne("cold", b.cache("cold", s)); return err },
			Run: func() error {
				return fillAll(cold.client, order)
			}, Clean: func() error { return cold.end() }, Helper: func() int { return cold.pid() }},
		Subject{Name: "server, into pages that are there", Samples: r.Samples, Setup: func() error {
			return emptied(warm.client)
		},
			Run: func() error { return fillAll(warm.client, order) }, Helper: func() int { return warm.pid() }},
		Subject{Name: reads, Samples: r.Samples, Run: func() error { return each(order, r.Bytes, read) }},
		intoNew, again)
}

// order returns a random order of all samples, always the same one.
func (r Records) order() []int { return Size{Samples: r.Samples}.order() }

// servedCache is a server with one cache, and a client of it.
type servedCache struct {
	*server
	client *client.Served
}

func (b *Box) serveOne(name string, c served) (*servedCache, error) {
	s, err := b.serve(name, c)
	if err != nil {
		return nil, err
	}
	h := &servedCache{server: s}
	if h.client, err = s.dial(c.Name); err != nil {
		return nil, errors.Join(err, s.end())
	}
	return h, nil
}

func (h *servedCache) end() error { return errors.Join(h.client.Close(), h.server.end()) }

// fillAll lets a server fill all samples of an order, batch by batch.
func fillAll(c *client.Served, order []int) error {
	return shared(fillRequests, (len(order)+fillBatch-1)/fillBatch, func() func(k int) error {
		return func(k int) error {
			return c.Fill(context.Background(), order[k*fillBatch:min((k+1)*fillBatch, len(order))])
		}
	})
}

// each calls do for the samples of an order on as many goroutines as a server has, each with its
// own buffer.
func each(order []int, bytes int, do func(i int, buffer []byte) error) error {
	return shared(parallel, len(order), func() func(k int) error {
		buffer := make([]byte, bytes)
		return func(k int) error { return do(order[k], buffer) }
	})
}

// shared divides 0..n-1 among goroutines. start makes the function that one of them calls.
func shared(goroutines, n int, start func() func(k int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		all.Go(func() {
			one := start()
			for k := int(next.Add(1)) - 1; k < n && errs[g] == nil; k = int(next.Add(1)) - 1 {
				errs[g] = one(k)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
