package shm

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/hugepage"
)

// timeStands stops the clock of huge pages, so that no block is late on a busy machine.
func timeStands(t *testing.T) { setClock(t, func() time.Duration { return 0 }) }

func setClock(t *testing.T, clock func() time.Duration) {
	old := hugeClock
	hugeClock = clock
	t.Cleanup(func() { hugeClock = old })
}

// fragmented skips the test, with the reason, when the kernel refuses a huge page for the test's
// own file too.
func fragmented(t *testing.T) {
	ask := adviseHuge
	adviseHuge = func(block []byte) error {
		err := ask(block)
		if err != nil {
			if short := hugepage.Short(4); short != nil {
				t.Skipf("NOT TESTED HERE: %v", short)
			}
		}
		return err
	}
	t.Cleanup(func() { adviseHuge = ask })
}

// wantHuge checks how many bytes of a map are huge pages.
func wantHuge(t testing.TB, what string, memory []byte, want uint64) {
	t.Helper()
	expect.Gives(hugepage.Mapped(memory))(t, want, what, len(memory))
}

// Ensure that both maps of each segment begin where huge pages can be mapped, unless they are
// smaller than one.
func TestMapsAreAligned(t *testing.T) {
	for _, o := range []Options{small(), {Name: "large", Samples: 400_000, SampleBytes: 200}} {
		o.Dir = tempDir(t)
		s := create(t, o)
		fd := fatal.Value(OpenFD(s.FD(), OpenOptions{}))(t)
		closeLater(t, fd)
		for k, s := range []*Segment{s, fd, open(t, s.Path(), OpenOptions{}),
			open(t, s.Path(), OpenOptions{ReadOnly: true})} {
			for what, memory := range map[string][]byte{"control part": s.control, "payload": s.payload} {
				if at := uintptr(unsafe.Pointer(&memory[0])); at%hugeBytes != 0 && len(memory) >= hugeBytes {
					t.Errorf("attachment %d of %q: the %s is at %#x", k, o.Name, what, at)
				}
			}
			if s.PayloadOffset%hugeBytes != 0 || uint64(len(s.control)) != s.PayloadOffset ||
				uint64(len(s.payload)) != s.PayloadBytes {
				t.Errorf("maps of %d and %d bytes: %+v", len(s.control), len(s.payload), s.Geometry)
			}
		}
	}
}

// Ensure that the control part has huge pages from the beginning, and that a block of the payload
// gets one when a place that begins in it is taken. Other blocks stay. Others that attach have the
// same pages. A client that may not write takes none.
func TestTakeHuge(t *testing.T) {
	hugepage.Need(t)
	fragmented(t)
	timeStands(t)
	const m = 1 << 20
	s := create(t, Options{Name: "huge", Dir: tempDir(t), Samples: 500_000, Slots: 3, SampleBytes: 3 * m}) // 8 MB of index
	if s.PayloadOffset < 4*hugeBytes || s.SlotStride != 3*m || s.PayloadBytes != 9*m {
		t.Fatalf("%+v", s.Geometry)
	}
	reader := open(t, s.Path(), OpenOptions{ReadOnly: true})
	allocated := func(want uint64) {
		t.Helper()
		expect.Gives(s.AllocatedBytes())(t, s.PayloadOffset+want)
	}
	wantHuge(t, "control part", s.control, s.PayloadOffset)
	wantHuge(t, "control part of a reader", reader.control, s.PayloadOffset)
	few := create(t, Options{Name: "few", Dir: tempDir(t), Samples: 1000, SampleBytes: 200})
	wantHuge(t, "control part of many clients and few samples", few.control, 0)

	reader.TakeHuge(0, 9*m, nil)
	expect.Equal(t, reader.huge.after.Load(), math.MaxInt64, "pages that a reader asks for")
	s.TakeHuge(1, 2*m-1, nil) // a place between two blocks
	s.TakeHuge(8*m, m, nil)   // the last block would not end in the payload
	allocated(0)
	s.TakeHuge(3*m, 3*m, nil)
	allocated(2 * m)
	// so that block 1, from 2 MiB on, is half full
	fatal.Gives(s.WritePayload(bytes.Repeat([]byte{7}, 2*m), m))(t, 2*m)
	allocated(4 * m)
	s.TakeHuge(0, 3*m, nil)
	allocated(6 * m)
	s.TakeHuge(6*m, 3*m, nil)
	allocated(8 * m)
	fatal.If(t, s.AllocatePayload(8*m, m))
	for what, payload := range map[string][]byte{"payload": s.payload, "payload of a reader": reader.payload} {
		wantHuge(t, what, payload, 8*m)
		want := make([]byte, 9*m)
		copy(want[m:], bytes.Repeat([]byte{7}, 2*m))
		if !bytes.Equal(payload, want) {
			t.Errorf("%s: huge pages have other bytes than small ones had", what)
		}
	}
	heap := fatal.Value(NewHeap(Options{Samples: 4, SampleBytes: 3 * m}))(t)
	heap.TakeHuge(0, 12*m, nil) // nothing to ask the kernel for
}

// Ensure that Create stops asking for huge pages when they come slowly, and uses small ones
// instead.
func TestHugePagesTooSlow(t *testing.T) {
	hugepage.Need(t)
	fragmented(t)
	var now time.Duration
	setClock(t, func() time.Duration { now += 25 * time.Millisecond; return now })
	s := create(t, Options{Samples: 500_000, Slots: 3, SampleBytes: 100})
	wantHuge(t, "control part", s.control, hugeBytes)
	expect.Gives(s.AllocatedBytes())(t, s.PayloadOffset)
}

// Ensure that requests continue while they are quick, and pause for 50 times the duration of a slow
// or refused one.
func TestHugePace(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		took time.Duration
		err  error
		wait time.Duration // after its end
	}{
		{"quick", ms, nil, 0},
		{"almost slow", 20 * ms, nil, 0},
		{"slow", 21 * ms, nil, 1050 * ms},
		{"no memory", 2 * ms, unix.ENOMEM, 100 * ms},
		{"a cgroup's limit", 30 * ms, unix.EBUSY, 1500 * ms},
		{"full", 0, fmt.Errorf("allocate: %w", unix.ENOSPC), 0},
		{"no such kernel, or full", ms, unix.EINVAL, 50 * ms},
	} {
		var p hugePace
		var asked int
		now := 7 * time.Second
		setClock(t, func() time.Duration { return now })
		ask := func(took time.Duration, err error) (was bool) {
			before := asked
			p.ask(func() error { asked++; now += took; return err })
			return asked > before
		}
		if !ask(ms, nil) || !ask(c.took, c.err) {
			t.Errorf("%s: not asked at first", c.name)
		}
		if c.wait > 0 {
			if ask(ms, nil) {
				t.Errorf("%s: asked at once", c.name)
			}
			if now += c.wait - 1; ask(ms, nil) {
				t.Errorf("%s: asked before %v", c.name, c.wait)
			}
			now++
		}
		for range 2 {
			if !ask(ms, nil) {
				t.Errorf("%s: not asked after %v", c.name, c.wait)
			}
		}
	}
}
