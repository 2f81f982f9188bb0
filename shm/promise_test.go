package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm/memory"
)

func init() {
	children["hold-cache"] = childHoldCache
}

// memoryLeft returns how much memory a new cache without a name may take now.
func memoryLeft(t *testing.T) uint64 {
	t.Helper()
	limits := fatal.Value(memory.ReadLimits())(t)
	others := memory.Promises{}
	addNamed(others, DefaultDir(), true)
	addAttached(others)
	return limits.Tightest(others.Sum).Left
}

// Ensure that memory is promised once: of caches of two fifths of it each, the third and later ones
// are refused, with the numbers, with or without a name, and for any process. A fifth is left for tests beside this one.
func TestMemoryIsPromisedOnce(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=1t") // a size that sets no limit here
	part := memoryLeft(t) / 5 * 2
	o := Options{Samples: 1 << 20, Slots: part >> 20, SampleBytes: 1 << 20}
	for k := range 4 {
		if o.Name, o.Dir = "", ""; k == 1 {
			o.Name, o.Dir = "named", dir
		}
		s, err := Create(o)
		if err != nil {
			if expect.Error(t, err, ErrMemory, "that other caches (", "yet to fill", "--size"); k < 1 && memoryLeft(t) > part {
				t.Errorf("cache %d of two fifths of the memory is refused: %v", k, err)
			}
			return
		}
		closeLater(t, s)
		locks(t, s)
		t.Logf("cache %d of %d bytes; %d are left", k, s.SegmentBytes, memoryLeft(t))
	}
	t.Errorf("4 caches of %d bytes each were made out of %d", part, part/2*5)
}

// Ensure that the caches of other processes count while these live and the caches are not full. A
// reserved one, one on the heap, and one without a client do not count.
func TestPromises(t *testing.T) {
	mine := create(t, Options{Samples: 100, SampleBytes: 1 << 20})
	promised := func(s *Segment) uint64 {
		t.Helper()
		p := memory.Promises{}
		addAttached(p)
		var st unix.Stat_t
		fatal.If(t, unix.Fstat(s.FD(), &st))
		if one := p[inodeOf(&st)]; one != nil {
			return one.Bytes
		}
		return 0
	}
	expect.Equal(t, promised(mine), 0, "bytes of a cache without a client")
	locks(t, mine)
	expect.Equal(t, promised(mine), 100<<20, "bytes of 100 MiB")
	fatal.If(t, mine.AllocatePayload(0, 60<<20))
	expect.Equal(t, promised(mine), 40<<20, "bytes of 40 MiB")
	reserved := create(t, Options{Samples: 1, SampleBytes: 1 << 20, Reserve: true})
	locks(t, reserved)
	expect.Equal(t, promised(reserved), 0, "bytes of a reserved cache")

	cmd, _ := child("hold-cache")
	cmd.Stdout = nil
	out := fatal.Value(cmd.StdoutPipe())(t)
	in := fatal.Value(cmd.StdinPipe())(t)
	fatal.If(t, cmd.Start())
	var fd int
	fatal.Value(fmt.Fscanln(out, &fd))(t)
	theirs := open(t, fmt.Sprintf("/proc/%d/fd/%d", cmd.Process.Pid, fd), OpenOptions{})
	expect.Equal(t, promised(theirs), 50<<20, "bytes of another process's 50 MiB")
	in.Close()
	fatal.If(t, cmd.Wait())
	expect.Equal(t, promised(theirs), 0, "bytes of a process that has ended")
}

func childHoldCache([]string) error {
	s, err := Create(Options{Samples: 50, SampleBytes: 1 << 20})
	if err != nil {
		return err
	}
	l, err := s.NewLocks()
	if err != nil {
		return err
	}
	fmt.Println(s.FD())
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test has ended
	return errors.Join(l.Close(), s.Close())
}

