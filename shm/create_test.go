package shm

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
)

func init() {
	children["create-default"] = childCreateDefault
	children["killed-while-creating"] = childKilledWhileCreating
}

// Ensure that a named cache can be opened by path with its settings, has mode 0600, all control
// pages and no page of the payload, and that a second cache of its name is refused.
func TestCreateNamed(t *testing.T) {
	o := Options{Name: "images.v1", Dir: tempDir(t), Samples: 1000, Limit: 64 << 20, Fingerprint: "abc",
		UnlinkLast: true, Policy: PolicyFirstIndices,
		Fields: []Field{{Name: "image", DType: Uint8, Dims: []uint64{3, 224, 224}}, {Name: "label", DType: Int64}}}
	old := unix.Umask(0o777)
	s, err := Create(o)
	unix.Umask(old)
	fatal.If(t, err)
	closeLater(t, s)
	if s.Path() != filepath.Join(o.Dir, o.Name) || s.ReadOnly() || s.FD() < 0 {
		t.Error(s.Path(), s.ReadOnly(), s.FD())
	}
	info, err := os.Stat(s.Path())
	if err != nil || info.Mode() != 0o600 || uint64(info.Size()) != s.SegmentBytes || s.SegmentBytes > o.Limit {
		t.Errorf("%v, %v, segment of %d bytes", info, err, s.SegmentBytes)
	}
	expect.Gives(s.AllocatedBytes())(t, s.PayloadOffset)
	want2 := func(_ *Segment, err error) { expect.Error(t, err, ErrExists, s.Path(), "attach") }
	want2(Create(o))
	other := o
	other.Policy = PolicyLRU
	_, err = Create(other)
	expect.Error(t, err, ErrExists, s.Path(),
		fmt.Sprintf("exists with the policy %v, and lru was asked for; attach to it", o.Policy))

	a := open(t, s.Path(), OpenOptions{Fingerprint: "abc", UUID: &s.Header.UUID})
	if fmt.Sprintf("%+v", a.Header) != fmt.Sprintf("%+v", s.Header) && len(s.Header.Fields[1].Dims) != 0 ||
		a.Geometry != s.Geometry {
		t.Errorf("attached\n%+v\ncreated\n%+v", a.Header, s.Header)
	}
	if h := a.Header; h.Name != o.Name || h.Limit != o.Limit || h.UID != uint32(os.Geteuid()) ||
		time.Since(h.Created) > time.Minute || a.Policy != o.Policy || h.SampleBytes != 150536 ||
		h.Flags != FlagNamed|FlagUnlinkLast || h.Version != LayoutVersion || len(h.Fields) != 2 {
		t.Errorf("%+v", h)
	}
	_, err = Open(s.Path(), OpenOptions{Fingerprint: "abd"})
	expect.Error(t, err, ErrFingerprint, `"abc"`, `"abd"`)
	_, err = Open(s.Path(), OpenOptions{UUID: &[16]byte{1}})
	expect.Error(t, err, ErrFormat, "expected 01", fmt.Sprintf("%x", s.Header.UUID))
}

// Ensure that all attachments read what one of them writes, words and payload, and that a read-only
// one refuses to write.
func TestSharing(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	s := create(t, o)
	a, ro := open(t, s.Path(), OpenOptions{}), open(t, s.Path(), OpenOptions{ReadOnly: true})
	fd, err := OpenFD(a.FD(), OpenOptions{})
	fatal.If(t, err)
	closeLater(t, fd)
	if fd.Path() != s.Path() || fd.ReadOnly() || !ro.ReadOnly() {
		t.Error(fd.Path(), fd.ReadOnly(), ro.ReadOnly())
	}
	sample := bytes.Repeat([]byte("0123456789"), 10)
	fatal.Gives(a.WritePayload(sample, 200))(t, 100)
	a.Word(9).Store(42)
	a.Counter(2, 3, Corrupt).Store(43)
	for k, other := range []*Segment{s, ro, fd} {
		got := make([]byte, 100)
		if err := other.ReadPayload(got, 200); err != nil || !bytes.Equal(got, sample) || !bytes.Equal(other.Bytes(200, 100), sample) {
			t.Errorf("%d reads %q, %q, %v", k, got, other.Bytes(200, 100), err)
		}
		if other.Word(9).Load() != 42 || other.Counter(2, 3, Corrupt).Load() != 43 {
			t.Errorf("%d sees other words", k)
		}
	}
	_, err = ro.WritePayload(sample, 0)
	expect.Error(t, err, ErrReadOnly)
	expect.Error(t, ro.AllocatePayload(0, 1), ErrReadOnly)
}

