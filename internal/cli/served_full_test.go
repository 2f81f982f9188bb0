package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Ensure that a file system that becomes full under a server only stops new fills. Samples come
// through the socket, cached ones stay, and fills go on when space is free again.
func TestServedOnAFullFileSystem(t *testing.T) {
	// first a whole huge page, so that all present pages are in use, whatever their size
	const n, before = 2000, 2 << 20 / servedBytes
	s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: records, sample_bytes: %d}", servedBytes))
	if err := unix.Mount("tmpfs", s.segments, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=24m"); errors.Is(err,
		unix.EPERM) {
		t.Skip("needs root, to mount a small tmpfs:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(s.segments, unix.MNT_DETACH) })
	s.write(n)
	s.start()
	c := s.dial()
	wantFetch(t, c, first(before))

	filler := filepath.Join(s.segments, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := bytes.Repeat([]byte{1}, 64<<10); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	wantFetch(t, c, first(n))
	full := ready(t, c.Cache)
	if full < before || full > before+100 {
		t.Errorf("%d samples are there on a full file system, of %d before", full, before)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	f.Close()
	wantFetch(t, c, first(n))
	if filled := ready(t, c.Cache); filled != n {
		t.Errorf("%d samples are there when there is room again, want %d", filled, n)
	}
}

// Ensure that a server whose caches do not fit reports it with the numbers, and makes nothing.
func TestServeWithoutRoom(t *testing.T) {
	s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: records, sample_bytes: %d}", servedBytes))
	if err := unix.Mount("tmpfs", s.segments, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=8m"); errors.Is(err,
		unix.EPERM) {
		t.Skip("needs root, to mount a small tmpfs:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(s.segments, unix.MNT_DETACH) })
	s.write(4000) // 12 MB
	p := program("serve", "-c", s.path)
	out, err := p.CombinedOutput()
	if p.ProcessState.ExitCode() != exitMemory || !strings.Contains(string(out), "MiB") ||
		!strings.Contains(string(out), "size") {
		t.Errorf("%v, %s", err, out)
	}
	if left, err := os.ReadDir(s.segments); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
