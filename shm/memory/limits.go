package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// limit is one limit on memory and the bytes that are free below it.
type limit struct {
	what      string // name in messages: "the machine (MemAvailable)", "cgroup /a/b (memory.max)"
	total     uint64
	available uint64
	level     Level // level of the cgroup, or the machine
}

// Level is a cgroup on the path from the top to the cgroup of this process. The zero value is the
// machine.
type Level struct {
	version int // version of cgroups, 1 or 2
	depth   int // 0 for the topmost visible cgroup
}

// floor is the memory that fills leave free: a sixteenth of the limit, at least 128 MiB and at most
// 1 GiB. It covers other memory of the processes, which grows between two checks, and caches that
// do not see each other's grants. Above a cgroup's limit the kernel does not refuse a write: it
// kills the process.
func (r *limit) floor() uint64 { return min(max(r.total/FloorDivisor, FloorMin), FloorMax) }

// usable returns how much may be filled: available less floor.
func (r *limit) usable() uint64 {
	if r.available < r.floor() {
		return 0
	}
	return r.available - r.floor()
}

// space returns how much may be filled, with the numbers.
func (r *limit) space() Space {
	return Space{r.usable(), r.total, fmt.Sprintf("%s has %s available of %s, less a floor of %s, leaves %s",
		r.what, Size(r.available), Size(r.total), Size(r.floor()), Size(r.usable()))}
}

// kernel reads the kernel's files about memory. root is "/"; tests put files of their own
// elsewhere.
type kernel struct{ root string }

// Limits are the limits that this process is under: the machine, and each cgroup (v1 and v2) from
// its own up to the topmost visible one.
type Limits []limit

// ReadLimits asks the kernel. File cache that the kernel can drop counts as available; pages of
// tmpfs do not. A limit whose file is missing or forbidden does not count; a file that cannot be
// parsed is an error.
func ReadLimits() (Limits, error) { return kernel{"/"}.limits() }

func (k kernel) limits() (Limits, error) {
	machine, err := k.machine()
	if err != nil {
		return nil, err
	}
	cgroups, err := k.cgroups()
	return append(Limits{machine}, cgroups...), err
}

func (k kernel) machine() (limit, error) {
	values, err := k.table("/proc/meminfo", "MemTotal:", "MemAvailable:")
	if err != nil {
		return limit{}, err
	}
	total, ok := values["MemTotal:"]
	available, also := values["MemAvailable:"]
	if !ok || !also {
		return limit{}, errors.New("/proc/meminfo has no MemTotal or MemAvailable (Linux 3.14 and /proc are needed)")
	}
	return limit{what: "the machine (MemAvailable)", total: min(total, Unlimited>>10) << 10,
		available: min(available, Unlimited>>10) << 10}, nil
}

// hierarchy says where this process finds the memory limits of one cgroup version.
type hierarchy struct {
	mount   string // mount point
	root    string // the cgroup that is mounted there
	group   string // cgroup of this process, below the mount point; "/" for the topmost visible one
	version int
}

// level returns the level of a cgroup on the path to that of this process.
func (h *hierarchy) level(group string) Level { return Level{h.version, len(elements(group))} }

// elements splits the path of a cgroup.
func elements(group string) []string {
	return strings.FieldsFunc(group, func(r rune) bool { return r == '/' })
}

func (k kernel) cgroups() ([]limit, error) {
	hierarchies, err := k.hierarchies()
	if err != nil {
		return nil, err
	}
	var limits []limit
	for _, h := range hierarchies {
		for group := h.group; ; group = path.Dir(group) {
			r, err := k.cgroup(h, group)
			if err != nil {
				return nil, err
			}
			if r != nil {
				limits = append(limits, *r)
			}
			if group == "/" {
				break
			}
		}
	}
	return limits, nil
}

// hierarchies joins /proc/self/cgroup (the cgroup of this process) with /proc/self/mountinfo (the
// mount point, and the cgroup that is mounted there).
func (k kernel) hierarchies() ([]hierarchy, error) {
	groups, err := k.groups("self")
	if err != nil {
		return nil, err
	}
	mounts, err := k.lines("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	for _, line := range mounts { // 36 35 98:0 /root /mount options optional... - type source superoptions
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		root, mount, version := unescape(left[3]), unescape(left[4]), 0
		switch {
		case right[0] == "cgroup2":
			version = 2
		case right[0] == "cgroup" && contains(right[2], "memory"):
			version = 1
		}
		if version != 0 && groups[version] != "" {
			found = append(found, hierarchy{mount, root, below(groups[version], root), version})
		}
	}
	return found, nil
}

