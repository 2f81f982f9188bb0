package shm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm/memory"
)

// Ensure that the room of a directory is that of its tmpfs, and shrinks by the promise of a new cache.
func TestRoomIn(t *testing.T) {
	dir := fatal.Value(os.MkdirTemp("/dev/shm", "stocached-room-"))(t)
	defer os.RemoveAll(dir)
	o := Options{Name: "c", Dir: dir, Samples: 1000, SampleBytes: 40 << 10}
	want, err := o.SegmentBytes()
	if err != nil || want < 40<<20 {
		t.Fatalf("%d, %v", want, err)
	}
	var after Room
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) { // until no other process changes much of the tmpfs between two looks
		before := fatal.Value(RoomIn(dir))(t)
		s := fatal.Value(Create(o))(t)
		expect.Equal(t, s.SegmentBytes, want, "bytes that it has")
		allocated, err := s.AllocatedBytes()
		if err != nil || allocated == 0 || allocated > 4<<20 {
			t.Errorf("%d bytes allocated, %v: only the control part should be", allocated, err)
		}
		after, err = RoomIn(dir)
		if err != nil || after.Device != before.Device {
			t.Fatalf("%+v, %v", after, err)
		}
		fatal.If(t, errors.Join(s.Remove(), s.Close()))
		gone := int64(before.Tmpfs.Left) - int64(after.Tmpfs.Left)
		if before.Tmpfs.Left == memory.Unlimited || gone > int64(want)-8<<20 && gone < int64(want)+8<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a cache of %d bytes took %d of the room: %s", want, gone, after.Tmpfs.Text)
		}
	}
	if after.Memory.Left == 0 || !strings.Contains(after.Memory.Text, "floor") {
		t.Errorf("%+v", after.Memory)
	}
	expect.Fails(RoomIn("/proc"))(t, ErrInvalid)
	proc := fatal.Value(os.Open("/proc"))(t)
	defer proc.Close()
	for _, dir := range []string{"/proc", DefaultDir()} {
		_, err := checkTmpfs(int(proc.Fd()), dir)
		if !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "leave it out") != (dir == "/proc") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	expect.Fails(RoomIn(filepath.Join(dir, "missing")))(t, ErrInvalid, "make it")
	expect.Works(RoomIn(""))(t)
	expect.Fails((&Options{Samples: 10, SampleBytes: 1 << 20, Limit: 1 << 20}).SegmentBytes())(t, ErrMemory)
}

// Ensure that a budget refuses one byte too many and allows the last one, for the tmpfs and for the
// memory, with the numbers in the message.
func TestBudget(t *testing.T) {
	const g = 1 << 30
	tmpfs, machine := memory.Space{Left: 3 * g, Text: "the tmpfs leaves 3"}, memory.Space{Left: 31 * g, Text: "the machine leaves 31"}
	expect.NoError(t, checkFits(3*g, tmpfs, machine))
	err := checkFits(3*g+1, tmpfs, machine)
	expect.Error(t, err, ErrMemory, "needs 3221225473 bytes", "the tmpfs leaves 3", "--size", "stocached gc", "remount")
	tmpfs.Left = memory.Unlimited // a memfd
	expect.NoError(t, checkFits(31*g, tmpfs, machine))
	err = checkFits(31*g+1, tmpfs, machine)
	expect.Error(t, err, ErrMemory, "needs 33285996545 bytes", "the machine leaves 31", "--size")
}

// Ensure that a reservation takes whole pages of what one check grants, and ends with the numbers
// when that is none.
func TestGrantOfReservation(t *testing.T) {
	page := uint64(os.Getpagesize())
	for left, want := range map[uint64]uint64{64 << 30: 64 << 20, 1 << 30: 64 << 20, 1<<30 - 16*page: 64<<20 - page,
		16 * page: page, 17 * page: page} {
		expect.Gives(grantOf(memory.Space{Left: left}))(t, want, left)
	}
	for _, left := range []uint64{0, 15 * page} {
		_, err := grantOf(memory.Space{Left: left, Text: "the machine leaves little"})
		expect.Error(t, err, ErrFull, "the machine leaves little")
	}
}
