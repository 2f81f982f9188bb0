package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// stay is "stay SOCKETS FROM TO": a client that fetches and checks these samples on each line of
// input, and then says "ready", until its standard input ends.
func stay(args []string) error {
	c, err := stocclient.Dial(context.Background(), "pets", stocclient.DialOptions{SocketsDir: args[0], Label: "stay"})
	if err != nil {
		return err
	}
	defer c.Close()
	var from, to int
	if _, err := fmt.Sscan(args[1]+" "+args[2], &from, &to); err != nil {
		return err
	}
	fmt.Println("ready")
	for told := bufio.NewScanner(os.Stdin); told.Scan(); {
		samples, err := c.FetchSamples(context.Background(), between(from, to))
		if err != nil {
			return err
		}
		for k, data := range samples {
			if !bytes.Equal(data, servedRecord(from+k)) {
				return fmt.Errorf("sample %d came wrong", from+k)
			}
		}
		fmt.Println("ready")
	}
	return nil
}

// knock is "knock SOCKETS": a client that connects to both sockets of a server, and reports the results.
func knock(args []string) error {
	for _, name := range []string{control.DataSocket, control.AdminSocket} {
		socket, err := net.Dial("unix", filepath.Join(args[0], name))
		fmt.Printf("%s: %v\n", name, err)
		if err == nil {
			socket.Close()
		}
	}
	return nil
}

// childOf is a child as another user. It skips the test if this user may not start one.
func childOf(t *testing.T, uid uint32, mode string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		fatal.Privileged(t, "run as another user", errors.New("not root"))
	}
	cmd := exec.Command("/proc/self/exe", args...) // the program's folder may be closed to others
	cmd.Env, cmd.Dir = []string{childVariable + "=" + mode}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// stranger runs a child as another user (strangerID), and returns its output.
func stranger(t *testing.T, mode string, args ...string) (string, error) {
	t.Helper()
	out, err := childOf(t, strangerID, mode, args...).CombinedOutput()
	return string(out), err
}

// strangerID is another user: nobody.
const strangerID = 65534

// Ensure that another user gets nothing: the folder of the sockets excludes it. TestAdminGroup (server) has what the
// server does if modes let it in.
func TestServerTurnsAwayOtherUsers(t *testing.T) {
	s := newServed(t, 100, "all")
	c := s.dial()
	wantFetch(t, c, first(10))
	out, err := stranger(t, "knock", s.sockets)
	if err != nil || strings.Count(out, "permission denied") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	for _, command := range [][]string{{"health"}, {"health", "pets"}} {
		out, err := stranger(t, "main", append(command, "--sockets", s.sockets)...)
		if failed := (*exec.ExitError)(nil); !errors.As(err, &failed) || failed.ExitCode() != exitPermission ||
			!strings.Contains(out, "permission denied; the server is another user's") {
			t.Errorf("%q: %v\n%s", command, err, out)
		}
	}
	wantFetch(t, c, first(100))
}

// descriptors counts the open descriptors of the server.
func (s *served) descriptors() int {
	s.t.Helper()
	all := fatal.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.process.Process.Pid)))(s.t)
	return len(all)
}

// descriptorOf asks the server for a cache as a client does, and returns the received descriptor.
func (s *served) descriptorOf(name string) int {
	s.t.Helper()
	socket, err := net.DialUnix("unix", nil,
		&net.UnixAddr{Name: filepath.Join(s.sockets, control.DataSocket), Net: "unix"})
	fatal.If(s.t, err)
	s.t.Cleanup(func() { socket.Close() })
	frames := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: "raw"})
	fatal.Value(socket.Write(control.AppendAttach(frames, 2, name)))(s.t)
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := socket.ReadMsgUnix(make([]byte, 1000), rights)
		fatal.If(s.t, err)
		if n == 0 {
			continue // WELCOME
		}
		messages := fatal.Value(unix.ParseSocketControlMessage(rights[:n]))(s.t)
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			s.t.Fatal(fds, err)
		}
		s.t.Cleanup(func() { unix.Close(fds[0]) })
		return fds[0]
	}
}

// Ensure that the death of a server frees all its locks, whatever its clients do with the
// descriptors that they got from it. Clients that share a descriptor have their own owner numbers.
// The next server has the cache at once, and all clients go on with it.
func TestSuccessorTakesOverAtOnce(t *testing.T) {
	const n = 100
	s := newServed(t, n, "all")
	fd := s.descriptorOf("pets") // stays open, and with it the server's open file description
	var handles []*stocclient.Cache
	for range 2 {
		c := fatal.Value(stocclient.AttachFD(fd, stocclient.AttachOptions{Label: "shares"}))(t)
		defer c.Close()
		if _, _, err := c.View(0); err != nil { // View counts a hit, so the client is registered
			t.Fatal(err)
		}
		handles = append(handles, c)
	}
	var children []*process
	for k := range 2 {
		children = append(children, start(t, "stay", s.sockets, fmt.Sprint(k*n/2), fmt.Sprint(n)))
	}
	tell := func(p *process) {
		t.Helper()
		fatal.Value(fmt.Fprintln(p.stdin, "fetch"))(t)
		p.ready(t)
	}
	tell(children[1])
	numbers := func(when string, want int) {
		t.Helper()
		all := fatal.Value(handles[0].Inspect().Clients())(t)
		live := map[uint32]string{}
		for _, one := range all {
			if one.Live {
				live[one.Record] = one.Label
			}
		}
		expect.Equal(t, len(live), want, "%s: live clients: %v", when, live)
	}
	numbers("with the server", 5)
	for round := range 3 {
		s.kill()
		numbers("without it", 4)
		began := time.Now()
		s.start() // fails if another server blocks it
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("round %d: the next one took %v", round, took)
		}
		numbers("with the next one", 5)
		contains(t, s.said(), "warm=true")
		for _, p := range children {
			tell(p)
		}
	}
	if stats, err := handles[1].Stats(); err != nil || stats.Ready != n || stats.Stored != n {
		t.Errorf("%+v, %v", stats, err)
	}
}
