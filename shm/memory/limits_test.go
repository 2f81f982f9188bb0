package memory

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/sys/unix"
)

// files makes a machine of text files.
func files(t *testing.T, content map[string]string) kernel {
	t.Helper()
	root := t.TempDir()
	for name, text := range content {
		path := filepath.Join(root, name)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
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
	machine := limit{"the machine (MemAvailable)", 16 * g, 8 * g, Level{}}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Limits
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
		}, Limits{{"cgroup /user.slice/job (memory.max)", 4 * g, 2 * g, Level{2, 2}}, {"cgroup / (memory.max)",
			8 * g, 0, Level{2, 0}}}},
		{"v2, high below max", map[string]string{
			"proc/self/cgroup":               "0::/j\n",
			"proc/self/mountinfo":            mountV2,
			"sys/fs/cgroup/j/memory.max":     "4294967296\n",
			"sys/fs/cgroup/j/memory.high":    "2147483648\n",
			"sys/fs/cgroup/j/memory.current": "1073741824\n",
			"sys/fs/cgroup/j/memory.stat":    "active_file 0\n",
		}, Limits{{"cgroup /j (memory.high)", 2 * g, g, Level{2, 1}}}},
		{"v2 in a container: its own group is the root of what it sees", map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"proc/self/mountinfo":          mountV2,
			"sys/fs/cgroup/memory.max":     "1073741824\n",
			"sys/fs/cgroup/memory.current": "0\n",
		}, Limits{{"cgroup / (memory.max)", g, g, Level{2, 0}}}},
		{"v2, outside of the namespace's root", map[string]string{
			"proc/self/cgroup":                   "0::/../../other\n",
			"sys/fs/cgroup/other/memory.max":     "7\n", // another cgroup with that name
			"sys/fs/cgroup/other/memory.current": "7\n",
			"proc/self/mountinfo":                mountV2,
			"sys/fs/cgroup/memory.max":           "1073741824\n",
			"sys/fs/cgroup/memory.current":       "1\n",
		}, Limits{{"cgroup / (memory.max)", g, g - 1, Level{2, 0}}}},
		{"v1, hybrid, with v1's number for no limit at the root", map[string]string{
			"proc/self/cgroup":    "9:name=systemd:/\n5:cpu,cpuacct:/jobs\n4:memory:/jobs/a\n0::/\n",
			"proc/self/mountinfo": mountV1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes": "2147483648\n",
			"sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes": "1610612736\n",
			"sys/fs/cgroup/memory/jobs/a/memory.stat":           "cache 1\nactive_file 1\ntotal_active_file 268435456\ntotal_inactive_file 268435456\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":        "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":        "5\n",
		}, Limits{{"cgroup /jobs/a (memory.limit_in_bytes)", 2 * g, g, Level{1, 2}}}},
		{"v1 in a container whose /proc shows the host's paths", map[string]string{
			"proc/self/cgroup":    "4:memory:/docker/abc/sub\n",
			"proc/self/mountinfo": "36 31 0:33 /docker/abc /sys/fs/cgroup/memory\\040x rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory x/sub/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory x/sub/memory.usage_in_bytes": "73741824\n",
		}, Limits{{"cgroup /sub (memory.limit_in_bytes)", g, 1000000000, Level{1, 1}}}},
		{"a mount of another container's group", map[string]string{
			"proc/self/cgroup": "4:memory:/docker/abcd\n",
			"sys/fs/cgroup/memory/d/memory.limit_in_bytes": "7\n", // a name with the same beginning
			"sys/fs/cgroup/memory/d/memory.usage_in_bytes": "7\n",
			"proc/self/mountinfo":                          "36 31 0:33 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "1073741824\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":   "0\n",
		}, Limits{{"cgroup / (memory.limit_in_bytes)", g, g, Level{1, 0}}}},
	} {
		c.files["proc/meminfo"] = meminfo
		got, err := files(t, c.files).limits()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(append(Limits{machine}, c.want...)) {
			t.Errorf("%s:\n%v (%v), want\n%v", c.name, got, err, append(Limits{machine}, c.want...))
		}
	}
}

