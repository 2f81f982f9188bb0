package shm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Ensure that the room of a directory is that of its tmpfs, and shrinks by the promise of a new cache.
func TestRoomIn(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "stocached-room-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	o := Options{Name: "c", Dir: dir, Samples: 1000, SampleBytes: 40 << 10}
	want, err := o.SegmentBytes()
	if err != nil || want < 40<<20 {
		t.Fatalf("%d, %v", want, err)
	}
	var after Room
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) { // until no other process changes much of the tmpfs between two looks
		before, err := RoomIn(dir)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Create(o)
		if err != nil {
			t.Fatal(err)
		}
		if s.SegmentBytes != want {
			t.Errorf("it was to have %d bytes, and has %d", want, s.SegmentBytes)
		}
		allocated, err := s.Allocated()
		if err != nil || allocated == 0 || allocated > 4<<20 {
			t.Errorf("%d bytes allocated, %v: only the control part should be", allocated, err)
		}
		after, err = RoomIn(dir)
		if err != nil || after.Device != before.Device {
			t.Fatalf("%+v, %v", after, err)
		}
		if err := errors.Join(s.Remove(), s.Close()); err != nil {
			t.Fatal(err)
		}
		gone := int64(before.Tmpfs.Left) - int64(after.Tmpfs.Left)
		if before.Tmpfs.Left == unlimited || gone > int64(want)-8<<20 && gone < int64(want)+8<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a cache of %d bytes took %d of the room: %s", want, gone, after.Tmpfs.Text)
		}
	}
	if after.Memory.Left == 0 || !strings.Contains(after.Memory.Text, "floor") {
		t.Errorf("%+v", after.Memory)
	}
	if _, err := RoomIn("/proc"); !errors.Is(err, ErrInvalid) {
		t.Errorf("no tmpfs: %v", err)
	}
	proc, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	for _, dir := range []string{"/proc", DefaultDir()} {
		_, err := checkTmpfs(int(proc.Fd()), dir)
		if !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "leave it out") != (dir == "/proc") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, err := RoomIn(filepath.Join(dir, "missing")); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "make it") {
		t.Errorf("no directory: %v", err)
	}
	if _, err := RoomIn(""); err != nil {
		t.Errorf("the default directory, which may not exist yet: %v", err)
	}
	if _, err := (&Options{Samples: 10, SampleBytes: 1 << 20, Limit: 1 << 20}).SegmentBytes(); !errors.Is(err, ErrMemory) {
		t.Errorf("too small a limit: %v", err)
	}
}
