package disk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/diskfile"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
)

const (
	samples = 60
	bytesOf = 3000 // the bytes of a sample
)

func about(variable bool) tier.About {
	return tier.About{Cache: "pets", Log: slog.New(slog.DiscardHandler), Info: source.Info{Samples: samples, Fingerprint: "v1",
		Schema: shm.Schema{SampleBytes: bytesOf, Variable: variable}}}
}

// content returns the bytes of a sample, which all depend on its index.
func content(i, n int) []byte {
	b := make([]byte, n, n+tier.Spare)
	for at := range b {
		b[at] = byte(i*131 + at*7 + at>>8)
	}
	return b
}

func length(i int, variable bool) int {
	if variable {
		return 100 + i*40
	}
	return bytesOf
}

// small is the size of a file with room for a third of the samples: its payload begins at 2 MiB.
const small = "2150KiB"

func settingsOf(dir string, more source.Settings) source.Settings {
	s := source.Settings{"dir": dir, "size": "16MiB"}
	for key, value := range more {
		s[key] = value
	}
	return s
}

// opened returns a tier that has its file.
func opened(t testing.TB, from source.Settings, about tier.About) *Tier {
	t.Helper()
	made, err := Open(from, about)
	fatal.If(t, err)
	t.Cleanup(func() { made.Close() })
	disk := made.(*Tier)
	works(t, disk)
	return disk
}

func works(t testing.TB, disk *Tier) {
	t.Helper()
	fatal.Until(t, "the tier is in use", func() bool { return !disk.breaker.IsOpen() })
}

// get reads a sample, checks its bytes, and returns what the tier says.
func get(t testing.TB, disk *Tier, i, n int) tier.Result {
	t.Helper()
	dst := make([]byte, n+tier.Spare)
	_, r := disk.Get(t.Context(), i, n, dst)
	if r == tier.Hit && !bytes.Equal(dst[:n], content(i, n)) {
		t.Fatalf("sample %d: wrong bytes", i)
	}
	return r
}

func hits(t testing.TB, disk *Tier, variable bool) (n int) {
	t.Helper()
	for i := range samples {
		if get(t, disk, i, length(i, variable)) == tier.Hit {
			n++
		}
	}
	return n
}