// says fails unless err names what is wrong.
func says(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%v does not say %q", err, part)
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
		_, err := files(t, broken).limits()
		says(t, err, name)
	}
	_, err := files(t, map[string]string{"proc/meminfo": "MemTotal: 5 kB\n"}).limits()
	says(t, err, "MemAvailable")
	expect.Works(files(t, base).limits())(t)
	huge := "MemTotal: 18014398509481985 kB\nMemAvailable: 18014398509481985 kB\n" // more than 2^64 bytes are no few bytes
	if space, err := files(t, map[string]string{"proc/meminfo": huge}).usable(); err != nil || space.Left < 1<<60 {
		t.Error(space, err)
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
				if _, err := files(t, broken).limits(); err != nil {
					says(t, err, name)
				}
			}
		}
	}
}

// Ensure that the floor is a sixteenth within its bounds, and that memory below it is not usable.
func TestFloor(t *testing.T) {
	for total, floor := range map[uint64]uint64{1 << 20: FloorMin, 1 << 30: FloorMin, 4 << 30: 256 << 20,
		16 << 30: 1 << 30, 1 << 40: FloorMax} {
		r := limit{total: total, available: total}
		expect.Equal(t, r.floor(), floor, "floor of %d", total)
		if r.available = floor + 5; r.usable() != 5 {
			t.Errorf("%d: usable %d", total, r.usable())
		}
		if r.available = floor - 1; r.usable() != 0 {
			t.Errorf("%d: usable %d", total, r.usable())
		}
	}
}

// Ensure that the space of a limit is what lies above its floor, with the numbers.
func TestSpace(t *testing.T) {
	for _, above := range []uint64{0, 4096, 5 << 30} {
		k := files(t, map[string]string{
			"proc/meminfo": fmt.Sprintf("MemTotal: 16777216 kB\nMemAvailable: %d kB\n", (1<<30+above)>>10)})
		space, err := k.usable()
		if err != nil || space.Left != above || space.Total != 16<<30 {
			t.Errorf("%d above the floor: %+v, %v", above, space, err)
		}
		for _, part := range []string{"MemAvailable", fmt.Sprintf("has %d bytes (", 1<<30+above), "available of 17179869184 bytes (16.0 GiB)",
			"floor of 1073741824", fmt.Sprintf("leaves %d bytes", above)} {
			expect.Says(t, space.Text, part)
		}
	}
}

// Ensure that a tmpfs keeps its headroom and what other caches in it may still fill, with the
// numbers.
func TestTmpfs(t *testing.T) {
	const g = 1 << 30
	fs := unix.Statfs_t{Bsize: 4096, Blocks: 24 * g / 4096, Bavail: 20 * g / 4096}
	space := Tmpfs(&fs, "/dev/shm", Sum{16 * g, 1})
	if space.Left != 3*g || space.Total != 24*g { // 20 - 1 of headroom - 16
		t.Errorf("%+v", space)
	}
	for _, part := range []string{"/dev/shm has 21474836480 bytes (20.0 GiB) free of 25769803776",
		"1073741824 bytes (1.0 GiB) of headroom", "17179869184 bytes (16.0 GiB) that other caches (1)",
		"leaves 3221225472 bytes (3.0 GiB)"} {
		expect.Says(t, space.Text, part)
	}
	if space := Tmpfs(&fs, "/dev/shm", Sum{30 * g, 2}); space.Left != 0 { // more than the size
		t.Errorf("%+v", space)
	}
	if space := Tmpfs(&unix.Statfs_t{Bsize: 4096}, "/dev/shm", Sum{1, 1}); space.Left != Unlimited {
		t.Errorf("a tmpfs without a size: %+v", space)
	}
	expect.Equal(t, headroom(64<<20), 64<<20/10, "headroom of a container's 64 MiB")
}

// Ensure that one check grants a sixteenth of what is usable, at most 64 MiB.
func TestGranted(t *testing.T) {
	for usable, want := range map[uint64]uint64{64 << 30: 64 << 20, 1 << 30: 64 << 20, 1<<30 - 16: 64<<20 - 1, 15: 0} {
		expect.Equal(t, Granted(usable), want, "bytes granted of %d", usable)
	}
}

// Ensure that a grant keeps its three numbers apart.
func TestGrant(t *testing.T) {
	if g := newGrant(1<<16-1, 1<<16-1, 1<<32-2); g.left() != 1<<16-1 || g.checks() != 1<<16-1 ||
		g.group() != 1<<32-2 || g-1 != newGrant(1<<16-2, 1<<16-1, 1<<32-2) {
		t.Errorf("%#x", g)
	}
}
