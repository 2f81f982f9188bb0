package cli

import (
	"cmp"
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
	leastCaches = 64 << 20 // memory for caches; a container's /dev/shm has no more unless it asks for more
	leastFiles  = 4096     // as many clients, and files that a source of a folder keeps open
)

// machine is what doctor looks at on this machine.
type machine struct {
	kernel      string       // its release
	huge        string       // which processes may have huge pages; "": the kernel does not say
	memory      memory.Space // what the tightest limit leaves, of the machine or a cgroup
	tmpfs       memory.Space // what the tmpfs of caches leaves
	tmpfsError  error
	files       uint64 // files that a process may have open
	helper      string // path of stocached-decode; "": there is none
	needsHelper bool   // a cache of the configuration decodes pictures
}

// thisMachine looks at the machine. The kernel's files are below root.
func thisMachine(root string) (m machine, err error) {
	release, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease")) // a kernel without the file does not say
	m.kernel = strings.TrimSpace(string(release))
	m.huge = memory.HugePages(root)
	if m.memory, err = memory.Usable(0); err != nil {
		return m, err
	}
	room, err := shm.RoomIn("")
	m.tmpfs, m.tmpfsError = room.Tmpfs, err
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
	leftOf := func(s memory.Space) string {
		return fmt.Sprintf("%v of %v left for caches", table.Bytes(s.Left), table.Bytes(s.Total))
	}
	add("stocached", fmt.Sprintf("%s, layout %d", version, shm.LayoutVersion), false, "")
	var major, minor int
	_, err := fmt.Sscanf(m.kernel, "%d.%d", &major, &minor)
	add("kernel", "Linux "+m.kernel, err == nil && (major < 6 || major == 6 && minor < 1),
		"caches get huge pages from Linux 6.1 on: run that or a later one")
	add("huge pages", m.huge, m.huge == "never", "caches have small pages, which are slower to read and to fill: "+
		"write madvise to /sys/kernel/mm/transparent_hugepage/enabled")
	add("memory", leftOf(m.memory), m.memory.Left < leastCaches, fmt.Sprintf("less than %v is left: end programs, remove "+
		"caches (stocached ls, gc, rm), or raise the limit of the cgroup", table.Bytes(leastCaches)))
	switch {
	case m.tmpfsError != nil:
		add("/dev/shm", "no caches can be made", true, m.tmpfsError.Error())
	default:
		add("/dev/shm", leftOf(m.tmpfs), m.tmpfs.Left < leastCaches, fmt.Sprintf("less than %v is left: remove caches "+
			"(stocached ls, gc, rm), or enlarge it: mount -o remount,size=, in a container --shm-size=, in a pod an emptyDir of "+
			"medium Memory", table.Bytes(leastCaches)))
	}
	add("descriptors", fmt.Sprintf("%v files open at a time in a process", table.Count(m.files)), m.files < leastFiles,
		fmt.Sprintf("less than %v: raise it (ulimit -n, LimitNOFILE= in a unit file)", table.Count(leastFiles)))
	add("stocached-decode", cmp.Or(m.helper, "none"), m.helper == "" && m.needsHelper, "a cache decodes pictures, and no server does that "+
		"without it: install it beside this program, or set store: encoded")
	return all
}