// Ensure that payload calls stay inside the payload, on the heap too, and that a read does not fill
// a hole.
func TestPayloadRange(t *testing.T) {
	eachKind(t, func(t *testing.T, s *Segment) {
		b := make([]byte, 10)
		for _, c := range []struct{ offset, n uint64 }{{s.PayloadBytes - 9, 10}, {s.PayloadBytes + 1, 0}, {1<<64 - 5, 10},
			{0, s.PayloadBytes + 1}} {
			expect.Error(t, s.AllocatePayload(c.offset, c.n), ErrInvalid, fmt.Sprint(s.PayloadBytes))
			if c.n <= 10 {
				_, err := s.WritePayload(b[:c.n], c.offset)
				expect.Error(t, err, ErrInvalid, fmt.Sprint(s.PayloadBytes))
				expect.Error(t, s.ReadPayload(b[:c.n], c.offset), ErrInvalid, fmt.Sprint(s.PayloadBytes))
			}
		}
		before, _ := s.AllocatedBytes()
		if err := s.ReadPayload(b, s.PayloadBytes-10); err != nil || !bytes.Equal(b, make([]byte, 10)) {
			t.Error(b, err)
		}
		if after, _ := s.AllocatedBytes(); after != before {
			t.Errorf("reading a hole took %d bytes", after-before)
		}
		fatal.If(t, s.AllocatePayload(0, s.PayloadBytes))
		if after, _ := s.AllocatedBytes(); s.file != nil && after != s.SegmentBytes {
			t.Errorf("%d bytes of %d allocated", after, s.SegmentBytes)
		}
		expect.Works(s.WritePayload(b, s.PayloadBytes-10))(t)
	})
}

// Ensure that a cache without a name is sealed against truncation, that another process opens it by
// /proc and its uuid, and that it ends when it is closed.
func TestCreateUnnamed(t *testing.T) {
	s := create(t, Options{Samples: 100, SampleBytes: 4096})
	if s.Path() != "" || s.Header.Name != "" {
		t.Error(s.Path(), s.Header.Name)
	}
	seals, err := unix.FcntlInt(uintptr(s.FD()), unix.F_GET_SEALS, 0)
	if want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL; err != nil || seals&want != want {
		t.Errorf("seals %#x, %v", seals, err)
	}
	for _, n := range []int64{0, int64(s.SegmentBytes) + 1} {
		expect.Equal(t, unix.Ftruncate(s.FD(), n), error(unix.EPERM), "truncate to %d", n)
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.FD())
	again := open(t, path, OpenOptions{UUID: &s.Header.UUID})
	s.Word(7).Store(7)
	if again.Word(7).Load() != 7 || again.ReadOnly() || again.Path() != "" {
		t.Error("another segment")
	}
	mustTry(t, locks(t, s), 5, true)
	mustTry(t, locks(t, again), 5, false) // its own description: another client
	_, err = Open(path, OpenOptions{UUID: &[16]byte{9}})
	expect.Error(t, err, ErrFormat, "uuid")
}

