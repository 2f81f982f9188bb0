package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// knock is "knock SOCKETS": a client that tries both sockets of a server, and reports the result of
// each and whether it could open the cache itself.
func knock(args []string) error {
	for _, name := range []string{control.DataSocket, control.AdminSocket} {
		socket, err := net.Dial("unix", filepath.Join(args[0], name))
		if err != nil {
			fmt.Printf("%s: not connected: %v\n", name, err)
			continue
		}
		defer socket.Close()
		if err := socket.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprint(socket, "GET /v1/caches HTTP/1.1\r\nHost: stocached\r\n\r\n"); err != nil &&
			!errors.Is(err, unix.EPIPE) {
			return err
		}
		answer, err := io.ReadAll(socket)
		fmt.Printf("%s: %q %v\n", name, answer, err)
	}
	return nil
}

// stranger runs a child as another user.
func stranger(mode string, args ...string) (string, error) {
	cmd := exec.Command("/proc/self/exe", args...) // the program's folder may be closed to others
	cmd.Env = []string{childVariable + "=" + mode}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: strangerID, Gid: strangerID}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// strangerID is another user: nobody.
const strangerID = 65534

// Ensure that another user gets nothing. The folder of the sockets excludes it. If modes let it in,
// the server identifies it by the credentials of the peer, refuses it on the data socket, logs it,
// and goes on with all others.
func TestServerTurnsAwayOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		privileged(t, "run as another user", errors.New("not root"))
	}
	s := newServed(t, 100, "all")
	c := s.dial()
	wantFetch(t, c, first(10))
	out, err := stranger("knock", s.sockets)
	if err != nil || strings.Count(out, "permission denied") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	for _, command := range [][]string{{"health"}, {"health", "pets"}} {
		out, err := stranger("main", append(command, "--sockets", s.sockets)...)
		if failed := (*exec.ExitError)(nil); !errors.As(err, &failed) || failed.ExitCode() != exitPermission ||
			!strings.Contains(out, "permission denied; the server is another user's") {
			t.Errorf("%q: %v\n%s", command, err, out)
		}
	}
	// from here on modes exclude no user
	for dir := s.sockets; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{control.DataSocket, control.AdminSocket} {
		if err := os.Chmod(filepath.Join(s.sockets, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	before := s.descriptors()
	for range 20 {
		out, err := stranger("knock", s.sockets)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		want := control.AppendError(nil, 0, control.CodeDenied,
			fmt.Sprintf("this server belongs to user id 0, and you are %d", strangerID))
		data, admin, ok := strings.Cut(out, "\n")
		if !ok || !strings.HasPrefix(data, fmt.Sprintf("%s: %q ", control.DataSocket, want)) {
			t.Errorf("the data socket: %s; want %q", data, want)
		}
		if admin != fmt.Sprintf("%s: %q <nil>\n", control.AdminSocket, "") &&
			!strings.Contains(admin, "reset by peer") {
			t.Errorf("the admin socket: %s", admin)
		}
	}
	contains(t, s.said(), "a client of another user was refused", "an operator of another user was refused",
		fmt.Sprintf("uid=%d", strangerID))
	wantFetch(t, c, first(100))
	if got := s.answers("/healthz"); got != "ok\n" {
		t.Errorf("healthz: %q", got)
	}
	for deadline := time.Now().Add(20 * time.Second); s.descriptors() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, %d before", s.descriptors(), before)
		}
	}
}

// descriptors counts the open descriptors of the server.
func (s *served) descriptors() int {
	s.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.process.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(all)
}

