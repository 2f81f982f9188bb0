package shm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// promises holds caches of this user, by file.
type promises map[inode]*promise

// inode identifies a file under any name.
type inode struct{ dev, ino uint64 }

// promise is the number of bytes that one cache may still fill.
type promise struct {
	bytes uint64
	// shared is, for each version of cgroups, the largest depth of a level that a client of the
	// cache shares with this process; -1: no client shares one.
	shared [3]int
}

// sum adds the promises that count for a limit. For the machine all caches count; for a cgroup
// those with a client in it. Full caches do not count.
func (p promises) sum(of level) (s sum) {
	for _, one := range p {
		if one.bytes > 0 && (of.version == 0 || one.shared[of.version] >= of.depth) {
			s = s.plus(sum{one.bytes, 1})
		}
	}
	return s
}

// tightest returns the space of the limit that leaves the least after the promises of other caches.
func tightest(limits []memoryLimit, promised func(level) sum) Space {
	least := Space{Left: unlimited}
	for _, r := range limits {
		s := r.space()
		if p := promised(r.level); p.caches > 0 {
			s.Left -= min(s.Left, p.bytes)
			s.Text += fmt.Sprintf(", less %s that other caches (%d) have yet to fill, leaves %s", size(p.bytes),
				p.caches, size(s.Left))
		}
		if least.Text == "" || s.Left < least.Left {
			least = s
		}
	}
	return least
}

// addNamed adds the caches in dir, and in each stocached-* directory at the top of the same tmpfs
// that this user may read. Directories of other users have mode 0700 and stay unknown.
func (p promises) addNamed(dir string) {
	dirs, _ := filepath.Glob(filepath.Join(mountTop(dir), filepath.Base(dirPrefix)+"*"))
	dirs = slices.DeleteFunc(dirs, func(d string) bool { // any user may put a symbolic link there
		info, err := os.Lstat(d)
		return err != nil || !info.IsDir()
	})
	if !slices.Contains(dirs, dir) {
		dirs = append(dirs, dir)
	}
	for _, d := range dirs {
		entries, _ := os.ReadDir(d)
		for _, e := range entries {
			if e.Type().IsRegular() {
				p.add(filepath.Join(d, e.Name()), inode{})
			}
		}
	}
}

// add adds the cache at a path if it is a valid cache of this user. Unless want is zero, it must be
// that file.
func (p promises) add(path string, want inode) {
	fd, _, err := openFile(path, true)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	l := Listed{Path: path}
	l.inspect(fd)
	if l.Err != nil || unix.Fstat(fd, &st) != nil {
		return
	}
	if id := (inode{uint64(st.Dev), st.Ino}); want == (inode{}) || want == id {
		p[id] = &promise{l.SegmentBytes - min(l.SegmentBytes, l.Allocated), [3]int{-1, -1, -1}}
	}
}

// addAttached adds the caches that processes of this user are clients of, named or not, and notes
// the cgroups of these processes. It reads the files of each such process once. Clients in other
// pid namespaces, and those that this process may not inspect, do not count.
func (p promises) addAttached(k kernel) {
	clients, err := k.clients()
	if err != nil {
		return
	}
	hierarchies, _ := k.hierarchies()
	for pid, ids := range clients {
		p.addOpen(pid, ids)
		if !slices.ContainsFunc(ids, func(id inode) bool { return p[id] != nil }) {
			continue
		}
		shared := k.shared(pid, hierarchies)
		for _, id := range ids {
			if one := p[id]; one != nil {
				one.raise(shared)
			}
		}
	}
}

// addOpen adds those of the given caches that are still missing. It finds them through the file
// descriptors of a process that is their client.
func (p promises) addOpen(pid int, ids []inode) {
	missing := map[inode]bool{}
	for _, id := range ids {
		if p[id] == nil {
			missing[id] = true
		}
	}
	if len(missing) == 0 {
		return
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir) // another user's process, or it has ended
	for _, e := range entries {
		if len(missing) == 0 {
			return
		}
		var st unix.Stat_t
		path := filepath.Join(dir, e.Name())
		if unix.Stat(path, &st) != nil {
			continue
		}
		if id := (inode{uint64(st.Dev), st.Ino}); missing[id] {
			p.add(path, id)
			delete(missing, id)
		}
	}
}

// clients returns the caches of each client process. The kernel's list of locks names the
// processes (docs/spec/segment.md, Locks on the file).
func (k kernel) clients() (map[int][]inode, error) {
	lines, err := k.lines("/proc/locks")
	if err != nil {
		return nil, err
	}
	type holder struct {
		pid int
		id  inode
	}
	used, holders := map[inode]bool{}, map[holder]bool{}
	// 1: OFDLCK ADVISORY READ -1 00:01:82147 4096 4096, or 2: FLOCK ADVISORY READ 1234 00:01:82147
	// 0 EOF
	for _, line := range lines {
		f := strings.Fields(line)
		if len(f) != 8 || f[3] != "READ" || (f[1] != "OFDLCK" && f[1] != "FLOCK") {
			continue
		}
		var major, minor uint32
		var id inode
		if n, _ := fmt.Sscanf(f[5], "%x:%x:%d", &major, &minor, &id.ino); n != 3 {
			continue
		}
		id.dev = unix.Mkdev(major, minor)
		if f[1] == "OFDLCK" {
			used[id] = used[id] || (f[6] == strconv.Itoa(UsersLockByte) && f[7] == f[6])
		} else if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 { // 0: the process is in another pid namespace
			holders[holder{pid, id}] = true
		}
	}
	clients := map[int][]inode{}
	for h := range holders {
		if used[h.id] { // otherwise a lock of another program
			clients[h.pid] = append(clients[h.pid], h.id)
		}
	}
	return clients, nil
}

// shared returns, for each version of cgroups, the depth of the levels that a process shares with
// this one; -1: none.
func (k kernel) shared(pid int, hierarchies []hierarchy) [3]int {
	shared := [3]int{-1, -1, -1}
	groups, _ := k.groups(strconv.Itoa(pid))
	for _, h := range hierarchies {
		if groups[h.version] == "" {
			continue
		}
		ours, theirs, depth := elements(h.group), elements(below(groups[h.version], h.root)), 0
		for depth < min(len(ours), len(theirs)) && ours[depth] == theirs[depth] {
			depth++
		}
		shared[h.version] = max(shared[h.version], depth)
	}
	return shared
}

// raise takes one more client into account.
func (one *promise) raise(shared [3]int) {
	for version, depth := range shared {
		one.shared[version] = max(one.shared[version], depth)
	}
}

// mountTop returns the topmost directory of dir's file system.
func mountTop(dir string) string {
	var here, above unix.Stat_t
	if unix.Stat(dir, &here) != nil {
		return dir
	}
	for {
		parent := filepath.Dir(dir)
		if parent == dir || unix.Stat(parent, &above) != nil || above.Dev != here.Dev {
			return dir
		}
		dir = parent
	}
}
