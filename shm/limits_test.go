package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm/memory"
)

func init() {
	children["file-size"] = childFileSize
	children["address-space"] = childAddressSpace
	children["descriptors"] = childDescriptors
}

// Ensure that on a tmpfs of 16 MiB a cache that does not fit is refused with the numbers and leaves
// no file, that promises of other caches count, and that after another process fills
// the tmpfs a lazy cache returns FULL and continues, and a reserved one works as before. No SIGBUS
// may occur.
func TestSmallTmpfs(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=16m")
	free := func() uint64 {
		t.Helper()
		var st unix.Statfs_t
		fatal.If(t, unix.Statfs(dir, &st))
		return st.Bfree * uint64(st.Bsize)
	}
	const whole = 16 << 20
	o := Options{Name: "large", Dir: dir, Samples: 64, SampleBytes: 1 << 20, Policy: PolicyFirstIndices, ClientRecords: 8}
	for _, reserve := range []bool{false, true} {
		o.Reserve = reserve
		_, err := Create(o)
		expect.Error(t, err, ErrMemory, "needs 69206016 bytes (66.0 MiB)", "16777216 bytes (16.0 MiB) free",
			"1677721 bytes (1.6 MiB) of headroom", "other caches (0)", "--size")
		if entries, _ := os.ReadDir(dir); len(entries) != 0 || free() != whole {
			t.Errorf("left over: %v, %d bytes free of %d", entries, free(), whole)
		}
	}

	o.Name, o.Samples, o.Reserve = "lazy", 6, false
	lazy := create(t, o)
	expect.Equal(t, whole-free(), lazy.PayloadOffset, "bytes of a lazy cache, its control part")
	o.Name = "second"
	_, err := Create(o) // 8 of 14 MiB free; but 6 are promised
	expect.Error(t, err, ErrMemory, "needs 8388608", "14680064 bytes (14.0 MiB) free",
		"6291456 bytes (6.0 MiB) that other caches (1) have yet to fill")
	others := memory.Promises{}
	addNamed(others, dir, true)
	if s := others.Sum(memory.Level{}); s.Bytes != 6<<20 || s.Caches != 1 {
		t.Errorf("%d bytes promised by %d", s.Bytes, s.Caches)
	}
	o.Name, o.Samples, o.Reserve = "reserved", 2, true
	reserved := create(t, o)

	full := fillUp(t, dir)
	sample := bytes.Repeat([]byte{7}, 1<<20)
	n, err := lazy.WritePayload(sample, 0)
	expect.Error(t, err, ErrFull, "stocached gc")
	if !errors.Is(err, unix.ENOSPC) || n != 0 {
		t.Error(n, err)
	}
	expect.Error(t, lazy.AllocatePayload(1<<20, 1<<20), ErrFull)
	if err := lazy.ReadPayload(sample, 0); err != nil || !bytes.Equal(sample, make([]byte, 1<<20)) {
		t.Error("a hole does not read as zeros", err)
	}
	for at := uint64(0); at < lazy.PayloadOffset; at += 4096 { // a hole here would end the process
		word(lazy.control, at).Add(0)
	}
	for i := range uint64(6) {
		lazy.Word(i).Store(i)
	}
	mustTry(t, locks(t, lazy), 0, true)
	sample = bytes.Repeat([]byte{9}, 1<<20)
	for slot := range uint64(2) {
		expect.Works(reserved.WritePayload(sample, slot<<20))(t)
		if !bytes.Equal(reserved.Bytes(slot<<20, 1<<20), sample) {
			t.Error("other bytes")
		}
	}
	fatal.If(t, os.Remove(full))
	expect.Works(lazy.WritePayload(sample, 0))(t)
}

// Ensure that what a replaced segment of another version had counts as free, and that a new one that does not fit even
// then says that the old one is gone.
func TestReplacedInSmallTmpfs(t *testing.T) {
	o := Options{Name: "old", Dir: tmpfs.Mount(t, t.TempDir(), "size=16m"), SampleBytes: 1 << 20, Reserve: true}
	for _, samples := range []uint64{9, 64} {
		o.Samples = 9
		old := fatal.Value(Create(o))(t)
		fatal.Value(unix.Pwrite(old.FD(), []byte{LayoutVersion + 1}, HeaderVersion))(t)
		fatal.If(t, old.Close())
		o.Samples = samples
		s, err := Create(o)
		if samples == 64 {
			expect.Error(t, err, ErrMemory, "(16.0 MiB) free", "the old segment, of another version, is removed")
			break
		}
		fatal.If(t, err)
		expect.Error(t, s.Replaced, ErrVersion)
		fatal.If(t, errors.Join(s.Remove(), s.Close()))
	}
}