// Ensure that OpenFD refuses unsuitable descriptors, and that the caller keeps the descriptor.
func TestOpenFDRefused(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	s := create(t, o)
	for name, flags := range map[string]int{"O_PATH": unix.O_PATH, "write-only": unix.O_WRONLY,
		"append": unix.O_RDWR | unix.O_APPEND} {
		fd, err := unix.Open(s.Path(), flags|unix.O_CLOEXEC, 0)
		fatal.If(t, err)
		_, err = OpenFD(fd, OpenOptions{})
		expect.Error(t, err, ErrInvalid, fmt.Sprintf("descriptor %d", fd))
		if err := unix.Close(fd); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := OpenFD(-1, OpenOptions{})
	expect.Error(t, err, ErrInvalid)
	var pipe [2]int
	fatal.If(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[1])
	_, err = OpenFD(pipe[0], OpenOptions{})
	expect.Error(t, err, ErrPermission, "FIFO")
	unix.Close(pipe[0])
	fd := fatal.Value(unix.Open(s.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
	ro, err := OpenFD(fd, OpenOptions{})
	if err != nil || !ro.ReadOnly() {
		t.Fatal(err)
	}
	ro.Close()
	expect.NoError(t, unix.Close(fd))
}

// Ensure that exactly one of many processes that create one name at once succeeds, and that the
// others get ErrExists.
func TestCreateAtOnce(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	var group sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 16 {
		group.Go(func() {
			s, err := Create(o)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
				s.Close()
			} else if !errors.Is(err, ErrExists) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	expect.Equal(t, made, 1, "files that were made")
}

// Ensure that other files at the path are recognised and left unchanged: for Create the name is
// taken, Open and Unlink refuse.
func TestThingsInTheWay(t *testing.T) {
	dir := tempDir(t)
	target := filepath.Join(dir, "target")
	content := []byte("a user's thesis")
	segment := create(t, Options{Name: "real", Dir: dir, Samples: 1, SampleBytes: 1})
	for _, c := range []struct {
		name   string
		make   func(path string) error
		open   error
		part   string
		unlink error
	}{
		{"file", func(p string) error { return os.WriteFile(p, content, 0o600) }, ErrFormat, "4096", ErrPermission},
		{"longfile", func(p string) error { return os.WriteFile(p, bytes.Repeat(content, 1000), 0o600) }, ErrFormat,
			"begins with", ErrPermission},
		{"empty", func(p string) error { return os.WriteFile(p, nil, 0o600) }, ErrFormat, "0 bytes", ErrPermission},
		{"link", func(p string) error { return os.Symlink(target, p) }, ErrPermission, "symbolic link", ErrPermission},
		{"link-to-segment", func(p string) error { return os.Symlink(segment.Path(), p) }, ErrPermission, "symbolic link",
			ErrPermission},
		{"dangling", func(p string) error { return os.Symlink(filepath.Join(dir, "nowhere"), p) }, ErrPermission,
			"symbolic link", ErrPermission},
		{"fifo", func(p string) error { return unix.Mkfifo(p, 0o600) }, ErrPermission, "FIFO", ErrPermission},
		{"directory", func(p string) error { return os.Mkdir(p, 0o700) }, ErrPermission, "directory", ErrPermission},
		{"socket", func(p string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Bind(fd, &unix.SockaddrUnix{Name: p})
		}, ErrPermission, "socket", ErrPermission},
	} {
		path := filepath.Join(dir, c.name)
		fatal.If(t, os.WriteFile(target, content, 0o600))
		if err := c.make(path); err != nil {
			t.Fatal(c.name, err)
		}
		before, err := os.Lstat(path)
		fatal.If(t, err)
		o := small()
		o.Name, o.Dir = c.name, dir
		_, err = Create(o)
		expect.Error(t, err, ErrExists, path)
		_, err = Open(path, OpenOptions{})
		expect.Error(t, err, c.open, path, c.part)
		expect.Error(t, Unlink(path), c.unlink, path)
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || before.Size() != after.Size() || before.Mode() != after.Mode() {
			t.Errorf("%s: %v became %v, %v", c.name, before, after, err)
		}
		if b, err := os.ReadFile(target); err != nil || !bytes.Equal(b, content) {
			t.Errorf("%s: the target says %q, %v", c.name, b, err)
		}
	}
	for _, path := range []string{filepath.Join(dir, "none"), "/nowhere/none", target + "/below"} {
		_, err := Open(path, OpenOptions{})
		expect.Error(t, err, ErrNotFound, path)
		expect.Error(t, err, fs.ErrNotExist)
		expect.Error(t, Unlink(path), ErrNotFound, path)
	}
	_, err := Open("a name", OpenOptions{})
	expect.Error(t, err, ErrInvalid)
	_, err = Open("/dev/null", OpenOptions{})
	expect.Error(t, err, ErrPermission, "device")
}

// Ensure that another user's segment is refused, by root too, and that a user's own without write
// permission is attached read-only.
func TestOwners(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	s := create(t, o)
	fatal.Privileged(t, "give a file away", notRoot())
	fatal.If(t, os.Chown(s.Path(), 12345, 12345))
	_, err := Open(s.Path(), OpenOptions{})
	expect.Error(t, err, ErrPermission, "user 12345", s.Path())
	expect.Error(t, Unlink(s.Path()), ErrPermission, "user 12345")
	fatal.If(t, os.Chmod(o.Dir, 0o755))
	as := func(uid uint32, expectation string) {
		t.Helper()
		cmd, out := child("open-as", s.Path(), expectation)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Run(); err != nil {
			t.Errorf("as user %d, expecting %s: %v\n%s", uid, expectation, err, out)
		}
	}
	as(12345, "writable")
	as(12346, "another's")
	for mode, expectation := range map[os.FileMode]string{0o400: "read-only", 0o000: "no permission"} {
		fatal.If(t, os.Chmod(s.Path(), mode))
		as(12345, expectation)
	}
}

func init() {
	children["open-as"] = func(args []string) error {
		s, err := Open(args[0], OpenOptions{})
		switch args[1] {
		case "another's":
			return refusal(err, ErrPermission, "belongs to user 12345, not to 12346")
		case "no permission":
			return refusal(err, ErrPermission, "permission denied")
		}
		if err != nil {
			return err
		}
		if _, err := s.ProbeLocks(); err != nil {
			return err
		}
		if _, err = s.NewLocks(); args[1] == "read-only" {
			if !s.ReadOnly() {
				return errors.New("writable")
			}
			return refusal(err, ErrReadOnly)
		}
		return err
	}
}

// Ensure that the default directory is made with mode 0700 for any umask, and refused when it is a
// symbolic link, a file, another user's, or open to others.
func TestDefaultDir(t *testing.T) {
	const uid = 54321
	dir := fmt.Sprintf("%s%d", dirPrefix, uid)
	fatal.Privileged(t, "become another user", notRoot())
	os.RemoveAll(dir)
	t.Cleanup(func() { os.RemoveAll(dir) })
	elsewhere := tempDir(t)
	run := func(expectation string) {
		t.Helper()
		cmd, out := child("create-default", expectation)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v\n%s", expectation, err, out)
		}
	}
	run("works")
	os.RemoveAll(dir)
	for _, c := range []struct {
		expectation string
		make        func() error
	}{
		{"symbolic link", func() error { return errors.Join(os.Chown(elsewhere, uid, uid), os.Symlink(elsewhere, dir)) }},
		{"symbolic link", func() error { return os.WriteFile(dir, nil, 0o600) }},
		{"belongs to user 0, not to 54321", func() error { return errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777)) }},
		{"chmod 700", func() error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, uid),
				os.Chmod(dir, 0o750))
		}},
	} {
		fatal.If(t, c.make())
		run(c.expectation)
		os.RemoveAll(dir)
	}
	if entries, _ := os.ReadDir(elsewhere); len(entries) != 0 {
		t.Errorf("something was made elsewhere: %v", entries)
	}
}

