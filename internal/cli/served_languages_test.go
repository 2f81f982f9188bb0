package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
)

// These tests need the results of `make test-languages`: the C library with its examples, and a
// Python with the package.

func init() {
	servedChildren["epoch"] = epoch
	if os.Getenv("STOCACHED_TEST_PYTHON") != "" {
		servedName = "tested-in-languages" // clients in C and Python look for a cache of this name in /dev/shm first
	}
}

// epoch is "epoch SOCKETS SEED BATCH": a client that announces its own order, fetches every sample once in batches,
// and compares each.
func epoch(args []string) error {
	seed, err := strconv.Atoi(args[1])
	size, wrong := strconv.Atoi(args[2])
	if err := errors.Join(err, wrong); err != nil {
		return err
	}
	c, err := stocclient.Dial(context.Background(), servedName,
		stocclient.DialOptions{SocketsDir: args[0], Timeout: time.Minute})
	if err != nil {
		return err
	}
	defer c.Close()
	own := order.Order{Samples: uint64(c.Info().Samples), Kind: order.Shuffled, Seed: uint64(seed)}
	e, err := own.Epoch(0)
	if err != nil {
		return err
	}
	if _, err := c.Announce(context.Background(), stocclient.Plan{Order: own, Batch: size}); err != nil {
		return err
	}
	all := make([]int, c.Info().Samples)
	e.Fill(all, 0, 1)
	row := c.Info().SampleBytes
	for batch := range slices.Chunk(all, size) {
		if c.Info().Variable {
			samples, err := c.FetchSamples(context.Background(), batch)
			if err != nil {
				return err
			}
			for k, i := range batch {
				if !bytes.Equal(samples[k], raggedRecord(i)) {
					return fmt.Errorf("sample %d came wrong", i)
				}
			}
			continue
		}
		dst := make([]byte, len(batch)*row)
		if err := c.Fetch(context.Background(), batch, dst, row); err != nil {
			return err
		}
		for k, i := range batch {
			if !bytes.Equal(dst[k*row:][:row], servedRecord(i)) {
				return fmt.Errorf("sample %d came wrong", i)
			}
		}
	}
	return nil
}

// pythonEpoch is the same in Python: NAME, SEED, the file or folder of the samples, and BATCH. Its attach waits a minute
// for a server that is killed and started again, as Dial does above.
const pythonEpoch = `
import sys
import time
import numpy as np
import stocached
from stocached._cache.served import announce

name, seed, path, size = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def attach():
    end = time.monotonic() + 60
    while True:
        try:
            return stocached.Cache.attach(name)
        except stocached.CacheNotFoundError:
            if time.monotonic() > end:
                raise

with attach() as cache:
    if cache.variable:
        records = [np.fromfile(f"{path}/{i:06d}.bin", np.uint8) for i in range(cache.samples)]
    else:
        records = np.fromfile(path, np.uint8).reshape(cache.samples, -1)
    epoch = stocached.Order(cache.samples, seed=seed).epoch(0)
    announce(cache, epoch.shard(0, 1), size)
    for begin in range(0, cache.samples, size):
        batch = epoch.indices(begin, min(size, cache.samples - begin))
        rows = cache.fetch(batch, timeout=60)
        if not cache.variable:
            rows, ok = rows
            assert ok.all()
        for i, row in zip(batch, rows):
            assert np.array_equal(np.frombuffer(row, np.uint8), records[i]), i
`

// language is one way to read a whole epoch: a command whose exit status says whether all was
// right.
type language struct {
	name string
	make func(s *served, seed, batch int) *exec.Cmd
}