// groups returns the cgroup that the kernel charges the memory of a process to, by version of
// cgroups; "": none.
func (k kernel) groups(pid string) (groups [3]string, err error) {
	lines, err := k.lines(filepath.Join("/proc", pid, "cgroup"))
	for _, line := range lines { // 4:memory:/path or 0::/path
		part := strings.SplitN(line, ":", 3)
		switch {
		case len(part) != 3:
		case part[0] == "0" && part[1] == "":
			groups[2] = part[2]
		case contains(part[1], "memory"):
			groups[1] = part[2]
		}
	}
	return groups, err
}

// below returns a cgroup's path below the mounted cgroup. It returns "/" for a path outside, as in
// a container whose /proc shows the host's paths.
func below(group, root string) string {
	if root != "/" {
		rest, ok := strings.CutPrefix(group, root)
		if !ok || rest != "" && rest[0] != '/' {
			return "/"
		}
		group = rest
	}
	if strings.Contains(group, "..") { // above the root of the cgroup namespace
		return "/"
	}
	return path.Join("/", group)
}

// cgroup reads the limits of one level. It returns nil if that level has no limit.
func (k kernel) cgroup(h hierarchy, group string) (*limit, error) {
	limits, current := []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes"
	reclaimable := []string{"total_active_file", "total_inactive_file"}
	if h.version == 2 {
		// memory.high is a limit too: above it the kernel slows a process down without bound.
		limits, current = []string{"memory.max", "memory.high"}, "memory.current"
		reclaimable = []string{"active_file", "inactive_file"}
	}
	dir := filepath.Join(h.mount, group)
	r := limit{total: Unlimited, level: h.level(group)}
	for _, name := range limits {
		most, err := k.number(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if most < r.total {
			r.total, r.what = most, fmt.Sprintf("cgroup %s (%s)", group, name)
		}
	}
	if r.total >= 1<<62 { // v1 writes "no limit" as the largest multiple of a page
		return nil, nil
	}
	used, err := k.number(filepath.Join(dir, current))
	if err != nil {
		return nil, err
	}
	if used == Unlimited {
		return nil, nil
	}
	stat, err := k.table(filepath.Join(dir, "memory.stat"), reclaimable...)
	if err != nil {
		return nil, err
	}
	for _, name := range reclaimable {
		used -= min(used, stat[name])
	}
	r.available = r.total - min(r.total, used)
	return &r, nil
}

// number reads a file of one number. It returns Unlimited for "max" and for a missing file.
func (k kernel) number(name string) (uint64, error) {
	lines, err := k.lines(name)
	if err != nil || lines == nil {
		return Unlimited, err
	}
	if len(lines) == 1 && lines[0] == "max" {
		return Unlimited, nil
	}
	if len(lines) == 1 {
		if n, err := strconv.ParseUint(lines[0], 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s says %q, not a number", name, strings.Join(lines, "\n"))
}

// table reads the named numbers from a file of lines "name number".
func (k kernel) table(name string, keys ...string) (map[string]uint64, error) {
	lines, err := k.lines(name)
	if err != nil {
		return nil, err
	}
	values := map[string]uint64{}
	for _, line := range lines {
		field := strings.Fields(line)
		for _, key := range keys {
			if len(field) < 2 || field[0] != key {
				continue
			}
			n, err := strconv.ParseUint(field[1], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s says %q, not a number", name, line)
			}
			values[key] = n
		}
	}
	return values, nil
}

// lines reads a file. It returns nil if the file is missing or forbidden.
func (k kernel) lines(name string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(k.root, name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), nil
}

// contains says whether a comma-separated list has an item.
func contains(list, item string) bool { return slices.Contains(strings.Split(list, ","), item) }

// unescape decodes mountinfo's escapes, such as \040 for a space.
func unescape(s string) string {
	for at := 0; ; at++ {
		k := strings.IndexByte(s[at:], '\\')
		if k < 0 {
			return s
		}
		if at += k; at+4 > len(s) {
			return s
		}
		if n, err := strconv.ParseUint(s[at+1:at+4], 8, 8); err == nil {
			s = s[:at] + string([]byte{byte(n)}) + s[at+4:]
		}
	}
}