func childCreateDefault(args []string) error {
	unix.Umask(0o777)
	o := small()
	s, err := Create(o)
	if args[0] != "works" {
		if err := refusal(err, ErrPermission, DefaultDir(), args[0]); err != nil {
			return err
		}
		// another file in place of the directory is an error in any case
		if _, err = Open(o.Name, OpenOptions{}); errors.Is(err, ErrNotFound) {
			return fmt.Errorf("open: %w", err)
		}
		return refusal(err, ErrPermission, DefaultDir())
	}
	if err != nil {
		return err
	}
	dir, err := os.Stat(DefaultDir())
	if err != nil || dir.Mode() != fs.ModeDir|0o700 {
		return fmt.Errorf("%v, %v", dir.Mode(), err)
	}
	file, err := os.Stat(s.Path())
	if err != nil || file.Mode() != 0o600 || !strings.HasPrefix(s.Path(), DefaultDir()) {
		return fmt.Errorf("%v, %v", file, err)
	}
	if _, err := Open(o.Name, OpenOptions{UUID: &s.Header.UUID}); err != nil {
		return err
	}
	found, err := List("")
	if err != nil || len(found) != 1 || found[0].Name != o.Name {
		return fmt.Errorf("%+v, %v", found, err)
	}
	if err := Unlink(o.Name); err != nil {
		return err
	}
	_, err = Open(o.Name, OpenOptions{})
	return refusal(err, ErrNotFound, "stocached ls")
}