// fillUp takes every free page of a tmpfs.
func fillUp(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "another user's")
	f := fatal.Value(os.Create(path))(t)
	defer f.Close()
	page := make([]byte, 4096)
	for {
		if _, err := f.Write(page); errors.Is(err, unix.ENOSPC) {
			return path
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Ensure that a Create that finds the tmpfs full only when it allocates pages, because another was
// faster, fails like one that does not fit, and leaves no file.
func TestFullWhileCreating(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=16m")
	o := Options{Name: "late", Dir: dir, Samples: 4, SampleBytes: 1 << 20, Reserve: true}
	s, err := Create(Options{Name: "late", Dir: dir, Samples: 4, SampleBytes: 1 << 20, Reserve: true, Progress: func(done, total uint64) {}})
	fatal.If(t, err)
	fatal.If(t, errors.Join(s.Close(), Unlink(s.Path())))
	h, g, err := o.Plan()
	fatal.If(t, err)
	fillUp(t, dir)
	fd := fatal.Value(unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600))(t)
	f := os.NewFile(uintptr(fd), "late")
	_, err = initialise(f, h, g, nil)
	expect.Error(t, err, ErrMemory, "allocate the control part", fmt.Sprint(g.SegmentBytes), "--size")
	if maps, err := os.ReadFile("/proc/self/maps"); err != nil || bytes.Contains(maps, []byte(dir)) {
		t.Errorf("the file was left mapped, or %v", err)
	}
	if err := f.Close(); err == nil {
		t.Error("the file was left open")
	}
}

// Ensure that a cache on a read-only tmpfs is attached read-only, and that nothing is created or
// removed there.
func TestReadOnlyMount(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=16m")
	o := small()
	o.Dir = dir
	s, err := Create(o)
	fatal.If(t, err)
	fatal.Value(s.WritePayload([]byte("kept"), 0))(t)
	path := s.Path()
	fatal.If(t, s.Close())
	fatal.If(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=16m"))
	ro := open(t, path, OpenOptions{})
	if !ro.ReadOnly() || string(ro.Bytes(0, 4)) != "kept" {
		t.Errorf("read-only %v, %q", ro.ReadOnly(), ro.Bytes(0, 4))
	}
	_, err = ro.NewLocks()
	expect.Error(t, err, ErrReadOnly)
	expect.Error(t, Unlink(path), ErrPermission, "read-only file system")
	o.Name = "another"
	_, err = Create(o)
	expect.Error(t, err, ErrPermission, "read-only file system")
}

// Ensure that a process with a too small RLIMIT_FSIZE is refused before a write kills it (SIGXFSZ),
// and may still read.
func TestFileSizeLimit(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	runChild(t, "file-size", o.Dir, create(t, o).Path())
}

func childFileSize(args []string) error {
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	parts := []string{"1048576", "RLIMIT_FSIZE", "ulimit -f"}
	for _, name := range []string{"", "other"} {
		o := small()
		if o.Name = name; name != "" {
			o.Dir = args[0]
		}
		if _, err := Create(o); refusal(err, ErrMemory, parts...) != nil {
			return fmt.Errorf("create %q: %w", name, err)
		}
	}
	if _, err := Open(args[1], OpenOptions{}); refusal(err, ErrMemory, append(parts, args[1])...) != nil {
		return fmt.Errorf("open: %w", err)
	}
	s, err := Open(args[1], OpenOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	_, err = NewHeap(small())
	return errors.Join(err, s.ReadPayload(make([]byte, 10), 0))
}

// Ensure that a segment that exceeds the address space of the process is an error with the numbers,
// and leaves no map.
func TestAddressSpaceLimit(t *testing.T) {
	dir := tempDir(t)
	runChild(t, "address-space", tempDir(t), sparse(t, dir, Options{Name: "wide", Samples: 64, SampleBytes: 1 << 30}))
}

func childAddressSpace(args []string) error {
	var now uint64 // pages
	if b, err := os.ReadFile("/proc/self/statm"); err != nil {
		return err
	} else if _, err := fmt.Sscan(string(b), &now); err != nil {
		return err
	}
	limit := unix.Rlimit{Cur: now*uint64(os.Getpagesize()) + 1<<30, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_AS, &limit); err != nil {
		return err
	}
	for range 1000 { // 2 GiB of control parts, if they stayed mapped
		if _, err := Open(args[1], OpenOptions{}); refusal(err, ErrMemory, "68719476736 bytes of payload", "ulimit -v") != nil {
			return fmt.Errorf("open: %w", err)
		}
	}
	s, err := Create(Options{Name: "narrow", Dir: args[0], Samples: 1, SampleBytes: 1})
	if err != nil {
		return err
	}
	for k := range uint64(2000) { // 2 GiB around aligned maps, if they stayed mapped, and as much of maps that fail
		other, err := Open(s.Path(), OpenOptions{})
		if err != nil {
			return fmt.Errorf("open what fits: %w", err)
		}
		if err := other.Close(); err != nil {
			return err
		}
		m := mapping{}
		// another length lies at another address
		if m.payload, err = mapPayload(s.file, 0, (k%511+1)*4096); err != nil || m.unmap() != nil {
			return fmt.Errorf("map a part: %w", err)
		}
		if _, err := mapAligned(-1, 0, 2<<20, unix.PROT_READ); !errors.Is(err, unix.EBADF) {
			return fmt.Errorf("map no file: %w", err)
		}
	}
	return s.Close()
}

// sparse writes a segment that has only its header page, of any size: for code that reads no more.
func sparse(t testing.TB, dir string, o Options) string {
	t.Helper()
	h, g, err := o.Plan()
	fatal.If(t, err)
	h.Stamp()
	path := filepath.Join(dir, o.Name)
	fatal.If(t, os.WriteFile(path, h.Encode(&g), 0o600))
	fatal.If(t, os.Truncate(path, int64(g.SegmentBytes)))
	return path
}

// Ensure that a lack of descriptors at any step is an error with its errno, and leaves no file and
// no descriptor.
func TestDescriptorLimit(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	runChild(t, "descriptors", o.Dir, create(t, o).Path())
}

func childDescriptors(args []string) error {
	time.Sleep(time.Millisecond) // the Go runtime opens its own descriptors first
	spare := func() (n uint64) { // the lowest free descriptor
		fd, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0
		}
		unix.Close(fd)
		return uint64(fd)
	}
	before := spare()
	created, opened := 0, 0
	for more := range uint64(12) { // 0: none, 11: plenty
		limit := unix.Rlimit{Cur: before + more, Max: 20000}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		o := small()
		o.Name, o.Dir = "other", args[0]
		s, err := Create(o)
		if err != nil && !errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("create with %d descriptors: %w", more, err)
		}
		if err == nil {
			created++
			if err := errors.Join(s.Close(), Unlink(s.Path())); err != nil {
				return fmt.Errorf("with %d descriptors: %w", more, err)
			}
		}
		if s, err = Open(args[1], OpenOptions{}); err != nil && !errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("open with %d descriptors: %w", more, err)
		}
		if err == nil {
			opened++
			l, err := s.NewLocks()
			if err != nil && !(errors.Is(err, unix.EMFILE) && errors.Is(err, ErrSystem)) {
				return fmt.Errorf("a client, which must not become a read-only one, with %d descriptors: %w", more, err)
			}
			if err == nil {
				err = l.Close()
			}
			if err := errors.Join(err, s.Close()); err != nil && !errors.Is(err, unix.EMFILE) {
				return err
			}
		}
		limit.Cur = 1000
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
		if now := spare(); now != before {
			return fmt.Errorf("with %d descriptors: descriptor %d is the lowest free one, it was %d", more, now, before)
		}
		if entries, err := os.ReadDir(args[0]); len(entries) != 1 {
			return fmt.Errorf("with %d descriptors: left over %v, %v", more, entries, err)
		}
	}
	if created == 0 || created > 10 || opened == 0 || opened > 11 {
		return fmt.Errorf("created %d times and opened %d times of 12: the limit was never, or always, in the way",
			created, opened)
	}
	return nil
}