// Ensure that samples survive a restart, for samples of one size and of any, and for all policies.
func TestSamplesSurvive(t *testing.T) {
	for _, policy := range policies() {
		for _, variable := range []bool{false, true} {
			if variable && policy != "first-come" {
				continue
			}
			t.Run(fmt.Sprint(policy, variable), func(t *testing.T) {
				from := settingsOf(t.TempDir(), source.Settings{"policy": policy})
				disk := opened(t, from, about(variable))
				for i := range samples {
					disk.Put(t.Context(), i, content(i, length(i, variable)))
				}
				fatal.Equal(t, hits(t, disk, variable), samples, "hits")
				fatal.If(t, disk.Close())
				again := opened(t, from, about(variable))
				fatal.Equal(t, hits(t, again, variable), samples, "hits after a restart")
				again.Put(t.Context(), 3, content(3, length(3, variable)))
				if s := again.Status(); s.Hits != samples || s.Writes != 0 || s.Poisoned != 0 || s.Openings != 0 || len(s.Notes) != 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// Ensure that a full tier refuses writes, or evicts as its policy says, and that a restart keeps what is there.
func TestFullTier(t *testing.T) {
	for policy, evicts := range map[string]bool{"first-come": false, "lru": true, "fifo": true} {
		from := settingsOf(t.TempDir(), source.Settings{"policy": policy, "size": small})
		disk := opened(t, from, about(false))
		slots := int(disk.seg.Slots)
		if slots < 5 || slots > samples-10 {
			t.Fatal(slots, "slots")
		}
		for i := range samples {
			disk.full.Store(0)
			disk.Put(t.Context(), i, content(i, bytesOf))
		}
		expect.Equal(t, hits(t, disk, false), slots, "%s: hits", policy)
		if s := disk.Status(); (s.Refused > 0) == evicts || s.Nodes[0].Full == evicts || disk.Accepts(1, bytesOf) != evicts {
			t.Errorf("%s: %+v", policy, s)
		}
		last := get(t, disk, samples-1, bytesOf)
		if (last == tier.Hit) != evicts {
			t.Errorf("%s: the last sample: %v", policy, last)
		}
		disk.Close()
		expect.Equal(t, hits(t, opened(t, from, about(false)), false), slots, "%s: hits after a restart", policy)
	}
}

// Ensure that bytes which changed on the disk are never served, and that the sample can be stored again.
func TestChangedBytes(t *testing.T) {
	for _, variable := range []bool{false, true} {
		from := settingsOf(t.TempDir(), nil)
		disk := opened(t, from, about(variable))
		for i := range samples {
			disk.Put(t.Context(), i, content(i, length(i, variable)))
		}
		f, err := os.OpenFile(disk.s.path(disk.about), os.O_RDWR, 0)
		fatal.If(t, err)
		defer f.Close()
		page := make([]byte, 4096)
		for at := int64(disk.seg.PayloadOffset); ; at += 64 << 10 { // one bit in each 64 KiB
			if n, _ := f.ReadAt(page, at); n == 0 {
				break
			}
			page[17] ^= 4
			fatal.Value(f.WriteAt(page[:18], at))(t)
		}
		n := hits(t, disk, variable)
		s := disk.Status()
		if n == samples || s.Poisoned != uint64(samples-n) || s.Openings != 0 {
			t.Fatalf("%d hits, %+v", n, s)
		}
		if lines := tier.Problems([]tier.Status{s}); len(lines) != 1 ||
			!strings.Contains(lines[0], fmt.Sprintf("(poisoned: %d)", s.Poisoned)) {
			t.Errorf("health says %q", lines)
		}
		if again := hits(t, disk, variable); again != n || disk.Status().Poisoned != s.Poisoned {
			t.Errorf("%d hits, then %d, %+v", n, again, disk.Status())
		}
		for i := range samples {
			disk.Put(t.Context(), i, content(i, length(i, variable)))
		}
		if n := hits(t, disk, variable); n != samples && !variable { // an arena does not use space again
			t.Errorf("%d hits after all were stored again", n)
		}
	}
}

// Ensure that another source, other settings, or a file that is no segment make the file again, and say so.
func TestAnotherFile(t *testing.T) {
	from := settingsOf(t.TempDir(), nil)
	fill := func(about tier.About) *Tier {
		disk := opened(t, from, about)
		disk.Put(t.Context(), 1, content(1, bytesOf))
		return disk
	}
	first := fill(about(false))
	path := first.s.path(first.about)
	first.Close()
	other := about(false)
	other.Info.Fingerprint = "v2"
	for want, change := range map[string]func(){
		"samples of another dataset": func() {},
		"other settings":             func() { from["size"] = "17MiB"; from["policy"] = "clock" },
		"begins with":                func() { os.WriteFile(path, bytes.Repeat([]byte("x"), 8192), 0o600) },
		"truncated": func() {
			fatal.If(t, os.Truncate(path, 5000))
		},
	} {
		before := opened(t, settingsOf(filepath.Dir(path), nil), about(false))
		before.Put(t.Context(), 1, content(1, bytesOf))
		before.Close()
		from = settingsOf(filepath.Dir(path), nil)
		change()
		use := about(false)
		if want == "samples of another dataset" {
			use = other
		}
		disk := opened(t, from, use)
		expect.Equal(t, get(t, disk, 1, bytesOf), tier.Miss, "%s", want)
		if notes := disk.Status().Notes; len(notes) != 1 || !strings.Contains(notes[0], want) {
			t.Errorf("want %q in %q", want, notes)
		}
		disk.Close()
		os.Remove(path)
	}
}

// Ensure that a server makes its file again when another program removes, replaces, truncates or overwrites it, and says
// so once. No sample is wrong.
func TestFileTakenAway(t *testing.T) {
	every := lookEvery
	t.Cleanup(func() { lookEvery = every })
	lookEvery = time.Millisecond
	for want, change := range map[string]func(path string) error{
		"removed": os.Remove,
		"replaced": func(path string) error {
			other := path + ".other"
			return errors.Join(os.WriteFile(other, bytes.Repeat([]byte("x"), 1<<20), 0o600), os.Rename(other, path))
		},
		"truncated": func(path string) error { return os.Truncate(path, 2<<20+100) },
		"overwritten": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(make([]byte, shm.HeaderBytes), 0)
			return errors.Join(err, f.Close())
		},
	} {
		t.Run(want, func(t *testing.T) {
			var log synced
			use := about(false)
			use.Log = slog.New(slog.NewTextHandler(&log, nil))
			disk := opened(t, settingsOf(t.TempDir(), nil), use)
			disk.Put(t.Context(), 1, content(1, bytesOf))
			path := disk.s.path(use)
			fatal.If(t, change(path))
			fatal.Until(t, "the tier opens its file again", func() bool {
				get(t, disk, 1, bytesOf)
				return disk.Status().Openings > 0
			})
			works(t, disk)
			disk.Put(t.Context(), 2, content(2, bytesOf))
			if one, two := get(t, disk, 1, bytesOf), get(t, disk, 2, bytesOf); one != tier.Miss || two != tier.Hit {
				t.Errorf("sample 1: %v, sample 2: %v", one, two)
			}
			said := fmt.Sprintf("another program has %s %s", want, path)
			if s := disk.Status(); len(s.Notes) == 0 || !strings.Contains(s.Notes[0], said) || s.Openings != 1 ||
				strings.Count(log.String(), "a tier is left out") != 1 {
				t.Errorf("%+v, log %s", s, log.String())
			}
			disk.remade.Store(1) // an hour later
			if s := disk.Status(); strings.Contains(fmt.Sprint(s.Notes), said) {
				t.Errorf("later: %+v", s)
			}
			disk.Close()
			expect.Equal(t, hits(t, opened(t, settingsOf(filepath.Dir(path), nil), use), false), 1, "hits after a restart")
		})
	}
}

// Ensure that a tier is left out while it cannot look into its folder. Then it has its samples again.
func TestFolderHidden(t *testing.T) {
	every := lookEvery
	t.Cleanup(func() { lookEvery = every })
	lookEvery = time.Millisecond
	folder := filepath.Join(t.TempDir(), "tier")
	fatal.If(t, os.Mkdir(folder, 0o700))
	disk := opened(t, settingsOf(folder, nil), about(false))
	disk.Put(t.Context(), 1, content(1, bytesOf))
	fatal.If(t, errors.Join(os.Rename(folder, folder+".moved"), os.WriteFile(folder, nil, 0o600)))
	fatal.Until(t, "the tier is left out", func() bool {
		because, _ := disk.breaker.State()
		return strings.Contains(because, "not a directory")
	})
	fatal.If(t, errors.Join(os.Remove(folder), os.Rename(folder+".moved", folder)))
	works(t, disk)
	if r := get(t, disk, 1, bytesOf); r != tier.Hit || disk.Status().Openings != 1 {
		t.Errorf("%v, %+v", r, disk.Status())
	}
}

// synced is a buffer for the log of a tier.
type synced struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *synced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(p)
}

func (s *synced) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.String()
}

// Ensure that one process uses a file at a time, and that the next one gets it when the first has ended.
func TestOneUser(t *testing.T) {
	from := settingsOf(t.TempDir(), nil)
	first := opened(t, from, about(false))
	first.Put(t.Context(), 1, content(1, bytesOf))
	made, err := Open(from, about(false))
	fatal.If(t, err)
	second := made.(*Tier)
	defer second.Close()
	for {
		if because, _ := second.breaker.State(); strings.Contains(because, "use it; end them") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if r := get(t, second, 1, bytesOf); r != tier.Out || second.Accepts(1, bytesOf) {
		t.Errorf("%v", r)
	}
	second.Put(t.Context(), 2, content(2, bytesOf)) // it does nothing
	first.Close()
	works(t, second)
	expect.Equal(t, get(t, second, 1, bytesOf), tier.Hit, "")
	expect.Equal(t, get(t, first, 1, bytesOf), tier.Out, "a closed tier")
	first.Put(t.Context(), 1, content(1, bytesOf))
	expect.NoError(t, first.Close())
}

// flaky is a file that fails.
type flaky struct {
	diskfile.File
	reads, writes atomic.Pointer[error]
	from          atomic.Int64 // writes before it succeed
}

func (f *flaky) ReadAt(p []byte, at int64) (int, error) {
	if err := f.reads.Load(); err != nil {
		return 0, *err
	}
	return f.File.ReadAt(p, at)
}

func (f *flaky) WriteAt(p []byte, at int64) (int, error) {
	if err := f.writes.Load(); err != nil && at >= f.from.Load() {
		return len(p) / 2, *err
	}
	return f.File.WriteAt(p, at)
}

// standIn returns a tier over a file that a test controls. wrap gets the file that the tier has made.
func standIn(t *testing.T, from source.Settings, about tier.About, wrap func(*os.File) diskfile.File) *Tier {
	t.Helper()
	opened(t, from, about).Close() // makes the file
	s, err := read(from, about)
	fatal.If(t, err)
	f, err := os.OpenFile(s.path(about), os.O_RDWR, 0)
	fatal.If(t, err)
	file := wrap(f)
	disk := begin(s, about, func() (*diskfile.Segment, string, error) {
		seg, err := diskfile.Load(file, s.path(about), s.options(about))
		return seg, "", err
	})
	t.Cleanup(func() { disk.Close() })
	works(t, disk)
	return disk
}

// Ensure that a disk which fails costs time and hits, and never an error: the tier is left out, and comes back.
func TestFailingDisk(t *testing.T) {
	var file *flaky
	disk := standIn(t, settingsOf(t.TempDir(), nil), about(false), func(f *os.File) diskfile.File {
		file = &flaky{File: f}
		return file
	})
	for i := range 10 {
		disk.Put(t.Context(), i, content(i, bytesOf))
	}
	eio := error(unix.EIO)
	for name, at := range map[string]*atomic.Pointer[error]{"read": &file.reads, "write": &file.writes} {
		at.Store(&eio)
		openings := disk.breaker.Openings()
		if name == "read" {
			expect.Equal(t, get(t, disk, 1, bytesOf), tier.Out, "")
		} else {
			disk.Put(t.Context(), 11, content(11, bytesOf))
		}
		if because, _ := disk.breaker.State(); !strings.Contains(because, "input/output error") || disk.breaker.Openings() != openings+1 {
			t.Fatalf("%s: %q, %d openings", name, because, disk.breaker.Openings())
		}
		for i := range 10 {
			if r := get(t, disk, i, bytesOf); r != tier.Out || disk.Accepts(i, bytesOf) {
				t.Errorf("%s, sample %d: %v", name, i, r)
			}
		}
		at.Store(nil)
		works(t, disk)
		expect.Equal(t, hits(t, disk, false), 10, "%s: hits after it came back", name)
	}
	full := error(unix.ENOSPC)
	file.from.Store(int64(disk.seg.PayloadOffset)) // the index has its space
	file.writes.Store(&full)
	disk.Put(t.Context(), 12, content(12, bytesOf))
	if s := disk.Status(); s.Refused != 1 || !s.Nodes[0].Full || s.Nodes[0].LeftOut || disk.Accepts(13, bytesOf) {
		t.Errorf("a full file system: %+v", s)
	}
	disk.full.Store(0)
	if lines := tier.Problems([]tier.Status{disk.Status()}); len(lines) != 1 ||
		!strings.Contains(lines[0], "no space, so samples are not written to it (refused: 1)") {
		t.Errorf("health says %q", lines) // also when the pause is over
	}
	expect.Equal(t, hits(t, disk, false), 10, "hits on a full file system")
	file.writes.Store(nil)
	disk.full.Store(0)
	disk.short.Store(1) // long ago
	disk.Put(t.Context(), 12, content(12, bytesOf))
	if r := get(t, disk, 12, bytesOf); r != tier.Hit || len(disk.Status().Notes) != 0 {
		t.Errorf("after space was freed: %v, %v", r, disk.Status().Notes)
	}
}

// Ensure that a tier that is larger than its file system is left out, and says what to do.
func TestSmallFileSystem(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=1m")
	made, err := Open(settingsOf(dir, source.Settings{"size": "1GiB"}), tier.About{Cache: "large", Log: slog.New(slog.DiscardHandler),
		Info: source.Info{Samples: 1 << 20, Fingerprint: "x", Schema: shm.Schema{SampleBytes: bytesOf}}})
	fatal.If(t, err)
	defer made.Close()
	for {
		if lines := made.Status().Nodes; strings.Contains(lines[0].Because, "make size smaller, or free some") {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

// volatile is a file on a disk that loses power: what was written since the last Sync may be there or not, in
// sectors, in any order.
type volatile struct {
	mu      sync.Mutex
	now     []byte // what reads see
	durable []byte
	since   []sector
	random  *rand.Rand
}

type sector struct {
	at    int64
	bytes []byte
}

const sectorBytes = 512

func (v *volatile) ReadAt(p []byte, at int64) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at >= int64(len(v.now)) {
		return 0, io.EOF
	}
	n := copy(p, v.now[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (v *volatile) WriteAt(p []byte, at int64) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	copy(v.now[at:], p)
	for from := at / sectorBytes * sectorBytes; from < at+int64(len(p)); from += sectorBytes {
		v.since = append(v.since, sector{from, bytes.Clone(v.now[from:min(from+sectorBytes, int64(len(v.now)))])})
	}
	return len(p), nil
}

func (v *volatile) Sync() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	copy(v.durable, v.now)
	v.since = nil
	return nil
}

func (v *volatile) Close() error { return nil }

// lose returns the file after a loss of power.
func (v *volatile) lose() *volatile {
	v.mu.Lock()
	defer v.mu.Unlock()
	after := bytes.Clone(v.durable)
	v.random.Shuffle(len(v.since), func(i, k int) { v.since[i], v.since[k] = v.since[k], v.since[i] })
	keep := v.random.Float64()
	for _, s := range v.since {
		if v.random.Float64() < keep {
			copy(after[s.at:], s.bytes)
		}
	}
	return &volatile{now: after, durable: bytes.Clone(after), random: v.random}
}

// Ensure that no wrong byte is served after losses of power, and that most of what was synced is still there.
func TestPowerLoss(t *testing.T) {
	for _, policy := range []string{"first-come", "fifo", "lru"} {
		for _, variable := range []bool{false, true} {
			if variable && policy != "first-come" {
				continue
			}
			s, err := read(settingsOf(t.TempDir(), source.Settings{"size": small, "policy": policy}), about(variable))
			fatal.If(t, err)
			random := rand.New(rand.NewPCG(7, 7))
			options := s.options(about(variable))
			seg, _, err := diskfile.Open(filepath.Join(t.TempDir(), "x"), options)
			fatal.If(t, err)
			file := &volatile{now: make([]byte, seg.SegmentBytes), random: random}
			seg.Close()
			file.durable = bytes.Clone(file.now)
			raw, err := os.ReadFile(seg.Path())
			fatal.If(t, err)
			copy(file.now, raw)
			copy(file.durable, raw)
			served, torn, kept := 0, uint64(0), 0
			for range 60 {
				disk := begin(s, about(variable), func() (*diskfile.Segment, string, error) {
					seg, err := diskfile.Load(file, "stand-in", options)
					return seg, "", err
				})
				works(t, disk)
				was := hits(t, disk, variable)
				served += was
				var all sync.WaitGroup
				for range 2 {
					order := random.Perm(samples)[:random.IntN(samples)]
					all.Go(func() {
						for _, i := range order {
							disk.full.Store(0)
							disk.Put(context.Background(), i, content(i, length(i, variable)))
							get(t, disk, i, length(i, variable))
						}
					})
				}
				all.Wait()
				if random.IntN(3) == 0 {
					file.Sync()
					kept += was
				}
				torn += disk.Status().Poisoned
				next := file.lose()
				disk.Close() // into the file that no program reads any more
				file = next
			}
			t.Logf("%s, variable %v: %d hits after losses, %d torn samples were noticed", policy, variable, served, torn)
			if served < 60 || torn == 0 {
				t.Errorf("%s, variable %v: %d hits after losses, %d torn samples: the test shows nothing", policy, variable, served, torn)
			}
		}
	}
}

// child stores samples until it is killed, in a process of its own that is killed.
func child() {
	disk, err := Open(settingsOf(os.Getenv("STOCACHED_TEST_DIR"), source.Settings{"size": small, "policy": "fifo"}), about(false))
	if err != nil {
		panic(err)
	}
	for disk.(*Tier).breaker.IsOpen() {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("works")
	for k := range 20_000 {
		i := k * 7 % samples
		disk.Put(context.Background(), i, content(i, bytesOf))
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("STOCACHED_TEST_DIR") != "" {
		child()
		return
	}
	os.Exit(m.Run())
}

// run runs the child until it says that it works, and then calls act.
func run(t *testing.T, dir string, environment []string, act func(c *exec.Cmd)) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(append(os.Environ(), "STOCACHED_TEST_DIR="+dir), environment...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	fatal.If(t, err)
	fatal.If(t, c.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil && environment == nil {
		t.Fatal(line, err)
	}
	act(c)
	c.Wait()
}

// Ensure that a process can be killed at any time: the next one serves right samples, and no slot is lost.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	for range 15 {
		run(t, dir, nil, func(c *exec.Cmd) {
			time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
			c.Process.Kill()
		})
		checkFile(t, dir)
	}
}

func checkFile(t *testing.T, dir string) {
	t.Helper()
	disk := opened(t, settingsOf(dir, source.Settings{"size": small, "policy": "fifo"}), about(false))
	defer disk.Close()
	hits(t, disk, false)
	if s := disk.Status(); s.Poisoned > 2 || len(s.Notes) > 0 { // the sample that it wrote, and the one that lost its slot
		t.Errorf("%+v", s)
	}
	for i := range samples {
		disk.Put(t.Context(), i, content(i, bytesOf))
	}
	expect.Equal(t, hits(t, disk, false), int(disk.seg.Slots), "hits after a kill")
}

func TestBadSettings(t *testing.T) {
	dir := t.TempDir()
	for want, from := range map[string]source.Settings{
		"dir: give a folder":                {"size": "1GiB"},
		"size: give the most":               {"dir": dir},
		"size: 1024 bytes are less":         {"dir": dir, "size": "1KiB"},
		"more than the size of 16384 bytes": {"dir": dir, "size": "16KiB"},
		`"best" is not one of first-come`:   {"dir": dir, "size": "1GiB", "policy": "best"},
		"neither costs nor plans":           {"dir": dir, "size": "1GiB", "policy": "cost"},
		"colour":                            {"dir": dir, "size": "1GiB", "colour": "red"},
	} {
		if err := check(from, about(false)); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	var fs unix.Statfs_t
	fatal.If(t, unix.Statfs(dir, &fs))
	diskfile.NetworkFileSystems[uint32(fs.Type)] = "of a test"
	if err := check(settingsOf(dir, nil), about(false)); !errors.Is(err, source.ErrInvalid) ||
		!strings.Contains(err.Error(), "on a network file system (of a test)") {
		t.Error(err)
	}
	delete(diskfile.NetworkFileSystems, uint32(fs.Type))
	if err := check(settingsOf(dir, source.Settings{"policy": "lru"}), about(true)); err == nil ||
		!strings.Contains(err.Error(), "samples that differ in size need first-come") {
		t.Error(err)
	}
	for want, from := range map[string]source.Settings{"0 is less": settingsOf(dir, nil), "make the folder": settingsOf(dir+"/none", nil)} {
		found, err := examine(t.Context(), from, about(false))
		text := fmt.Sprint(found)
		if err != nil || strings.Contains(want, "folder") != strings.Contains(text, want) {
			t.Errorf("%s: %v, %v", want, text, err)
		}
	}
	own := dir + "/own"
	fatal.If(t, os.WriteFile(own, bytes.Repeat([]byte{1}, 1<<20), 0o600))
	if got := onDisk(own); got < 1<<20 || onDisk(dir+"/none") != 0 { // doctor takes it for free space of the tier
		t.Errorf("a file of 1 MiB takes %d bytes", got)
	}
	for number, want := range map[int64]string{0xef53: "ext4", 0x1021994: "tmpfs", 0x123: "unknown (0x123)"} {
		expect.Equal(t, fileSystem(number), want, "%#x", number)
	}
	made, err := Open(settingsOf(dir+"/none", nil), about(false))
	fatal.If(t, err)
	defer made.Close()
	for !strings.Contains(made.Status().Nodes[0].Because, "no such file") {
		time.Sleep(time.Millisecond)
	}
}

// Ensure that two samples with one place in the file are both dropped.
func TestOnePlaceForTwo(t *testing.T) {
	from := settingsOf(t.TempDir(), nil)
	disk := opened(t, from, about(false))
	for i := range 4 {
		disk.Put(t.Context(), i, content(i, bytesOf))
	}
	path, index := disk.s.path(disk.about), int64(disk.seg.IndexOffset)
	disk.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	fatal.If(t, err)
	record, word := make([]byte, 16), make([]byte, 8)
	fatal.Value(f.ReadAt(record, index+1*16))(t)
	f.WriteAt(record, index+9*16) // sample 9 has the place of sample 1
	binary.LittleEndian.PutUint64(word, ^uint64(0)>>3<<3|2)
	f.WriteAt(word, index+10*16) // a place outside of the payload
	f.Close()
	again := opened(t, from, about(false))
	var there []int
	for i := range samples {
		if get(t, again, i, bytesOf) == tier.Hit {
			there = append(there, i)
		}
	}
	if fmt.Sprint(there) != "[0 2 3]" {
		t.Errorf("samples %v", there)
	}
	for i := range samples {
		again.Put(t.Context(), i, content(i, bytesOf))
	}
	expect.Equal(t, hits(t, again, false), samples, "hits")
}
