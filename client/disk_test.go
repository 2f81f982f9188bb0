package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

func diskBytes(i, n int) []byte { return bytes.Repeat([]byte{byte(i), byte(i*7 + 1)}, n/2+1)[:n] }

func openedDisk(t *testing.T, path string, o DiskOptions) *Disk {
	t.Helper()
	d, err := OpenDisk(path, o)
	fatal.If(t, err)
	return d
}

// Ensure that samples survive all programs, whether they differ in size or not, and that each is loaded once.
func TestBehindADisk(t *testing.T) {
	const samples = 120
	for _, variable := range []bool{false, true} {
		length := func(i int) int {
			if variable {
				return 1000 + i*37
			}
			return 4000
		}
		path := filepath.Join(t.TempDir(), "a.tier")
		loads := 0
		for program := range 2 {
			most := 4000
			o := Options{Samples: samples, SampleBytes: most, Slots: samples / 4, Policy: PolicyCost, Clients: 8}
			if variable {
				most = 8000
				o = Options{Samples: samples, SampleBytes: most, Variable: true, Size: 5 << 20, Clients: 8}
			}
			d := openedDisk(t, path, DiskOptions{Samples: samples, SampleBytes: most, Variable: variable, Size: 8 << 20, Fingerprint: "x"})
			o.Disk = d
			c, err := Create("", o)
			fatal.If(t, err)
			for range 2 {
				for i := range samples {
					data, err := c.GetOrLoad(t.Context(), i, func(context.Context) ([]byte, error) {
						loads++
						return diskBytes(i, length(i)), nil
					})
					if err != nil || !bytes.Equal(data, diskBytes(i, length(i))) {
						t.Fatalf("sample %d: %d bytes, %v", i, len(data), err)
					}
				}
				fatal.If(t, d.Flush(t.Context()))
			}
			stats, err := d.Stats()
			if loads != samples || err != nil || (stats.Stored == samples) != (program == 0) {
				t.Errorf("program %d: %d loads, %+v, %v", program, loads, stats, err)
			}
			costs := make([]Cost, samples)
			fatal.If(t, c.Inspect().Costs(0, costs))
			known := 0
			for _, cost := range costs {
				if cost != 0 {
					known++
				}
			}
			// The first program has loaded all samples, of which first-come has told those that got space. Single ones may
			// have taken far longer than others: those costs are unknown.
			if known > 0 && program == 1 || known < samples*3/4 && program == 0 && !variable {
				t.Fatalf("program %d: %d costs are known: a copy from the disk is no load", program, known)
			}
			fatal.If(t, errors.Join(c.Close(), d.Close()))
		}
	}
}