// Ensure that the kernel's list of locks is parsed: a client is a process that holds both locks of
// a cache for reading.
func TestClientsOfLocks(t *testing.T) {
	got := clientsIn(`1: OFDLCK ADVISORY  READ -1 00:01:82147 4096 4096
2: FLOCK  ADVISORY  READ 1234 00:01:82147 0 EOF
2: -> FLOCK  ADVISORY  READ 999 00:01:82147 0 EOF
3: FLOCK  ADVISORY  READ 1235 00:01:82147 0 EOF
4: FLOCK  ADVISORY  READ 1235 00:01:82147 0 EOF
5: FLOCK  ADVISORY  WRITE 1 00:01:82147 0 EOF
6: OFDLCK ADVISORY  WRITE -1 00:01:82147 8192 8192
7: FLOCK  ADVISORY  READ 77 fe:0a:5 0 EOF
8: OFDLCK ADVISORY  READ -1 00:01:9 4096 4097
9: FLOCK  ADVISORY  READ 78 00:01:9 0 EOF
10: POSIX  ADVISORY  READ 79 00:19:3 4096 4096
11: OFDLCK ADVISORY  READ -1 00:19:3 4096 4096
12: FLOCK  ADVISORY  READ 80 00:19:3 0 EOF
13: FLOCK  ADVISORY  READ 0 00:19:3 0 EOF
garbage
`)
	first := memory.Inode{Dev: unix.Mkdev(0, 1), Ino: 82147}
	other := memory.Inode{Dev: unix.Mkdev(0, 0x19), Ino: 3}
	want := map[int][]memory.Inode{1234: {first}, 1235: {first}, 80: {other}}
	expect.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "clients in the list of locks")
	if got := clientsIn(""); len(got) != 0 {
		t.Errorf("without the list: %v", got)
	}
}

// Ensure that a create opens no other cache while there is room by their sizes, and all before it refuses: files that
// are no caches do not count then. It counts the calls that read, of this process.
func TestCreateBesideMany(t *testing.T) {
	const many = 100
	dir := fatal.Value(os.MkdirTemp("/dev/shm", "test-many-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	createOne := func(k int) (reads int) {
		t.Helper()
		var counts [2]int
		for n := range counts {
			io, err := os.ReadFile("/proc/self/io")
			if err != nil {
				t.Skip(err)
			}
			fatal.Value(fmt.Sscanf(string(io), "rchar: %d\nwchar: %d\nsyscr: %d", new(int), new(int), &counts[n]))(t)
			if n == 0 {
				create(t, Options{Name: "many-" + strconv.Itoa(k), Dir: dir, Samples: 4, SampleBytes: 4})
			}
		}
		return counts[1] - counts[0]
	}
	first := createOne(0)
	for k := 1; k < many; k++ {
		createOne(k)
	}
	if last := createOne(many); last >= first+many/2 {
		t.Errorf("%d reads for a cache beside %d others, %d for the first", last, many, first)
	}
	for k := range 3 { // the sum of their sizes has no place in 64 bits
		path := filepath.Join(dir, "no-cache-"+strconv.Itoa(k))
		fatal.If(t, errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, math.MaxInt64)))
	}
	createOne(many + 1)
}

// Ensure that promises follow no symbolic link at the top of a tmpfs that looks like a user's
// folder of caches.
func TestPromisesFollowNoLink(t *testing.T) {
	elsewhere := fatal.Value(os.MkdirTemp("/dev/shm", "test-elsewhere-"))(t)
	t.Cleanup(func() { os.RemoveAll(elsewhere) })
	s := fatal.Value(Create(Options{Name: "half-empty", Dir: elsewhere, Samples: 1000, SampleBytes: 10_000}))(t)
	defer s.Close()
	link := fmt.Sprintf("/dev/shm/stocached-test-link-%d", os.Getpid())
	fatal.If(t, os.Symlink(elsewhere, link))
	t.Cleanup(func() { os.Remove(link) })
	has := func(dir string) bool {
		found, here := memory.Promises{}, memory.Promises{}
		addNamed(found, dir, true)
		addCache(here, filepath.Join(elsewhere, "half-empty"), memory.Inode{})
		for id := range here {
			return found[id] != nil
		}
		t.Fatal("the cache itself is not found")
		return false
	}
	if has("/dev/shm") {
		t.Error("a link was followed")
	}
	if !has(link) {
		t.Error("a link that the user names is not followed")
	}
}
