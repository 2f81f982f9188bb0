package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	cacheserver "github.com/stocached/stocached/server/served"
)

func init() { servedChildren["impostor"] = impostor }

// impostor is "impostor DIR": it listens on both sockets in a folder, sends valid answers, and at
// the end reports how many bytes it got from clients.
func impostor(args []string) error {
	var got atomic.Int64
	for _, name := range []string{control.DataSocket, control.AdminSocket} {
		l, err := net.Listen("unix", filepath.Join(args[0], name))
		if err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(args[0], name), 0o777); err != nil {
			return err
		}
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				go func() {
					n, _ := c.Read(make([]byte, 1<<16))
					got.Add(int64(n))
					if name == control.AdminSocket {
						fmt.Fprint(c, "HTTP/1.0 200 OK\r\n\r\n"+`[{"name": "leaked"}]`)
					} else {
						c.Write(control.AppendWelcome(nil, 1,
							control.WelcomeBody{Version: control.Version, MaxIndices: 9}))
					}
					c.Close()
				}()
			}
		}()
	}
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	fmt.Println(got.Load(), "bytes")
	return nil
}

// startImpostor starts an impostor of another user in a folder. end ends it, and returns how many
// bytes clients sent it.
func startImpostor(t *testing.T, dir string) (end func() int) {
	t.Helper()
	p := startChild(t, childOf(t, strangerID, "impostor", dir))
	return func() (n int) {
		t.Helper()
		p.stdin.Close()
		fatal.Value(fmt.Fscan(p.stdout, &n))(t)
		return n
	}
}

// asked are the commands that connect to a server.
var asked = [][]string{{"health"}, {"health", "secret-name"}, {"warm", "secret-name"}}

// Ensure that nothing is sent to a server of another user, and that the error names the user. This
// holds for every owner of the folder, every listener, and every way to find the folder.
func TestNothingIsSentToAnotherUser(t *testing.T) {
	for _, c := range []struct {
		name   string
		owner  int
		mode   os.FileMode
		byLink bool // the folder is a symbolic link
		named  bool // by an option or in the environment
		want   string
	}{
		{"the default folder is another user's", strangerID, 0o755, false, false, "belongs to user id 65534"},
		{"a named folder in /tmp is another user's", strangerID, 0o755, false, true, "belongs to user id 65534"},
		{"another user listens in our folder", 0, 0o755, false, true, "user id 65534 listens on"},
		{"another user listens in our default folder", 0, 0o755, false, false, "user id 65534 listens on"},
		{"others may write to the folder", 0, 0o777, false, true, "has mode 0777"},
		{"the default folder is a link", 0, 0o755, true, false, "is not a folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := strangersFolder(t, "")
			dir := filepath.Join(base, "stocached")
			place := dir
			if c.byLink {
				place = filepath.Join(base, "elsewhere")
				fatal.If(t, os.Symlink(place, dir))
			}
			fatal.If(t, errors.Join(os.Mkdir(place, 0o777), os.Chmod(place, 0o777)))
			end := startImpostor(t, place)
			fatal.If(t, errors.Join(os.Chown(place, c.owner, -1), os.Chmod(place, c.mode)))
			t.Setenv(control.SocketsVariable, "")
			t.Setenv("XDG_RUNTIME_DIR", base)
			flags := []string{}
			if c.named {
				flags = []string{"--sockets", dir}
			}
			for _, command := range asked {
				fails(t, exitPermission, []string{"not ours: ", c.want, dir}, append(command, flags...)...)
			}
			if c.named {
				t.Setenv(control.SocketsVariable, dir)
			}
			for _, command := range asked {
				fails(t, exitPermission, []string{"not ours: ", c.want, dir}, command...)
			}
			if out := ok(t, "__complete", "health", ""); strings.Contains(out, "leaked") {
				t.Errorf("completed: %q", out)
			}
			if _, err := stocclient.Dial(context.Background(), "secret-name",
				stocclient.DialOptions{}); !errors.Is(err, stocclient.ErrPermission) ||
				errors.Is(err, stocclient.ErrNoServer) {
				t.Error(err)
			}
			expect.Equal(t, end(), 0, "bytes that it got")
		})
	}
}

