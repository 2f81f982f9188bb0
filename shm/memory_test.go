package shm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/cgroup"
)

func init() { children["in-cgroup"] = childInCgroup }

// files makes a machine of text files.
func files(t *testing.T, content map[string]string) kernel {
	t.Helper()
	root := t.TempDir()
	for name, text := range content {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return kernel{root}
}

const (
	meminfo = "MemTotal:       16777216 kB\nMemFree:          100000 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\n"
	mountV2 = "22 1 0:5 / /proc rw - proc proc rw\n31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1 = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n35 31 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n36 31 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)

// Ensure that limits are found at each level of cgroup v1 and v2, in containers too, that file
// cache counts as available and tmpfs pages do not, and that a missing limit is no limit.
func TestRooms(t *testing.T) {
	const g = 1 << 30
	machine := memoryLimit{"the machine (MemAvailable)", 16 * g, 8 * g, level{}}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []memoryLimit
	}{
		{"no cgroups", map[string]string{}, nil},
		{"v2, limits at two of three levels", map[string]string{
			"proc/self/cgroup":                            "0::/user.slice/job\n",
			"proc/self/mountinfo":                         mountV2,
			"sys/fs/cgroup/user.slice/job/memory.max":     "4294967296\n",
			"sys/fs/cgroup/user.slice/job/memory.high":    "max\n",
			"sys/fs/cgroup/user.slice/job/memory.current": "3221225472\n",
			"sys/fs/cgroup/user.slice/job/memory.stat":    "anon 1\nfile 2147483648\nshmem 1073741824\nactive_file 536870912\ninactive_file 536870912\n",
			"sys/fs/cgroup/user.slice/memory.max":         "max\n",
			"sys/fs/cgroup/user.slice/memory.current":     "99\n",
			"sys/fs/cgroup/memory.max":                    "8589934592\n",
			"sys/fs/cgroup/memory.current":                "8589934593\n",
			"sys/fs/cgroup/memory.stat":                   "active_file 0\ninactive_file 0\n",
		}, []memoryLimit{{"cgroup /user.slice/job (memory.max)", 4 * g, 2 * g, level{2, 2}}, {"cgroup / (memory.max)",
			8 * g, 0, level{2, 0}}}},
		{"v2, high below max", map[string]string{
			"proc/self/cgroup":               "0::/j\n",
			"proc/self/mountinfo":            mountV2,
			"sys/fs/cgroup/j/memory.max":     "4294967296\n",
			"sys/fs/cgroup/j/memory.high":    "2147483648\n",
			"sys/fs/cgroup/j/memory.current": "1073741824\n",
			"sys/fs/cgroup/j/memory.stat":    "active_file 0\n",
		}, []memoryLimit{{"cgroup /j (memory.high)", 2 * g, g, level{2, 1}}}},
		{"v2 in a container: its own group is the root of what it sees", map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"proc/self/mountinfo":          mountV2,
			"sys/fs/cgroup/memory.max":     "1073741824\n",
			"sys/fs/cgroup/memory.current": "0\n",
		}, []memoryLimit{{"cgroup / (memory.max)", g, g, level{2, 0}}}},
		{"v2, outside of the namespace's root", map[string]string{
			"proc/self/cgroup":                   "0::/../../other\n",
			"sys/fs/cgroup/other/memory.max":     "7\n", // another cgroup with that name
			"sys/fs/cgroup/other/memory.current": "7\n",
			"proc/self/mountinfo":                mountV2,
			"sys/fs/cgroup/memory.max":           "1073741824\n",
			"sys/fs/cgroup/memory.current":       "1\n",
		}, []memoryLimit{{"cgroup / (memory.max)", g, g - 1, level{2, 0}}}},
		{"v1, hybrid, with v1's number for no limit at the root", map[string]string{
			"proc/self/cgroup":    "9:name=systemd:/\n5:cpu,cpuacct:/jobs\n4:memory:/jobs/a\n0::/\n",
			"proc/self/mountinfo": mountV1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes": "2147483648\n",
			"sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes": "1610612736\n",
			"sys/fs/cgroup/memory/jobs/a/memory.stat":           "cache 1\nactive_file 1\ntotal_active_file 268435456\ntotal_inactive_file 268435456\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":        "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":        "5\n",
		}, []memoryLimit{{"cgroup /jobs/a (memory.limit_in_bytes)", 2 * g, g, level{1, 2}}}},
		{"v1 in a container whose /proc shows the host's paths", map[string]string{
			"proc/self/cgroup":    "4:memory:/docker/abc/sub\n",
			"proc/self/mountinfo": "36 31 0:33 /docker/abc /sys/fs/cgroup/memory\\040x rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory x/sub/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory x/sub/memory.usage_in_bytes": "73741824\n",
		}, []memoryLimit{{"cgroup /sub (memory.limit_in_bytes)", g, 1000000000, level{1, 1}}}},
		{"a mount of another container's group", map[string]string{
			"proc/self/cgroup": "4:memory:/docker/abcd\n",
			"sys/fs/cgroup/memory/d/memory.limit_in_bytes": "7\n", // a name with the same beginning
			"sys/fs/cgroup/memory/d/memory.usage_in_bytes": "7\n",
			"proc/self/mountinfo":                          "36 31 0:33 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "1073741824\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":   "0\n",
		}, []memoryLimit{{"cgroup / (memory.limit_in_bytes)", g, g, level{1, 0}}}},
	} {
		c.files["proc/meminfo"] = meminfo
		got, err := files(t, c.files).memoryLimits()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(append([]memoryLimit{machine}, c.want...)) {
			t.Errorf("%s:\n%v (%v), want\n%v", c.name, got, err, append([]memoryLimit{machine}, c.want...))
		}
	}
}

