package shm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/shm/memory"
)

// addNamed adds the caches in dir, and in each stocached-* directory at the top of the same tmpfs
// that this user may read. Directories of other users have mode 0700 and stay unknown. Unless exact, each file of this
// user there counts as a cache, so that none is opened: never too little.
func addNamed(p memory.Promises, dir string, exact bool) {
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
			path := filepath.Join(d, e.Name())
			var st unix.Stat_t
			switch {
			case !e.Type().IsRegular():
			case exact:
				addCache(p, path, memory.Inode{})
			case unix.Lstat(path, &st) == nil && st.Uid == uint32(os.Geteuid()):
				addFile(p, inodeOf(&st), uint64(st.Size), uint64(st.Blocks)*512)
			}
		}
	}
}

// addCache adds the cache at a path if it is a valid cache of this user. Unless want is zero, it must be
// that file.
func addCache(p memory.Promises, path string, want memory.Inode) {
	l, err := lookAt(path)
	if err == nil && l.Err == nil && (want == memory.Inode{} || want == l.id) {
		addFile(p, l.id, l.SegmentBytes, l.Allocated)
	}
}

func addFile(p memory.Promises, id memory.Inode, size, allocated uint64) {
	p[id] = memory.NewPromise(size - min(size, allocated))
}

// addAttached adds the caches that processes of this user are clients of, named or not, and notes
// the cgroups of these processes. It reads the files of each such process once. Clients in other
// pid namespaces, and those that this process may not inspect, do not count.
func addAttached(p memory.Promises) {
	own := memory.OwnCgroups()
	for pid, ids := range clients() {
		addOpen(p, pid, ids)
		if slices.ContainsFunc(ids, func(id memory.Inode) bool { return p[id] != nil }) {
			p.AddClient(pid, ids, own)
		}
	}
}

// addOpen adds those of the given caches that are still missing. It finds them through the file
// descriptors of a process that is their client.
func addOpen(p memory.Promises, pid int, ids []memory.Inode) {
	missing := map[memory.Inode]bool{}
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
		if id := inodeOf(&st); missing[id] {
			addCache(p, path, id)
			delete(missing, id)
		}
	}
}

// inodeOf returns which file a stat is of.
func inodeOf(st *unix.Stat_t) memory.Inode { return memory.Inode{Dev: uint64(st.Dev), Ino: st.Ino} }

// clients returns the caches of each client process. The kernel's list of locks names the
// processes (docs/spec/segment.md, Locks on the file); without it none is known.
func clients() map[int][]memory.Inode {
	list, _ := os.ReadFile("/proc/locks")
	return clientsIn(string(list))
}

// clientsIn is clients of a list of locks.
func clientsIn(list string) map[int][]memory.Inode {
	type holder struct {
		pid int
		id  memory.Inode
	}
	used, holders := map[memory.Inode]bool{}, map[holder]bool{}
	// 1: OFDLCK ADVISORY READ -1 00:01:82147 4096 4096, or 2: FLOCK ADVISORY READ 1234 00:01:82147
	// 0 EOF
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if len(f) != 8 || f[3] != "READ" || (f[1] != "OFDLCK" && f[1] != "FLOCK") {
			continue
		}
		var major, minor uint32
		var id memory.Inode
		if n, _ := fmt.Sscanf(f[5], "%x:%x:%d", &major, &minor, &id.Ino); n != 3 {
			continue
		}
		id.Dev = unix.Mkdev(major, minor)
		if f[1] == "OFDLCK" {
			used[id] = used[id] || (f[6] == strconv.Itoa(UsersLockByte) && f[7] == f[6])
		} else if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 { // 0: the process is in another pid namespace
			holders[holder{pid, id}] = true
		}
	}
	clients := map[int][]memory.Inode{}
	for h := range holders {
		if used[h.id] { // otherwise a lock of another program
			clients[h.pid] = append(clients[h.pid], h.id)
		}
	}
	return clients
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