func languages(t *testing.T) []language {
	root, err := filepath.Abs("../..")
	fatal.If(t, err)
	c, python := filepath.Join(root, "build/c/example-fetch"), os.Getenv("STOCACHED_TEST_PYTHON")
	if python == "" {
		t.Skip("make test-languages runs this test, and sets STOCACHED_TEST_PYTHON")
	}
	if _, err := os.Stat(c); err != nil {
		t.Fatalf("this test needs build/c/example-fetch (%v): run make test-languages", err)
	}
	if python, err = filepath.Abs(filepath.Join(root, python)); err != nil {
		t.Fatal(err)
	}
	return []language{
		{"Go", func(s *served, seed, batch int) *exec.Cmd {
			p := exec.Command(os.Args[0], s.sockets, strconv.Itoa(seed), strconv.Itoa(batch))
			p.Env = append(os.Environ(), childVariable+"=epoch")
			return p
		}},
		{"C", func(s *served, seed, batch int) *exec.Cmd {
			return exec.Command(c, servedName, strconv.Itoa(seed), strconv.Itoa(batch))
		}},
		{"Python", func(s *served, seed, batch int) *exec.Cmd {
			return exec.Command(python, "-c", pythonEpoch, servedName, strconv.Itoa(seed), s.records, strconv.Itoa(batch))
		}},
	}
}

// readAll starts processes in all languages that read every sample once, in batches. wait waits for
// their ends, and checks that each got the right bytes.
func (s *served) readAll(n, processes, batch int) (wait func()) {
	s.t.Helper()
	crc := uint32(0)
	record := servedRecord
	if info, err := os.Stat(s.records); err == nil && info.IsDir() {
		record = raggedRecord
	}
	for i := range n {
		crc ^= crc32.Checksum(record(i), crc32.MakeTable(crc32.Castagnoli))
	}
	all := languages(s.t)
	var running sync.WaitGroup
	for k := range processes {
		l := all[k%len(all)]
		running.Go(func() {
			p := l.make(s, k, batch)
			p.Env = append(p.Environ(), "STOCACHED_SOCKETS_DIR="+s.sockets)
			p.WaitDelay = time.Second
			late := time.AfterFunc(3*time.Minute, func() { p.Process.Kill() })
			out, err := p.CombinedOutput()
			late.Stop()
			if err != nil {
				s.t.Errorf("process %d, in %s: %v\n%s", k, l.name, err, out)
			} else if l.name == "C" && !strings.Contains(string(out), fmt.Sprintf("samples=%d ", n)) ||
				l.name == "C" && !strings.Contains(string(out), fmt.Sprintf(" crc=%08x ", crc)) {
				s.t.Errorf("process %d, in C: %s want %d samples with crc %08x", k, out, n, crc)
			}
		})
	}
	return running.Wait
}

// Ensure that 8 processes in three languages, each with its own order of 5,000 samples, make the
// server read each sample of a slow source exactly once. All get the right bytes, of samples of one
// size and of many. With fewer slots than samples they get them too.
func TestEverySampleIsReadOnce(t *testing.T) {
	languages(t)
	const processes = 8
	for _, test := range []struct {
		size    string
		samples int
	}{{"all", 5000}, {"5MB", 1000}} {
		t.Run(test.size, func(t *testing.T) {
			n := test.samples
			s := configureServed(t, fmt.Sprintf("size: %s, parallel: 16, source: {kind: raw, path: records, "+
				"sample_bytes: %d, limits: {latency: 5ms, heads: 16}}", test.size, servedBytes))
			s.write(n)
			s.start()
			s.readAll(n, processes, 32)()
			c := s.dial()
			room := min(c.Info().Slots, n)
			reads, stored := s.metric("stocached_source_reads_total", fmt.Sprintf("cache=%q", servedName)),
				s.metric("stocached_fills_total", fmt.Sprintf("cache=%q", servedName))
			if (room == n) != (test.size == "all") || int(stored) != room || room == n && int(reads) != n ||
				int(reads) < n {
				t.Errorf("%d slots, %v reads of the source, %v samples stored; want %d reads, each sample once, "+
					"and every slot filled", c.Info().Slots, reads, stored, n)
			}
			expect.Equal(t, ready(t, c.Cache), room, "samples are there")
		})
	}
}

