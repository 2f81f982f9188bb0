package server_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// as runs a function as another user, on its own thread, which ends afterwards. So the process
// keeps its user.
func as(t *testing.T, uid, gid int, groups []uint32, do func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can change the user: run the tests as root to check the permissions")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		list := make([]uint32, max(len(groups), 1))
		copy(list, groups)
		_, _, e1 := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)),
			uintptr(unsafe.Pointer(unsafe.SliceData(list))), 0)
		_, _, e2 := syscall.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid))
		_, _, e3 := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		if e1|e2|e3 != 0 {
			t.Error(e1, e2, e3)
			return
		}
		do()
	}()
	<-done
}

// get requests a path over a socket that the calling thread has connected.
func get(socket net.Conn, path string) string {
	socket.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := socket.Write([]byte("GET " + path + " HTTP/1.0\r\n\r\n")); err != nil {
		return err.Error()
	}
	answer := make([]byte, 100)
	n, err := socket.Read(answer)
	if err != nil {
		return err.Error()
	}
	return string(answer[:n])
}

// Ensure that members of the operators' group are accepted by any of their groups, that others are
// not, and that the data socket still accepts only the server's own user.
func TestAdminGroup(t *testing.T) {
	const group, nobody = 54321, 65534
	dir := t.TempDir()
	for _, above := range []string{filepath.Dir(dir), dir} { // so that others can reach the folder of the sockets
		fatal.If(t, os.Chmod(above, 0o755))
	}
	m := newMemory(10, 100)
	o := options(t, m, server.CacheOptions{})
	o.SocketsDir = filepath.Join(dir, "sockets")
	o.Admin.Group = strconv.Itoa(group)
	if os.Getuid() == 0 {
		s, _ := start(t, o)
		for name, want := range map[string]os.FileMode{"": 0o710, control.AdminSocket: 0o660,
			control.DataSocket: 0o600} {
			st, err := os.Stat(filepath.Join(s.Dir(), name))
			if err != nil || st.Mode().Perm() != want {
				t.Errorf("%q: %v, %v, want %v", name, st.Mode(), err, want)
			}
			if gid := int(st.Sys().(*syscall.Stat_t).Gid); (gid == group) != (name != control.DataSocket) {
				t.Errorf("%q has group %d", name, gid)
			}
		}
		// The mode excludes other users; without it, the server does.
		for _, mode := range []os.FileMode{0o660, 0o666} {
			if err := errors.Join(os.Chmod(filepath.Join(s.Dir(), control.AdminSocket), mode),
				os.Chmod(filepath.Join(s.Dir(), control.DataSocket), mode&0o666)); err != nil {
				t.Fatal(err)
			}
			if mode == 0o666 {
				fatal.If(t, os.Chmod(s.Dir(), 0o711))
			}
			for name, c := range map[string]struct {
				gid    int
				groups []uint32
				in     bool
			}{
				"first group":           {group, nil, true},
				"a supplementary group": {nobody, []uint32{7, group, 9}, true},
				"very many groups":      {nobody, append(many(500), group), true},
				"another group":         {nobody, []uint32{7, 9}, false},
				"no group":              {nobody, nil, false},
			} {
				as(t, nobody, c.gid, c.groups, func() {
					socket, err := net.Dial("unix", filepath.Join(s.Dir(), control.AdminSocket))
					got := ""
					if err == nil {
						got = get(socket, "/healthz")
						socket.Close()
					}
					if in := strings.HasPrefix(got, "HTTP/1.0 200 OK"); in != c.in {
						t.Errorf("mode %v, %s: %v, %q", mode, name, err, got)
					}
					if !c.in && (err == nil) != (mode == 0o666) {
						t.Errorf("mode %v, %s: %v", mode, name, err)
					}
					if mode != 0o666 {
						return
					}
					data, err := net.Dial("unix", filepath.Join(s.Dir(), control.DataSocket))
					if err != nil {
						t.Error(err)
						return
					}
					defer data.Close()
					data.SetDeadline(time.Now().Add(10 * time.Second))
					answer := make([]byte, 200)
					if n, err := data.Read(answer); err != nil ||
						!strings.Contains(string(answer[:n]), "you are 65534") {
						t.Errorf("a client of another user: %q, %v", answer[:n], err)
					}
				})
			}
		}
		if code, _ := ask(t, s, "/healthz"); code != 200 {
			t.Error("the server's own user", code)
		}
	}
	o.Admin.Group, o.SocketsDir = "there-is-no-such-group", t.TempDir()
	if _, err := server.Check(context.Background(), o); !errors.Is(err, shm.ErrInvalid) ||
		!strings.Contains(err.Error(), "admin.group") {
		t.Error(err)
	}
	if _, err := server.New(context.Background(), o); !errors.Is(err, shm.ErrInvalid) ||
		!strings.Contains(err.Error(), "admin.group") {
		t.Error(err)
	}
	as(t, 0, 0, nil, func() {}) // reports, if it cannot change the user, that all this was skipped
}

func many(n uint32) (groups []uint32) {
	for k := range n {
		groups = append(groups, 100000+k)
	}
	return groups
}

// Ensure that profiles are answered if configured, and only then.
func TestProfiles(t *testing.T) {
	for _, want := range []bool{false, true} {
		o := options(t, newMemory(10, 100), server.CacheOptions{})
		o.Admin.Pprof = want
		s, stop := start(t, o)
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1",
			"/debug/pprof/profile?seconds=1", "/debug/pprof/cmdline"} {
			code, body := ask(t, s, path)
			if (code == 200) != want || len(body) == 0 {
				t.Errorf("%s: %d %.100s", path, code, body)
			}
		}
		if _, body := ask(t, s, "/nothing"); strings.Contains(body, "pprof") != want {
			t.Error(body)
		}
		stop()
	}
}
