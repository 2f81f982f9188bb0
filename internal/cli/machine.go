package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/memory"
	imagesource "github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/tier"

	"golang.org/x/sys/unix"
)

const (
	leastCaches = 64 << 20 // of memory for caches; a container's /dev/shm has no more unless it asks for more
	leastFiles  = 4096     // as many clients, and files that a source of a folder keeps open
)

// machine is what doctor looks at on this machine.
type machine struct {
	kernel      string // its release
	huge        string // which processes may have huge pages; "": the kernel does not say
	memory      uint64 // bytes that caches may still fill
	memoryOf    uint64 // the tightest limit: of the machine, or of a cgroup
	tmpfs       uint64 // bytes of the tmpfs that caches may still fill
	tmpfsOf     uint64 // its size
	tmpfsError  error
	files       uint64 // that a process may have open
	helper      string // path of stocached-decode; "": there is none
	needsHelper bool   // a cache of the configuration decodes pictures
}

// thisMachine looks at the machine. The kernel's files are below root.
func thisMachine(root string) (m machine, err error) {
	release, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease")) // a kernel without the file does not say
	m.kernel = strings.TrimSpace(string(release))
	m.huge = memory.HugePages(root)
	if m.memory, m.memoryOf, err = memory.Left(); err != nil {
		return m, err
	}
	var fs unix.Statfs_t
	room, err := shm.RoomIn("")
	if err == nil {
		err = unix.Statfs(filepath.Dir(shm.DefaultDir()), &fs)
	}
	m.tmpfs, m.tmpfsOf, m.tmpfsError = room.Tmpfs.Left, fs.Blocks*uint64(fs.Bsize), err
	var limit unix.Rlimit
	if err = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return m, err
	}
	m.files = limit.Cur
	m.helper, err = imagesource.Helper()
	return m, err
}

// examine says of each thing what it is, and what to change.
func (m machine) examine() (all []server.Examined) {
	add := func(what, answer string, wrong bool, change string) {
		if !wrong {
			change = ""
		}
		all = append(all, server.Examined{Finding: tier.Finding{Where: "this machine", What: what, Answer: answer, Change: change}})
	}
	leftOf := func(left, of uint64) string {
		return fmt.Sprintf("%v of %v left for caches", table.Bytes(left), table.Bytes(of))
	}
	add("stocached", fmt.Sprintf("%s, layout %d", version, shm.LayoutVersion), false, "")
	var major, minor int
	_, err := fmt.Sscanf(m.kernel, "%d.%d", &major, &minor)
	add("kernel", "Linux "+m.kernel, err == nil && (major < 6 || major == 6 && minor < 1),
		"caches get huge pages from Linux 6.1 on: run that or a later one")
	add("huge pages", m.huge, m.huge == "never", "caches have small pages, which are slower to read and to fill: "+
		"write madvise to /sys/kernel/mm/transparent_hugepage/enabled")
	add("memory", leftOf(m.memory, m.memoryOf), m.memory < leastCaches, fmt.Sprintf("less than %v is left: end programs, remove "+
		"caches (stocached ls, gc, rm), or raise the limit of the cgroup", table.Bytes(leastCaches)))
	switch {
	case m.tmpfsError != nil:
		add("/dev/shm", "no caches can be made", true, m.tmpfsError.Error())
	default:
		add("/dev/shm", leftOf(m.tmpfs, m.tmpfsOf), m.tmpfs < leastCaches, fmt.Sprintf("less than %v is left: remove caches "+
			"(stocached ls, gc, rm), or enlarge it: mount -o remount,size=, in a container --shm-size=, in a pod an emptyDir of "+
			"medium Memory", table.Bytes(leastCaches)))
	}
	add("descriptors", fmt.Sprintf("%v files open at a time in a process", table.Count(m.files)), m.files < leastFiles,
		fmt.Sprintf("less than %v: raise it (ulimit -n, LimitNOFILE= in a unit file)", table.Count(leastFiles)))
	helper := m.helper
	if helper == "" {
		helper = "none: Go's slower decoders"
	}
	add("stocached-decode", helper, m.helper == "" && m.needsHelper, "a cache decodes pictures, which takes four times as long "+
		"without it: install it beside this program")
	return all
}