// Ensure that text in place of a number is an error that names the file, and no limit.
func TestRoomsGarbage(t *testing.T) {
	base := map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/j\n", "proc/self/mountinfo": mountV2,
		"sys/fs/cgroup/j/memory.max":     "100\n",
		"sys/fs/cgroup/j/memory.current": "10\n", "sys/fs/cgroup/j/memory.stat": "active_file 1\n"}
	for name, text := range map[string]string{"proc/meminfo": "MemTotal: x kB\nMemAvailable: 5 kB\n",
		"sys/fs/cgroup/j/memory.max": "-1\n", "sys/fs/cgroup/j/memory.current": "",
		"sys/fs/cgroup/j/memory.stat": "active_file many\n"} {
		broken := map[string]string{}
		for k, v := range base {
			broken[k] = v
		}
		broken[name] = text
		_, err := files(t, broken).memoryLimits()
		want(t, err, ErrSystem, name)
	}
	_, err := files(t, map[string]string{"proc/meminfo": "MemTotal: 5 kB\n"}).memoryLimits()
	want(t, err, ErrSystem, "MemAvailable")
	if _, err := files(t, base).memoryLimits(); err != nil {
		t.Error(err)
	}
	huge := "MemTotal: 18014398509481985 kB\nMemAvailable: 18014398509481985 kB\n" // more than 2^64 bytes are no few bytes
	if r, err := files(t, map[string]string{"proc/meminfo": huge}).tightest(); err != nil || r.usable() < 1<<60 {
		t.Error(r, err)
	}
	for name, text := range base { // cut at each byte, and with bytes of no meaning: an error or a limit
		broken := maps.Clone(base)
		for k := range text {
			others := []string{text[:k], text[:k] + "\xff" + text[k+1:]}
			if k%16 == 0 {
				others = append(others, text[:k]+strings.Repeat("9", 70_000), text[:k]+strings.Repeat("/", 70_000))
			}
			for _, other := range others {
				broken[name] = other
				if _, err := files(t, broken).memoryLimits(); err != nil && !errors.Is(err, ErrSystem) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}

// Ensure that the numbers of this machine can be read and are plausible.
func TestRoomsHere(t *testing.T) {
	limits, err := (kernel{"/"}).memoryLimits()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range limits {
		if r.available > r.total || r.total < 16<<20 {
			t.Errorf("%+v", r)
		}
	}
	t.Logf("%+v", limits)
}

// Ensure that the floor is a sixteenth within its bounds, and that memory below it is not usable.
func TestFloor(t *testing.T) {
	for total, floor := range map[uint64]uint64{1 << 20: FloorMin, 1 << 30: FloorMin, 4 << 30: 256 << 20,
		16 << 30: 1 << 30, 1 << 40: FloorMax} {
		r := memoryLimit{total: total, available: total}
		if r.floor() != floor {
			t.Errorf("%d: floor %d, want %d", total, r.floor(), floor)
		}
		if r.available = floor + 5; r.usable() != 5 {
			t.Errorf("%d: usable %d", total, r.usable())
		}
		if r.available = floor - 1; r.usable() != 0 {
			t.Errorf("%d: usable %d", total, r.usable())
		}
	}
}

// Ensure that a budget refuses one byte too many and allows the last one, for the tmpfs and for the
// tightest limit, with the numbers in the message.
func TestBudget(t *testing.T) {
	const g = 1 << 30
	machine := memoryLimit{what: "the machine", total: 64 * g, available: 32 * g}
	b := budget{tmpfs: true, dir: "/dev/shm", size: 24 * g, free: 20 * g, promised: sum{16 * g, 1},
		memory: machine.space()}
	b.need = 3 * g // 20 - 1 of headroom - 16
	if err := b.check(); err != nil {
		t.Error(err)
	}
	b.need++
	want(t, b.check(), ErrMemory, "needs 3221225473 bytes",
		"/dev/shm has 21474836480 bytes (20.0 GiB) free of 25769803776", "1073741824 bytes (1.0 GiB) of headroom",
		"17179869184 bytes (16.0 GiB) that other caches (1)", "leaves 3221225472 bytes (3.0 GiB)", "--size", "stocached gc", "remount")
	b.promised.bytes = 30 * g // more than the size
	want(t, b.check(), ErrMemory, "leaves 0 bytes")
	b.tmpfs, b.need = false, 31*g // a memfd: 32 - 1 of floor
	if err := b.check(); err != nil {
		t.Error(err)
	}
	b.need++
	want(t, b.check(), ErrMemory, "the machine has 34359738368 bytes (32.0 GiB) available of 68719476736",
		"floor of 1073741824", "leaves 33285996544", "--size")
	if small := (&budget{size: 64 << 20}).headroom(); small != 64<<20/10 {
		t.Errorf("headroom of a container's 64 MiB: %d", small)
	}
}

// Ensure that one check grants a sixteenth of the memory above the floor, in whole pages and at
// most 64 MiB, and that at the floor it is an error with the numbers.
func TestGrant(t *testing.T) {
	page := uint64(os.Getpagesize())
	at := func(above uint64) kernel {
		return files(t, map[string]string{"proc/meminfo": fmt.Sprintf("MemTotal: 16777216 kB\nMemAvailable: %d kB\n", (1<<30+above)>>10)})
	}
	for above, want := range map[uint64]uint64{64 << 30: 64 << 20, 1 << 30: 64 << 20, 1<<30 - 16*page: 64<<20 - page,
		16 * page: page, 17 * page: page} {
		if n, err := at(above).grant(); n != want || err != nil {
			t.Errorf("%d above the floor: %d, %v; want %d", above, n, err, want)
		}
	}
	for _, above := range []uint64{0, 15 * page} {
		_, err := at(above).grant()
		want(t, err, ErrFull, "MemAvailable", fmt.Sprintf("%d bytes (1.0 GiB) available of 17179869184", 1<<30+above),
			"floor of 1073741824", fmt.Sprintf("leaves %d bytes", above))
	}
}

// Ensure that in a real cgroup of 512 MiB a cache that does not fit is refused before any
// allocation, and that a fill that draws from its allowance gets FULL and is not killed.
func TestRealCgroup(t *testing.T) {
	g := memoryGroup(t, 512<<20)
	runInGroup(t, g, "in-cgroup", g.LimitFile)
}

// memoryGroup makes a cgroup of the memory controller, until the test ends.
func memoryGroup(t *testing.T, limit uint64) *cgroup.Group {
	t.Helper()
	g, err := cgroup.New(limit)
	if errors.Is(err, cgroup.ErrNone) {
		privileged(t, "make a cgroup with a memory limit", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// runInGroup is runChild in a cgroup.
func runInGroup(t *testing.T, g *cgroup.Group, name string, args ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := g.Command(self, args...)
	cmd.Env = append(os.Environ(), "STOCACHED_TEST_CHILD="+name)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("child %s: %v\n%s", name, err, out)
	}
}

func childInCgroup(args []string) error {
	_, err := Create(Options{Samples: 1000, SampleBytes: 1 << 20})
	if err := expect(err, ErrMemory, "cgroup", args[0], "536870912 bytes (512.0 MiB)", "floor of 134217728"); err != nil {
		return err
	}
	s, err := Create(Options{Samples: 300, SampleBytes: 1 << 20})
	if err != nil {
		return err
	}
	// Another allocation after the check. The rest is not enough for all slots.
	other, err := unix.MemfdCreate("stoctest", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.Fallocate(other, 0, 0, 150<<20); err != nil {
		return err
	}
	sample, filled, allowance := make([]byte, 1<<20), uint64(0), s.NewAllowance(0)
	for slot := range s.Slots {
		var drawn uint64
		if drawn, err = allowance.Draw(s.SlotStride); err != nil {
			break
		}
		if _, err := s.WritePayload(sample, slot*s.SlotStride); err != nil {
			return err
		}
		allowance.Settle(drawn)
		filled += uint64(len(sample))
	}
	if err := expect(err, ErrFull, "cgroup", "floor of 134217728"); err != nil {
		return fmt.Errorf("after %d bytes: %w", filled, err)
	}
	if filled == 0 {
		return errors.New("nothing could be filled")
	}
	if !strings.Contains(err.Error(), "not cached") {
		return err
	}
	return s.Close()
}