// Ensure that operators reach a server of another user if an administrator has given the folder of
// the sockets to that user, and they name it.
func TestOperatorsOfAnotherUsersServer(t *testing.T) {
	dir := filepath.Join(strangersFolder(t, "/run"), "sockets")
	fatal.If(t, errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, strangerID, -1)))
	end := startImpostor(t, dir)
	contains(t, ok(t, "health", "--sockets", dir), "is well and serves")
	t.Setenv(control.SocketsVariable, dir)
	contains(t, ok(t, "__complete", "health", ""), "leaked")
	t.Setenv(control.SocketsVariable, "")
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(dir))
	fatal.If(t, os.Rename(dir, filepath.Join(filepath.Dir(dir), "stocached")))
	fails(t, exitPermission, []string{"belongs to user id 65534"}, "health")
	if end() == 0 {
		t.Error("nothing was sent")
	}
}

// strangersFolder makes a folder of this user that other users may enter, inside a folder for all
// users.
func strangersFolder(t *testing.T, in string) string {
	t.Helper()
	dir := fatal.Value(os.MkdirTemp(in, "stocached-test-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	fatal.If(t, os.Chmod(dir, 0o755))
	return dir
}

// Ensure that no text of a server controls a terminal.
func TestServersWordsControlNoTerminal(t *testing.T) {
	const bad = "a\x1b]0;b\x07c\u009b31md\u202ee\x7ff"
	dir := t.TempDir()
	quoted := fmt.Sprintf("%q", bad)
	json := strings.NewReplacer(`\x1b`, `\u001b`, `\a`, `\u0007`, `\x7f`, `\u007f`).Replace(quoted)
	data := fatal.Value(net.Listen("unix", filepath.Join(dir, control.DataSocket)))(t)
	defer data.Close()
	go func() {
		for c, err := data.Accept(); err == nil; c, err = data.Accept() {
			c.Write(control.AppendError(nil, 0, control.CodeNotFound, bad))
			c.Close()
		}
	}()
	socket := fatal.Value(net.Listen("unix", filepath.Join(dir, control.AdminSocket)))(t)
	status := http.StatusOK
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		switch {
		case status == http.StatusTeapot:
			fmt.Fprint(w, bad)
		case status != http.StatusOK:
			fmt.Fprintf(w, `{"error": %s}`, json)
		case r.URL.Path == "/v1/caches":
			fmt.Fprintf(w, `[{"name": %s}, {"name": "good"}]`, json)
		default:
			fmt.Fprintf(w, `{"uuid": %s, "source_errors": {%s: 1}}`, json, json)
		}
	})}
	go server.Serve(socket)
	defer server.Close()
	quiet := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		Run(args, &out, &out)
		if at := strings.IndexFunc(out.String(),
			func(r rune) bool { return r != '\n' && control.Unprintable(r) }); at >= 0 {
			t.Errorf("%q printed %q", args, out.String())
		}
		return out.String()
	}
	t.Setenv(control.SocketsVariable, dir)
	contains(t, quiet("__complete", "health", ""), "good\n")
	for _, code := range []int{http.StatusOK, http.StatusNotFound, http.StatusTeapot} {
		status = code
		for _, command := range asked {
			quiet(command...)
			quiet(append(command, "--json")...)
		}
	}
	status = http.StatusOK
	_, path := newCache(t, small())
	s, err := (&dirFlag{}).stats(path, extras{server: &asker{sockets: socketsFlag{dir: dir, timeout: time.Minute}}})
	fatal.If(t, err)
	s.server = &cacheserver.Status{Stats: cacheserver.Stats{Errors: errorCounts{bad: 1}}, UUID: bad}
	var out bytes.Buffer
	fatal.If(t, errors.Join(s.columns().List(&out, s), table.WriteJSON(&out, s.columns().Object(s))))
	if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && control.Unprintable(r) }) {
		t.Errorf("%q", out.String())
	}
}
