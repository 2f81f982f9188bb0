package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
)

// fillUp uses all free space of a tmpfs until the file is removed.
func fillUp(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "others")
	f := fatal.Value(os.Create(path))(t)
	defer f.Close()
	for piece := make([]byte, 1<<20); len(piece) > 0; {
		if _, err := f.Write(piece); errors.Is(err, unix.ENOSPC) {
			piece = piece[:len(piece)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// Ensure that a server whose tmpfs is full sends samples and stores nothing, and does not die. The
// next server adopts its cache. A cache that cannot be made is reported with the numbers and leaves
// no file. When space is free, fills go on.
func TestServerOnAFullTmpfs(t *testing.T) {
	const n, size, filled = 60, 100 << 10, 20
	s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: records, sample_bytes: %d}", size))
	fatal.If(t, os.Remove(s.segments))
	fatal.If(t, os.Mkdir(s.segments, 0o700))
	tmpfs.Mount(t, s.segments, "size=16m")
	records := make([]byte, n*size)
	for k := range records {
		records[k] = byte(k>>8 + k*7 + k/size)
	}
	fatal.If(t, os.WriteFile(s.records, records, 0o600))

	taken := fillUp(t, s.segments)
	code, stdout, stderr := cli(t, "serve", "-c", s.path)
	if code != exitMemory || stdout != "" {
		t.Errorf("exit %d, %q", code, stdout)
	}
	contains(t, stderr, "cache", "pets", s.segments, "0 bytes", "of 16777216 bytes (16.0 MiB)")
	if entries, err := os.ReadDir(s.segments); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v: files were left", entries, err)
	}
	fatal.If(t, os.Remove(taken))

	s.start()
	c := s.dial()
	fetch := func(when string, indices []int) {
		t.Helper()
		samples, err := c.FetchSamples(context.Background(), indices)
		if err != nil {
			t.Errorf("%s: %v", when, err)
			return
		}
		for k, i := range indices {
			if !bytes.Equal(samples[k], records[i*size:][:size]) {
				t.Errorf("%s: sample %d came wrong: %d bytes", when, i, len(samples[k]))
			}
		}
	}
	count := func(when string, atLeast, atMost int) {
		t.Helper()
		if stats, err := c.Stats(); err != nil || int(stats.Ready) < atLeast || int(stats.Ready) > atMost {
			t.Errorf("%s: %d samples are there, want %d to %d; %v", when, stats.Ready, atLeast, atMost, err)
		}
	}
	fetch("with room", first(filled))
	taken = fillUp(t, s.segments)
	for range 3 {
		fetch("without", first(n))
	}
	count("without", filled, filled+1) // a sample that begins on a present page may fit
	if stats, err := c.Stats(); err != nil || stats.Full == 0 || stats.Corrupt != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
	s.kill()
	s.start()
	fetch("without, the next server", first(n))
	count("without, the next server", filled, filled+1)
	fatal.If(t, os.Remove(taken))
	fetch("with room again", first(n))
	count("with room again", n, n)
	if lines := strings.Count(s.said(), "\n"); lines > 10 {
		t.Errorf("%d lines of log", lines)
	}
	if v, err := c.Inspect().Verify(0, n); err != nil || v.Corrupt != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}