func TestDiskMistakes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.tier")
	good := DiskOptions{Samples: 10, SampleBytes: 100, Size: 4 << 20, Fingerprint: "x"}
	for _, one := range []struct {
		path   string
		change func(o *DiskOptions)
		want   error
		text   string
	}{
		{path, func(o *DiskOptions) { o.Fingerprint = "" }, ErrInvalid, "Fingerprint"},
		{path, func(o *DiskOptions) { o.Size = 0 }, ErrInvalid, "Size"},
		{path, func(o *DiskOptions) { o.Size = 1000 }, ErrMemory, "more than the size of 1000"},
		{path, func(o *DiskOptions) { o.Samples = 0 }, ErrInvalid, "samples"},
		{path, func(o *DiskOptions) { o.SampleBytes = 0 }, ErrInvalid, "sample"},
		{path, func(o *DiskOptions) { o.Policy = PolicyCost }, ErrInvalid, "Policy"},
		{path, func(o *DiskOptions) { o.Variable, o.Policy = true, PolicyLRU }, ErrInvalid, "first-come"},
		{path, func(o *DiskOptions) { o.Variable, o.Size = true, 1<<42-1 }, ErrMemory, "free"},
		{filepath.Join(dir, "none", "a"), func(*DiskOptions) {}, ErrNotFound, "does not exist"},
		{dir, func(*DiskOptions) {}, ErrPermission, "another folder"},
	} {
		o := good
		one.change(&o)
		if _, err := OpenDisk(one.path, o); !errors.Is(err, one.want) || !strings.Contains(err.Error(), one.text) {
			t.Errorf("want %v with %q, got %v", one.want, one.text, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	text := filepath.Join(dir, "text")
	os.WriteFile(text, []byte("the data of someone else"), 0o600)
	if _, err := OpenDisk(text, good); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "stays as it is") {
		t.Error(err)
	}
	d := openedDisk(t, path, good)
	defer d.Close()
	expect.Fails(Create("", Options{Samples: 11, SampleBytes: 100, Clients: 8, Disk: d}))(t, ErrInvalid)
	if _, _, err := d.Get(10, nil); !errors.Is(err, ErrIndex) {
		t.Error(err)
	}
	expect.Fails(d.Set(1, []byte("short")))(t, ErrSchema)
}

// descriptor returns this process's descriptor of a file.
func descriptor(t *testing.T, path string) int {
	t.Helper()
	var there, ours unix.Stat_t
	fatal.If(t, unix.Stat(path, &there))
	for fd := range 1000 {
		if unix.Fstat(fd, &ours) == nil && ours.Ino == there.Ino && ours.Dev == there.Dev {
			return fd
		}
	}
	t.Fatal("the file is not open")
	return -1
}

// Ensure that a disk whose reads and writes fail is left out for a while, and used again. The descriptor becomes
// one that can only be written, or only be read.
func TestDiskFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.tier")
	d := openedDisk(t, path, DiskOptions{Samples: 10, SampleBytes: 100, Size: 4 << 20, Fingerprint: "x"})
	set := func(i int, want Result) {
		t.Helper()
		expect.Gives(d.Set(i, diskBytes(i, 100)))(t, want, i)
	}
	get := func(i int, want bool) {
		t.Helper()
		dst := make([]byte, 100)
		if _, hit, err := d.Get(i, dst); hit != want || err != nil || hit && !bytes.Equal(dst, diskBytes(i, 100)) {
			t.Errorf("get of sample %d: %v, %v", i, hit, err)
		}
	}
	set(1, Stored)
	get(1, true)
	fd := descriptor(t, path)
	good, err := unix.Dup(fd)
	fatal.If(t, err)
	become := func(flags int) {
		t.Helper()
		other, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Dup3(other, fd, unix.O_CLOEXEC)
			unix.Close(other)
		}
		fatal.If(t, err)
	}
	become(unix.O_WRONLY)
	get(1, false)
	leftOut := func() {
		t.Helper()
		if !d.breaker.IsOpen() {
			t.Error("it is not left out")
		}
	}
	leftOut()
	if s, err := d.Stats(); err != nil || s.Passed != 1 {
		t.Errorf("%d calls failed, %v", s.Passed, err)
	}
	set(2, Full)
	for !d.breaker.Due() { // the pause is over
		time.Sleep(time.Millisecond)
	}
	d.breaker.NotTried()
	get(5, false) // a miss reads nothing: it neither closes the breaker nor delays the next call
	leftOut()
	if d.breaker.Waits() {
		t.Error("the call that missed has taken the turn")
	}
	get(1, false) // tries, and fails
	leftOut()
	become(unix.O_RDONLY)
	get(1, false) // a longer pause
	leftOut()
	worksAgain := func() {
		t.Helper()
		for dst := make([]byte, 100); d.breaker.IsOpen(); time.Sleep(time.Millisecond) {
			if _, _, err := d.Get(1, dst); err != nil {
				t.Fatal(err)
			}
		}
	}
	worksAgain()
	get(1, true)
	set(2, Full)
	leftOut()
	fatal.If(t, unix.Dup3(good, fd, unix.O_CLOEXEC))
	unix.Close(good)
	worksAgain()
	set(2, Stored)
	get(2, true)
	fatal.If(t, d.Close())
	d = openedDisk(t, path, DiskOptions{Samples: 10, SampleBytes: 100, Size: 4 << 20, Fingerprint: "x"})
	get(1, true)
	get(2, true)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	fatal.If(t, err)
	if _, err := f.WriteAt([]byte("changed"), 2<<20); err != nil { // the first slot
		t.Fatal(err)
	}
	get(1, false)
	get(1, false)
	if s, err := d.Stats(); err != nil || s.Corrupt != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	set(1, Stored)
	get(1, true)
	f.Close()
	d.Close()
}