// Ensure that a directory outside a tmpfs, or a missing one, is refused.
func TestOtherDirectories(t *testing.T) {
	o := small()
	o.Dir = "/proc"
	_, err := Create(o)
	expect.Error(t, err, ErrInvalid, "dir: /proc", "tmpfs")
	o.Dir = filepath.Join(tempDir(t), "missing")
	_, err = Create(o)
	expect.Error(t, err, ErrInvalid, "dir", o.Dir)
}

// Ensure that a process that is killed during Create, after it allocated pages and before the file
// has a name, leaves no file.
func TestKilledWhileCreating(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=1g")
	free := func() uint64 {
		var st unix.Statfs_t
		fatal.If(t, unix.Statfs(dir, &st))
		return st.Bfree
	}
	before := free()
	cmd, out := child("killed-while-creating", dir)
	var status *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &status) || status.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Fatalf("%v\n%s", err, out)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Error(entries, err)
	}
	expect.Equal(t, free(), before, "blocks free")
}

func childKilledWhileCreating(args []string) error {
	_, err := Create(Options{Name: "half", Dir: args[0], Samples: 1, SampleBytes: 256 << 20, Reserve: true, Progress: func(done, total uint64) {
		if done >= 128<<20 {
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}})
	return fmt.Errorf("not killed: %v", err)
}

// Ensure that a reservation allocates all pages, reports its steps and sets the flag.
func TestReserve(t *testing.T) {
	var steps []uint64
	s := create(t, Options{Name: "reserved", Dir: tempDir(t), Samples: 3, SampleBytes: 50 << 20, Reserve: true, Progress: func(done, total uint64) {
		if total != roundUp(150<<20, RegionAlign) || len(steps) > 0 && done <= steps[len(steps)-1] {
			t.Errorf("%d of %d after %v", done, total, steps)
		}
		steps = append(steps, done)
	}})
	if len(steps) < 3 || steps[len(steps)-1] != 150<<20 {
		t.Errorf("steps %v", steps)
	}
	expect.Gives(s.AllocatedBytes())(t, s.SegmentBytes)
	if s.Header.Flags&FlagReserved == 0 {
		t.Error("not flagged")
	}
}

// Ensure that truncation by another program is found by an attach and by a read of the payload, and
// that a sealed memfd cannot be truncated.
func TestTruncatedWhileInUse(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	s := create(t, o)
	fatal.If(t, os.Truncate(s.Path(), int64(s.PayloadOffset)+50))
	_, err := Open(s.Path(), OpenOptions{})
	expect.Error(t, err, ErrFormat, fmt.Sprint(s.PayloadOffset+50), fmt.Sprint(s.SegmentBytes), "truncated")
	expect.Error(t, s.ReadPayload(make([]byte, 100), 0), ErrFormat, "truncated")
	if err := Unlink(s.Path()); err != nil { // it still begins like a segment
		t.Error(err)
	}
}

// Ensure that Close may be called twice and unmaps the file. After KeepWords the addresses of the words
// are free once no goroutine can reach the segment.
func TestClose(t *testing.T) {
	o := small()
	o.Dir = tempDir(t)
	s, err := Create(o) // create keeps it for the end of the test
	fatal.If(t, err)
	maps := func() int {
		b := fatal.Value(os.ReadFile("/proc/self/maps"))(t)
		return strings.Count(string(b), o.Dir)
	}
	s.KeepWords()
	expect.Equal(t, maps(), 2, "maps")
	for range 2 {
		expect.NoError(t, s.Close())
	}
	expect.Equal(t, maps()+descriptors(t), 0, "maps and descriptors left")
	expect.Equal(t, s.Word(0).Load(), 0, "a word that is loaded late")
	s.Counter(0, 0, Hits).Add(1)
	first := uintptr(unsafe.Pointer(&s.control[0]))
	s = nil
	mapped := func() bool {
		var resident [1]byte
		_, _, e := unix.Syscall(unix.SYS_MINCORE, first, uintptr(os.Getpagesize()), uintptr(unsafe.Pointer(&resident)))
		return e != unix.ENOMEM
	}
	for end := time.Now().Add(time.Minute); mapped(); time.Sleep(time.Millisecond) {
		if runtime.GC(); time.Now().After(end) {
			t.Fatal("the addresses are still mapped")
		}
	}
}
