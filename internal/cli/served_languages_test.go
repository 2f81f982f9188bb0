//go:build languages

package cli

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
)

// These tests need the results of `make test-languages`: the C library with its examples, and a
// Python with the package.

func init() { servedChildren["epoch"] = epoch }

// epoch is "epoch SOCKETS SEED": a client that fetches every sample once, in batches and in its own
// order, and compares each.
func epoch(args []string) error {
	seed, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	c, err := stocclient.Dial(context.Background(), "pets",
		stocclient.DialOptions{SocketsDir: args[0], Timeout: time.Minute})
	if err != nil {
		return err
	}
	defer c.Close()
	order := rand.New(rand.NewSource(int64(seed))).Perm(c.Samples())
	row := c.SampleBytes()
	for len(order) > 0 {
		batch := order[:min(32, len(order))]
		order = order[len(batch):]
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

// pythonEpoch is the same in Python: SEED, and the file of the samples.
const pythonEpoch = `
import sys
import numpy as np
import stocached

seed, path = int(sys.argv[1]), sys.argv[2]
with stocached.Cache.attach("pets") as cache:
    records = np.fromfile(path, np.uint8).reshape(cache.samples, -1)
    order = np.random.default_rng(seed).permutation(cache.samples)
    for begin in range(0, len(order), 32):
        batch = order[begin : begin + 32]
        rows, ok = cache.fetch(batch, timeout=60)
        assert ok.all()
        assert (rows.reshape(len(batch), -1) == records[batch]).all(), batch
`

// language is one way to read a whole epoch: a command whose exit status says whether all was
// right.
type language struct {
	name string
	make func(s *served, seed int) *exec.Cmd
}

func languages(t *testing.T) []language {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	c, python := filepath.Join(root, "build/c/example-fetch"), os.Getenv("STOCACHED_TEST_PYTHON")
	if _, err := os.Stat(c); err != nil || python == "" {
		t.Fatalf("this test needs build/c/example-fetch (%v) and STOCACHED_TEST_PYTHON (%q): run make test-languages",
			err, python)
	}
	if python, err = filepath.Abs(filepath.Join(root, python)); err != nil {
		t.Fatal(err)
	}
	return []language{
		{"Go", func(s *served, seed int) *exec.Cmd {
			p := exec.Command(os.Args[0], s.sockets, strconv.Itoa(seed))
			p.Env = append(os.Environ(), childVariable+"=epoch")
			return p
		}},
		{"C", func(s *served, seed int) *exec.Cmd { return exec.Command(c, "pets", strconv.Itoa(seed)) }},
		{"Python", func(s *served, seed int) *exec.Cmd {
			return exec.Command(python, "-c", pythonEpoch, strconv.Itoa(seed), s.records)
		}},
	}
}

// Ensure that 8 processes in three languages, each with its own order of 5,000 samples, make the
// server read each sample of a slow source exactly once. All get the right bytes, of samples of one
// size and of many. With fewer slots than samples they get them too.
func TestEverySampleIsReadOnce(t *testing.T) {
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
			crc := uint32(0)
			for i := range n {
				crc ^= crc32.Checksum(servedRecord(i), crc32.MakeTable(crc32.Castagnoli))
			}
			all := languages(t)
			var wait sync.WaitGroup
			for k := range processes {
				l := all[k%len(all)]
				wait.Go(func() {
					p := l.make(s, k)
					p.Env = append(p.Environ(), "STOCACHED_SOCKETS_DIR="+s.sockets)
					out, err := p.CombinedOutput()
					if err != nil {
						t.Errorf("process %d, in %s: %v\n%s", k, l.name, err, out)
					} else if l.name == "C" && !strings.Contains(string(out), fmt.Sprintf("samples=%d ", n)) ||
						l.name == "C" && !strings.Contains(string(out), fmt.Sprintf(" crc=%08x ", crc)) {
						t.Errorf("process %d, in C: %s want %d samples with crc %08x", k, out, n, crc)
					}
				})
			}
			wait.Wait()
			c := s.dial()
			room := min(c.Slots(), n)
			reads, stored := s.metric("stocached_source_reads_total", `cache="pets"`),
				s.metric("stocached_fills_total", `cache="pets"`)
			if (room == n) != (test.size == "all") || int(stored) != room || room == n && int(reads) != n ||
				int(reads) < n {
				t.Errorf("%d slots, %v reads of the source, %v samples stored; want %d reads, each sample once, "+
					"and every slot filled", c.Slots(), reads, stored, n)
			}
			if got := ready(t, c.Cache); got != room {
				t.Errorf("%d samples are there, want %d", got, room)
			}
		})
	}
}