// descriptorOf asks the server for a cache as a client does, and returns the received descriptor.
func (s *served) descriptorOf(name string) int {
	s.t.Helper()
	socket, err := net.DialUnix("unix", nil,
		&net.UnixAddr{Name: filepath.Join(s.sockets, control.DataSocket), Net: "unix"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { socket.Close() })
	frames := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: "raw"})
	if _, err := socket.Write(control.AppendAttach(frames, 2, name)); err != nil {
		s.t.Fatal(err)
	}
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := socket.ReadMsgUnix(make([]byte, 1000), rights)
		if err != nil {
			s.t.Fatal(err)
		}
		if n == 0 {
			continue // WELCOME
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil {
			s.t.Fatal(err)
		}
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
		c, err := stocclient.AttachFD(fd, stocclient.AttachOptions{Label: "shares"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, _, err := c.View(0); err != nil { // View counts a hit, so the client is registered
			t.Fatal(err)
		}
		handles = append(handles, c)
	}
	type child struct {
		*exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
	}
	var children []child
	for k := range 2 {
		p := child{Cmd: exec.Command(os.Args[0], s.sockets, fmt.Sprint(k*n/2), fmt.Sprint(n))}
		p.Env = append(os.Environ(), childVariable+"=stay")
		p.Stderr = os.Stderr
		var err error
		if p.in, err = p.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := p.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.out = bufio.NewReader(out)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Process.Kill(); p.Wait() })
		if line, err := p.out.ReadString('\n'); line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		children = append(children, p)
	}
	tell := func(p child) {
		t.Helper()
		if _, err := fmt.Fprintln(p.in, "fetch"); err != nil {
			t.Fatal(err)
		}
		if line, err := p.out.ReadString('\n'); line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	tell(children[1])
	numbers := func(when string, want int) {
		t.Helper()
		all, err := handles[0].Inspect().Clients()
		if err != nil {
			t.Fatal(err)
		}
		live := map[uint32]string{}
		for _, one := range all {
			if one.Live {
				live[one.Record] = one.Label
			}
		}
		if len(live) != want {
			t.Errorf("%s: %d live clients, want %d: %v", when, len(live), want, live)
		}
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
	// Two servers start as soon as the old one is dead: one gets the cache, the other reports it.
	s.kill()
	second := &served{t: t, path: filepath.Join(filepath.Dir(s.path), "second.yaml"), log: s.log}
	text, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(second.path, bytes.ReplaceAll(text, []byte(s.sockets), []byte(s.sockets+"2")),
		0o600); err != nil {
		t.Fatal(err)
	}
	serving := make(chan bool, 2)
	for _, one := range []*served{s, second} {
		out := one.launch()
		go func() {
			line, _ := bufio.NewReader(out).ReadString('\n')
			serving <- strings.HasPrefix(line, "serving")
		}()
	}
	if a, b := <-serving, <-serving; a == b {
		t.Errorf("two servers at once: %v, %v\n%s", a, b, s.said())
	}
	contains(t, s.said(), "another server fills this cache")
}

// Ensure that the counters of a cache come from the segment alone. They are the same while the
// server runs, is stopped or is dead, and when the server itself reports them.
func TestStatsWithoutTheServer(t *testing.T) {
	const n = 100
	s := newServed(t, n, "all")
	c := s.dial()
	wantFetch(t, c, first(70))
	wantFetch(t, c, first(30))
	path := filepath.Join(s.segments, "pets")
	look := func() (jsonObject, string, string) {
		t.Helper()
		type printed struct {
			stats       jsonObject
			inspect, ls string
		}
		done := make(chan printed, 1)
		go func() {
			done <- printed{decode[jsonObject](t, ok(t, "stats", path, "--json")), ok(t, "inspect", path),
				ok(t, "ls", "--dir", s.segments, "--json")}
		}()
		select {
		case p := <-done:
			return p.stats, p.inspect, p.ls
		case <-time.After(20 * time.Second):
			t.Fatal("the server is waited for")
			return nil, "", ""
		}
	}
	with, _, listed := look()
	wantFields(t, with, jsonObject{"samples": n, "slots": n, "ready": 70, "stored": 70, "hits": 30, "misses": 70,
		"clients_live": 2, "clients_ended": 0,
		"ready_bytes": 70 * servedBytes, "stored_bytes": 70 * servedBytes})
	said := decode[jsonObject](t, s.answers("/v1/caches/pets"))
	for field, value := range said["stats"].(jsonObject) {
		if field == "costs" {
			field, value = "known_costs", value.(jsonObject)["known"] // the server measures the first loads of any policy
		}
		// this cache has none of these
		if have := with[field]; fmt.Sprint(have) != fmt.Sprint(value) && !strings.HasPrefix(field, "arena_") {
			t.Errorf("%s: the segment holds %v, the server says %v", field, have, value)
		}
	}
	same := func(when string, but ...string) {
		t.Helper()
		now, _, ls := look()
		for field, value := range with {
			// this field says whether a server answers
			if strings.HasPrefix(field, "clients_") && len(but) > 0 || field == "server" {
				continue
			}
			if fmt.Sprint(now[field]) != fmt.Sprint(value) {
				t.Errorf("%s: %s is %v, was %v", when, field, now[field], value)
			}
		}
		if len(now) != len(with) {
			t.Errorf("%s: %d fields, were %d", when, len(now), len(with))
		}
		if len(but) == 0 && ls != listed {
			t.Errorf("%s: ls prints\n%s\nand printed\n%s", when, ls, listed)
		}
	}
	pause(t, s.process)
	same("stopped")
	s.kill()
	same("dead", "clients")
	dead, _, _ := look()
	wantFields(t, dead, jsonObject{"clients_live": 1, "clients_ended": 1})
	if got := ready(t, c.Cache); got != 70 {
		t.Errorf("%d samples are there", got)
	}
	s.start()
	same("with the next one")
}
