package measure

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"

	"golang.org/x/sys/unix"
)

// readBatch is the number of samples that a reader reads at a time.
const readBatch = 64

// SharedReaders measures 1, 2 and 4 processes that read batches of samples into their own memory.
// They read from a cache that a server has filled, and from other ways to share samples. Values are
// seconds a sample of all processes together. It also measures the memory of the samples while 4
// processes read them.
func SharedReaders(b *Box, r Records, size string, program []string, runs int, window time.Duration,
	peers bool) (all []report.Measurement, err error) {
	ours, err := b.shared(r)
	if err != nil {
		return nil, err
	}
	them := []*peer{ours, ours.otherwise("stocached, views")}
	defer func() {
		for _, p := range them {
			err = errors.Join(err, p.end())
		}
	}()
	start := []func(Records) (*peer, error){b.files}
	if peers {
		start = append(start, b.redis, b.memcached)
	}
	for _, start := range start {
		p, err := start(r)
		if err != nil {
			return nil, err
		}
		them = append(them, p)
		if p.kind == "redis" {
			them = append(them, p.otherwise("redis, one by one"))
		}
	}
	memory := report.Measurement{Case: "server/memory", Size: size, Note: "what keeps the samples, while 4 " +
		"processes read them: the segment's pages in all processes that map it (PSS) and " +
		"the server's own memory; that of redis-server, of memcached; pages of the files. Buffers of the readers, " +
		"the same for all, are left out"}
	for _, n := range []int{1, 2, 4} {
		m := report.Measurement{Case: fmt.Sprintf("server/readers-%d", n), Size: size}
		held := &memory
		if n < 4 {
			held = nil
		}
		if err := readTogether(&m, held, them, n, r, program, runs, window); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return append(all, memory), nil
}

// readTogether measures n readers of each peer in turn, and then the memory of the peers, if memory
// is not nil.
func readTogether(m, memory *report.Measurement, peers []*peer, n int, r Records, program []string, runs int,
	window time.Duration) error {
	readers := make([][]*process, len(peers))
	for k, p := range peers {
		m.Subjects = append(m.Subjects, report.Subject{Name: p.name})
		workers, end, err := launchAll(program, n, func(w int) []string {
			return []string{"read", p.kind, p.address, strconv.Itoa(r.Samples), strconv.Itoa(r.Bytes),
				strconv.Itoa(w + 1)}
		})
		if err != nil {
			return err
		}
		defer end()
		readers[k] = workers
	}
	err := rounds(runs, len(peers), func(k int, measured bool) error {
		rate, cpu, err := together(readers[k], window)
		if err != nil || !measured {
			return err
		}
		s := &m.Subjects[k]
		s.Samples = int(rate * window.Seconds())
		s.Value, s.CPU = append(s.Value, 1/rate), append(s.CPU, cpu)
		return nil
	})
	if err != nil || memory == nil {
		return err
	}
	for _, p := range peers {
		if p.memory == nil { // already counted under another name
			continue
		}
		bytes, err := p.memory()
		for j, other := range peers { // readers of another kind map the same file
			for _, w := range readers[j] {
				if other.address == p.address {
					mapped, e := shareOf(w.command.Process.Pid, p.address)
					bytes, err = bytes+mapped, errors.Join(err, e)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("memory of %s: %w", p.name, err)
		}
		memory.Subjects = append(memory.Subjects,
			report.Subject{Name: p.name, Unit: copies, Samples: r.Samples,
				Value: []float64{float64(bytes) / float64(r.Samples*r.Bytes)}})
	}
	return nil
}

// shared returns a cache of ours, filled by a server, as a peer.
func (b *Box) shared(r Records) (*peer, error) {
	s, err := b.Data.raw(r)
	if err != nil {
		return nil, err
	}
	h, err := b.serveOne("shared", b.cache("shared", s))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(fillAll(h.client, r.order()), h.client.Close()); err != nil {
		return nil, errors.Join(err, h.server.end())
	}
	return &peer{name: "stocached", kind: "stocached", address: h.path("shared"), pid: h.pid, end: h.server.end,
		memory: func() (int64, error) {
			mapped, err1 := shareOf(h.pid(), h.path("shared"))
			own, err2 := anonymous(h.pid())
			return mapped + own, errors.Join(err1, err2)
		}}, nil
}

// readWorker is the worker that reads batches: read KIND ADDRESS SAMPLES BYTES SEED.
func readWorker(kind, address string, samples, bytes int, seed uint64) error {
	read, err := reads(kind, address, bytes)
	if err != nil {
		return err
	}
	order := rand.New(rand.NewPCG(seed, 0)).Perm(samples)
	rows := make([]byte, readBatch*bytes)
	touch(rows)
	fmt.Println("ready")
	for in, at := bufio.NewScanner(os.Stdin), 0; in.Scan(); {
		var start, window int64
		if _, err := fmt.Sscanf(in.Text(), "go %d %d", &start, &window); err != nil {
			return err
		}
		time.Sleep(time.Duration(start - monotonic() - int64(time.Millisecond)))
		for monotonic() < start {
		}
		var before, after unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
			return err
		}
		done := 0
		for done == 0 || monotonic() < start+window {
			if at+readBatch > len(order) {
				at = 0
			}
			indices := order[at : at+readBatch]
			if err := read(indices, rows); err != nil {
				return err
			}
			if got := binary.LittleEndian.Uint64(rows[(readBatch-1)*bytes:]); got != uint64(indices[readBatch-1]) {
				return fmt.Errorf("%s: sample %d has the bytes of %d", kind, indices[readBatch-1], got)
			}
			at += readBatch
			done += readBatch
		}
		took := monotonic() - start
		if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
			return err
		}
		fmt.Println(done, took, int64((seconds(&after)-seconds(&before))*1e9))
	}
	return nil
}

// lookAt reads samples in place: a byte of each cache line. It copies only the first bytes, which
// identify the sample.
func lookAt(c *client.Served, indices []int, rows []byte, bytes int) error {
	sum := byte(0)
	for k, i := range indices {
		view, hit, err := c.View(i)
		if !hit || err != nil {
			return errors.Join(errMiss, err)
		}
		for at := 0; at < len(view); at += 64 {
			sum += view[at]
		}
		copy(rows[k*bytes:], view[:8])
	}
	runtime.KeepAlive(sum)
	return nil
}

// reads returns a function that reads a batch into rows, one after the other.
func reads(kind, address string, bytes int) (func(indices []int, rows []byte) error, error) {
	switch kind {
	case "stocached", "stocached, views":
		dir, name := filepath.Split(address)
		c, err := client.Dial(context.Background(), name,
			client.DialOptions{SocketsDir: filepath.Join(dir, name+socketsSuffix)})
		if err != nil {
			return nil, err
		}
		if kind == "stocached" {
			return func(indices []int, rows []byte) error {
				return c.Fetch(context.Background(), indices, rows, bytes)
			}, nil
		}
		return func(indices []int, rows []byte) error { return lookAt(c, indices, rows, bytes) }, nil
	case "files":
		return func(indices []int, rows []byte) error {
			for k, i := range indices {
				if err := readFile(fileOf(address, i), rows[k*bytes:][:bytes]); err != nil {
					return err
				}
			}
			return nil
		}, nil
	case "redis", "redis, one by one", "memcached":
		socket, err := net.Dial("unix", address)
		if err != nil {
			return nil, err
		}
		c := bufio.NewReadWriter(bufio.NewReaderSize(socket, 64<<10), bufio.NewWriterSize(socket, 64<<10))
		ask := map[string]func(*bufio.ReadWriter, []int, []byte, int) error{"redis": askRedis,
			"redis, one by one": askRedisOne, "memcached": askMemcached}[kind]
		return func(indices []int, rows []byte) error { return ask(c, indices, rows, bytes) }, nil
	}
	return nil, fmt.Errorf("no readers of kind %q", kind)
}