// Ensure that batches of 256 of 8 processes in three languages are right in a cache with room for 64
// samples, of one size and of many: each policy that evicts has one of both. Meanwhile the server is killed and started
// again. For cost, the samples come from a web server that takes very different times.
func TestBatchesLargerThanTheCache(t *testing.T) {
	languages(t)
	const n, slots, local = 1500, 64, "path: records, limits: {latency: 200us, heads: 4}"
	fixed := func(t *testing.T, p shm.Policy) *served {
		source := local
		if p == shm.PolicyCost {
			var all []byte
			for i := range n {
				all = append(all, servedRecord(i)...)
			}
			source = fmt.Sprintf("path: %q", uneven(t, func(string) []byte { return all })+"/records")
		}
		return evictingServer(t, n, slots, p.String(), source)
	}
	ragged := func(t *testing.T, p shm.Policy) *served {
		source := local
		if p == shm.PolicyCost {
			files, list := map[string][]byte{}, ""
			for i := range n {
				name := fmt.Sprintf("%06d.bin", i)
				files["/"+name], list = raggedRecord(i), list+name+"\n"
			}
			manifest := filepath.Join(t.TempDir(), "manifest")
			fatal.If(t, os.WriteFile(manifest, []byte(list), 0o600))
			source = fmt.Sprintf("path: %q, manifest: %q, index: %q", uneven(t, func(path string) []byte { return files[path] }),
				manifest, manifest+".index") // a server that comes back need not ask for all sizes again
		}
		return raggedServer(t, n, slots, p.String(), source)
	}
	for k, p := range shm.EvictingPolicies() {
		t.Run(p.String(), func(t *testing.T) {
			start := fixed
			if k%2 != 0 {
				start = ragged
			}
			batchesAreRight(t, start(t, p), p, n, slots)
		})
	}
}

// uneven starts a web server. Half of all records take 0.2 ms, a quarter 0.4 ms and so on, so there are always a few
// that cost more than those that the cache holds.
func uneven(t *testing.T, content func(path string) []byte) (address string) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			place := crc32.ChecksumIEEE([]byte(r.URL.Path + r.Header.Get("Range")))
			time.Sleep(200 * time.Microsecond << min(bits.TrailingZeros32(place), 7))
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(content(r.URL.Path)))
	}))
	t.Cleanup(web.Close)
	return web.URL
}

func batchesAreRight(t *testing.T, s *served, p shm.Policy, n, slots int) {
	reads := func() int { return int(s.metric("stocached_source_reads_total", fmt.Sprintf("cache=%q", servedName))) }
	wait := s.readAll(n, 8, 256)
	for range 2 {
		fatal.Until(t, "the kill comes in the middle", func() bool { return reads() >= n }) // there are at least 4*n reads
		s.kill()
		s.start()
	}
	before := reads()
	wait()
	if now := reads(); now <= before {
		t.Error("all processes had ended before the server was back")
	}
	c := s.dial()
	stats, err := c.Stats()
	least := 1000
	if p == shm.PolicyCost {
		least = slots / 2 // when it has found the costliest samples, they stay
	}
	t.Logf("%d samples stored, %d evicted", stats.Stored, stats.Evicted)
	if err != nil || stats.Evicted < uint64(least) {
		t.Errorf("%+v, %v", stats, err)
	}
	if c.Info().Variable { // samples of 100 to 3,000 bytes; each loses a part of a slot
		if got := readyOf(t, c.Cache, raggedRecord); got < slots/3 || stats.Corrupt+stats.Lost != 0 {
			t.Errorf("%d samples are there, %+v", got, stats)
		}
	} else if got := ready(t, c.Cache); got != c.Info().Slots || got < slots || got > slots+1 {
		t.Errorf("%d samples are there, of %d slots", got, c.Info().Slots)
	}
}