// Ensure that a limit on the size of files is no signal and no error. It runs in a process of its own.
func TestDiskBelowALimit(t *testing.T) {
	if path := os.Getenv("STOCACHED_TEST_LIMITED"); path != "" {
		d := openedDisk(t, path, DiskOptions{Samples: 10, SampleBytes: 1000, Size: 4 << 20, Fingerprint: "x"})
		limit := unix.Rlimit{Cur: 2<<20 + 3500, Max: unix.RLIM_INFINITY}
		fatal.If(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
		stored := 0
		for i := range 10 {
			r, err := d.Set(i, diskBytes(i, 1000))
			if err != nil || r != Stored && r != Full {
				t.Error(r, err)
			}
			if r == Stored {
				stored++
			}
			d.full.Store(0)
		}
		if stored != 3 {
			t.Errorf("%d samples were stored", stored)
		}
		expect.NoError(t, d.Close())
		expect.Fails(OpenDisk(path, DiskOptions{Samples: 10, SampleBytes: 1000, Size: 4 << 20, Fingerprint: "x"}))(t, ErrMemory)
		return
	}
	c := exec.Command(os.Args[0], "-test.run=TestDiskBelowALimit")
	c.Env = append(os.Environ(), "STOCACHED_TEST_LIMITED="+filepath.Join(t.TempDir(), "a.tier"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Ensure that SetLater writes in the background, refuses what a slow disk has no room for, and stores nothing that was
// put before a clear.
func TestDiskSetLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.tier")
	o := DiskOptions{Samples: 20, SampleBytes: 100, Size: 4 << 20, Fingerprint: "x"}
	d := openedDisk(t, path, o)
	later := func(i int, want Result) {
		t.Helper()
		expect.Gives(d.SetLater(i, diskBytes(i, 100)))(t, want, i)
	}
	holds := func(want int) {
		t.Helper()
		hits, dst := 0, make([]byte, 100)
		for i := range o.Samples {
			if _, hit, err := d.Get(i, dst); err != nil || hit && !bytes.Equal(dst, diskBytes(i, 100)) {
				t.Errorf("sample %d: %v", i, err)
			} else if hit {
				hits++
			}
		}
		if hits != want {
			t.Errorf("%d hits, want %d", hits, want)
		}
	}
	for i := range 5 {
		later(i, Stored)
	}
	fatal.If(t, d.Flush(t.Context()))
	holds(5)
	later(3, Exists)
	expect.Fails(d.SetLater(20, diskBytes(1, 100)))(t, ErrIndex)
	expect.Fails(d.SetLater(6, nil))(t, ErrSchema)

	// A write that has not begun when the file is cleared.
	own, begin, begun := d.queue, make(chan struct{}), make(chan struct{}, 20)
	slow := d.newQueue(250, func(ctx context.Context, w waiting, data []byte) {
		begun <- struct{}{}
		<-begin
		d.write(ctx, w, data)
	})
	d.queue = slow
	later(10, Stored)
	<-begun
	later(11, Stored)
	later(12, Busy)
	if s, err := d.Stats(); err != nil || s.Busy != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	holds(5) // no read waits
	fatal.Gives(d.Clear(t.Context()))(t, Stored)
	close(begin)
	fatal.If(t, slow.Flush(t.Context()))
	holds(0)
	slow.Close(0)
	d.queue = own

	for i := range 7 {
		later(i, Stored)
	}
	if err := d.Close(); err != nil { // writes them
		t.Fatal(err)
	}
	d = openedDisk(t, path, o)
	holds(7)
	fatal.If(t, d.Close())
	expect.Fails(d.SetLater(9, diskBytes(9, 100)))(t, ErrClosed)
	expect.Error(t, d.Flush(context.Background()), ErrClosed)
}

// Ensure that a disk without room for all samples holds others than the cache in memory, also in a later program.
func TestDiskHoldsOthers(t *testing.T) {
	const samples, inMemory = 80, 20
	path := filepath.Join(t.TempDir(), "a.tier")
	o := DiskOptions{Samples: samples, SampleBytes: 4000, Size: 2<<20 + 40*4000 + 4096, Fingerprint: "x"}
	for program := range 2 {
		d := openedDisk(t, path, o)
		if d.seg.Slots < 35 || d.seg.Slots > 45 {
			t.Fatalf("%d slots", d.seg.Slots)
		}
		c, err := Create("", Options{Samples: samples, SampleBytes: 4000, Slots: inMemory, Clients: 8, Disk: d})
		fatal.If(t, err)
		loads := 0
		for range 2 {
			loads = 0
			for i := range samples {
				data, err := c.GetOrLoad(t.Context(), i, func(context.Context) ([]byte, error) {
					loads++
					return diskBytes(i, 4000), nil
				})
				if err != nil || !bytes.Equal(data, diskBytes(i, 4000)) {
					t.Fatalf("sample %d: %v", i, err)
				}
			}
			fatal.If(t, d.Flush(t.Context()))
		}
		if want := samples - inMemory - int(d.seg.Slots); loads != want {
			t.Errorf("program %d: %d loads in the second epoch, want %d", program, loads, want)
		}
		fatal.If(t, errors.Join(c.Close(), d.Close()))
	}
}

// diedOpen runs a process that opens a disk and dies, so its control part stays. It returns what went wrong.
func diedOpen(path string) error {
	child := exec.Command(os.Args[0], "-test.run=^TestDiskControlRemoved$")
	child.Env = append(os.Environ(), "STOCACHED_TEST_DIES="+path)
	out, err := child.CombinedOutput()
	if status, ok := child.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != unix.SIGKILL {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// openAndDie opens a disk cache, stores and reads a sample, and dies by SIGKILL.
func openAndDie(path string, o DiskOptions) error {
	d, err := OpenDisk(path, o)
	if err != nil {
		return err
	}
	if r, err := d.Set(1, diskBytes(1, 100)); r != Stored && r != Exists && r != Busy || err != nil {
		return fmt.Errorf("set: %v, %w", r, err)
	}
	dst := make([]byte, 100)
	if _, hit, err := d.Get(1, dst); err != nil || hit && !bytes.Equal(dst, diskBytes(1, 100)) {
		return fmt.Errorf("get: %v, %w", hit, err)
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// Ensure that a file that is taken away from its users is told.
func TestDiskTakenAway(t *testing.T) {
	for did, change := range map[string]func(path string) error{"removed": os.Remove,
		"hidden": func(path string) error { // its folder is a file now, so nobody can tell
			folder := filepath.Dir(path)
			return errors.Join(os.Rename(folder, folder+".moved"), os.WriteFile(folder, nil, 0o600))
		},
		"truncated": func(path string) error { return os.Truncate(path, 5000) },
		"replaced":  func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) }} {
		path, want := filepath.Join(t.TempDir(), "folder", "a.tier"), ErrFormat
		fatal.If(t, os.Mkdir(filepath.Dir(path), 0o700))
		d := openedDisk(t, path, DiskOptions{Samples: 10, SampleBytes: 100, Size: 4 << 20, Fingerprint: "x"})
		fatal.If(t, d.Look())
		fatal.If(t, change(path))
		said := "another program has " + did + " " + path
		if did == "hidden" {
			want, said = ErrSystem, path+": not a directory"
		}
		if err := d.Look(); !errors.Is(err, want) || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v", did, err)
		}
		d.Close()
		expect.Error(t, d.Look(), ErrClosed)
	}
}

// Ensure that no opener of a file fails while RemoveUnused removes each control part that killed processes leave.
func TestDiskControlRemoved(t *testing.T) {
	o := DiskOptions{Samples: 10, SampleBytes: 100, Size: 4 << 20, Fingerprint: "x"}
	if path := os.Getenv("STOCACHED_TEST_DIES"); path != "" {
		t.Fatal(openAndDie(path, o))
	}
	path := filepath.Join(t.TempDir(), "a.tier")
	stop, removed := make(chan struct{}), 0
	var remover, openers sync.WaitGroup
	var st unix.Stat_t
	fatal.If(t, errors.Join(openedDisk(t, path, o).Close(), unix.Stat(path, &st)))
	remover.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			listed, err := shm.ListControls("")
			if err != nil {
				t.Error(err)
				return
			}
			for _, l := range listed {
				if !strings.HasPrefix(filepath.Base(l.Path), fmt.Sprintf("%d-%d-", st.Dev, st.Ino)) {
					continue
				}
				if yes, err := shm.RemoveUnused(&l); yes {
					removed++
				} else if err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
			}
		}
	})
	for k := range 3 {
		openers.Go(func() {
			for round := range 15 {
				if err := diedOpen(path); err != nil {
					t.Errorf("opener %d, round %d: %v", k, round, err)
				}
			}
		})
	}
	openers.Wait()
	close(stop)
	remover.Wait()
	if removed == 0 {
		t.Error("no control part was removed")
	}
	d := openedDisk(t, path, o)
	dst := make([]byte, 100)
	if _, hit, err := d.Get(1, dst); !hit || err != nil {
		t.Error("what was on the disk is lost", err)
	}
	expect.NoError(t, d.Close())
}
