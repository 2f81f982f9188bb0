package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that health reports the state of a server and of a cache in one line and by the exit status:
// serving, without the cache, stopped, dead.
func TestHealth(t *testing.T) {
	d := newServedCaches(t, warmRecords(t, 20), warmCache("pets", "", ""))
	wantLine := func(begin string, args ...string) {
		t.Helper()
		if out := ok(t, d.args(args...)...); !strings.HasPrefix(out, begin) || strings.Count(out, "\n") != 1 {
			t.Errorf("%v: %q, want %q", args, out, begin)
		}
	}
	wantLine("the server on "+d.sockets+" is well and serves (", "health")
	wantLine("cache pets of the server on "+d.sockets+" is well and serves (", "health", "pets")
	got := decode[jsonObject](t, ok(t, d.args("health", "pets", "--json")...))
	if wantFields(t, got, jsonObject{"sockets": d.sockets, "name": "pets"}); got["seconds"].(float64) <= 0 {
		t.Error(got)
	}
	wantFields(t, decode[jsonObject](t, ok(t, d.args("health", "--json")...)),
		jsonObject{"sockets": d.sockets, "name": nil, "healthy": true, "ready": true, "problem": ""})
	t.Setenv(control.SocketsVariable, d.sockets)
	ok(t, "health", "pets")
	ok(t, "health")

	fails(t, exitNotFound, []string{`no such cache: this server has no cache "cats"; it has: pets`}, "health", "cats")
	fails(t, exitUsage, []string{"is not a name of a server's cache"}, "health", "../pets")
	fails(t, exitUsage, []string{"is not a name of a server's cache"}, "health", "")
	fails(t, exitUsage, []string{"2 arguments"}, "health", "pets", "cats")
	for _, name := range [][]string{nil, {"pets"}} {
		command := append([]string{"health"}, name...)
		fails(t, exitUsage, []string{"--timeout -1s is not above 0"}, append(command, "--timeout", "-1s")...)
		fails(t, exitNoServer, []string{"no server answers on /nowhere/", "stocached serve -c config.yaml"}, append(command,
			"--sockets", "/nowhere")...)
	}
	pause(t, d.process)
	for _, name := range [][]string{nil, {"pets"}} {
		command := append([]string{"health"}, name...)
		began := time.Now()
		fails(t, exitNoServer, []string{"did not answer", "it may be stopped or overloaded"}, append(command,
			"--timeout", "100ms")...)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%q took %v", command, took)
		}
	}
	patient := answerDeadline
	answerDeadline = 100 * time.Millisecond
	t.Cleanup(func() { answerDeadline = patient })
	for _, command := range []string{"reload", "config print --server"} {
		fails(t, exitNoServer, []string{"did not answer", "it may be stopped or overloaded"}, append(strings.Fields(command),
			"--sockets", d.sockets)...)
	}
	d.end(syscall.SIGKILL) // its sockets stay
	for _, name := range [][]string{nil, {"pets"}} {
		command := append([]string{"health"}, name...)
		fails(t, exitNoServer, []string{"no server answers on " + d.sockets, "connection refused"}, command...)
	}
}

// Ensure that health tells a server that answers and is not ready from one that does not answer,
// and that a server that sends invalid answers counts as none.
func TestHealthOfABadServer(t *testing.T) {
	dir := t.TempDir()
	answer := func(socket, text string) {
		t.Helper()
		l := fatal.Value(net.Listen("unix", filepath.Join(dir, socket)))(t)
		t.Cleanup(func() { l.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				c.Read(make([]byte, 1000)) // one write, which fits
				c.Write([]byte(text))
				c.Close()
			}
		}()
	}
	const why = `{"error": "the server is beginning or ending"}`
	answer(control.AdminSocket, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 46\r\n\r\n"+why)
	code, out, stderr := cli(t, "health", "--sockets", dir, "--json")
	expect.Equal(t, code, exitFailed, "exit")
	wantFields(t, decode[jsonObject](t, out),
		jsonObject{"healthy": false, "ready": false, "problem": "the server is beginning or ending"})
	contains(t, stderr, "stocached: the server on "+dir+": the server is beginning or ending\n")
	fatal.If(t, os.Remove(filepath.Join(dir, control.AdminSocket)))
	// The data socket counts too, also if the server says that it is well.
	answer(control.AdminSocket, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")
	fails(t, exitNoServer, []string{"no server answers"}, "health", "--sockets", dir)
	answer(control.DataSocket, "HTTP/1.1 400 Bad Request\r\n\r\n")
	fails(t, exitFailed, []string{"stocached: "}, "health", "--sockets", dir)
	fatal.If(t, os.Remove(filepath.Join(dir, control.AdminSocket)))
	answer(control.AdminSocket, "\x00\x01\x02")
	fails(t, exitNoServer, []string{"no server answers"}, "health", "--sockets", dir)
}
