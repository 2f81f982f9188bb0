package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"

	"github.com/coreos/go-systemd/v22/unit"
)

// notes is a service manager: a socket like the one that systemd gives its services.
type notes struct {
	path   string
	socket *net.UnixConn
}

func newNotes(t *testing.T) *notes {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket := fatal.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	t.Cleanup(func() { socket.Close() })
	return &notes{path, socket}
}

// next returns the next message; "" if none comes in time.
func (n *notes) next(t *testing.T, within time.Duration) string {
	t.Helper()
	n.socket.SetReadDeadline(time.Now().Add(within))
	b := make([]byte, 4096)
	k, err := n.socket.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:k])
}

// want waits for a message with a line, and skips others.
func (n *notes) want(t *testing.T, line string) string {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if got := n.next(t, time.Until(deadline)); strings.Contains("\n"+got+"\n", "\n"+line+"\n") {
			return got
		}
	}
	t.Fatalf("no message has %s", line)
	return ""
}

// smallServed is a server of 20 records, which does not run yet.
func smallServed(t *testing.T) *served {
	t.Helper()
	s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: records, sample_bytes: %d}", servedBytes))
	s.write(20)
	return s
}

// Ensure that a service manager gets messages when a server is ready, reloads and ends, and
// watchdog messages only while it answers.
func TestNotifies(t *testing.T) {
	s, n := smallServed(t), newNotes(t)
	s.launch("NOTIFY_SOCKET="+n.path, "WATCHDOG_USEC=600000")
	contains(t, n.want(t, "READY=1"), "STATUS=serving 1 cache on "+s.sockets)
	for range 3 {
		n.want(t, "WATCHDOG=1")
	}
	s.process.Process.Signal(syscall.SIGHUP)
	expect.Says(t, n.want(t, "RELOADING=1"), "\nMONOTONIC_USEC=")
	n.want(t, "READY=1")

	// The process lives, but its socket belongs to another process, which does not answer.
	data := filepath.Join(s.sockets, control.DataSocket)
	fatal.If(t, os.Rename(data, data+".away"))
	silent := fatal.Value(net.Listen("unix", data))(t)
	s.says("this server does not answer its own requests")
	for n.next(t, 10*time.Millisecond) != "" {
	}
	expect.Equal(t, n.next(t, time.Second), "", "said while it does not answer")
	silent.Close()
	fatal.If(t, os.Rename(data+".away", data))
	n.want(t, "WATCHDOG=1")
	s.end(syscall.SIGTERM)
	n.want(t, "STOPPING=1")
}

// Ensure that a server also serves without a service manager, or with one that does not listen.
func TestWithoutAManager(t *testing.T) {
	for _, environment := range [][]string{{"NOTIFY_SOCKET=/nowhere/notify"},
		{"NOTIFY_SOCKET=/nowhere/notify", "WATCHDOG_USEC=often"}, {"WATCHDOG_USEC=100000"}} {
		s := smallServed(t)
		s.start(environment...)
		wantFetch(t, s.dial(), []int{3})
		s.end(syscall.SIGTERM)
	}
}

// passed makes sockets for a process, and their names, as systemd passes them.
func passed(t *testing.T, paths ...string) (files []*os.File) {
	t.Helper()
	for _, path := range paths {
		l := fatal.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
		l.SetUnlinkOnClose(false)
		f := fatal.Value(l.File())(t)
		l.Close()
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	return files
}

// activated is a server that gets sockets. The shell sets LISTEN_PID, which is known only after the
// fork.
func activated(path, names string, files ...*os.File) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0], "serve", "-c", path)
	cmd.Env = append(os.Environ(), childVariable+"=main", "LISTEN_FDS="+fmt.Sprint(len(files)), "LISTEN_FDNAMES="+names)
	cmd.ExtraFiles = files
	return cmd
}

// Ensure that a server takes the sockets it gets: it serves clients that connected before it
// started, the next server can take them too, and they stay when it ends.
func TestSocketActivation(t *testing.T) {
	s := smallServed(t)
	dir := t.TempDir()
	data, admin := filepath.Join(dir, control.DataSocket), filepath.Join(dir, control.AdminSocket)
	files := passed(t, data, admin)
	for round := range 2 {
		dialed := make(chan error, 1)
		go func() { // before there is a server
			c, err := stocclient.Dial(context.Background(), "pets",
				stocclient.DialOptions{SocketsDir: dir, Timeout: 20 * time.Second})
			if err == nil {
				err = c.Fetch(context.Background(), []int{3}, make([]byte, servedBytes), servedBytes)
				c.Close()
			}
			dialed <- err
		}()
		time.Sleep(50 * time.Millisecond)
		s.run(activated(s.path, "data.sock:admin.sock", files...))
		if err := <-dialed; err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		contains(t, ok(t, "health", "--sockets", dir), "serves")
		s.end(syscall.SIGTERM)
		for _, socket := range []string{data, admin} {
			if _, err := os.Stat(socket); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
	if _, err := os.Stat(s.sockets); err == nil {
		t.Error("it made sockets of its own")
	}
}

// Ensure that unknown sockets are refused with the reason.
func TestSocketActivationRefuses(t *testing.T) {
	path := smallServed(t).path
	dir, other := t.TempDir(), t.TempDir()
	for names, c := range map[string]struct {
		paths []string
		want  string
	}{
		"stocached.socket": {[]string{filepath.Join(dir, "a.sock")}, `1 socket named "stocached.socket"`},
		"data.sock":        {[]string{filepath.Join(dir, "b.sock")}, "clients need unix stream sockets"},
		"data.sock:data.sock": {[]string{filepath.Join(dir, control.DataSocket), filepath.Join(dir, "c.sock")},
			`2 sockets named "data.sock"`},
		"admin.sock:data.sock": {[]string{filepath.Join(other, control.AdminSocket),
			filepath.Join(dir, "d", control.DataSocket)}, "in one folder"},
	} {
		fatal.If(t, os.MkdirAll(filepath.Join(dir, "d"), 0o700))
		cmd := activated(path, names, passed(t, c.paths...)...)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, %s; want %q", names, err, out, c.want)
		}
	}
}

// Ensure that the unit files match the server, and that systemd-analyze, if installed, finds no
// errors.
func TestUnits(t *testing.T) {
	from, dir := filepath.Join("..", "..", "deploy"), t.TempDir()
	names := []string{"stocached.service", "stocached.socket", "stocached-admin.socket"}
	values := map[string]map[string]string{}
	var paths []string
	for _, name := range names {
		text := fatal.Value(os.ReadFile(filepath.Join(from, name)))(t)
		options, err := unit.DeserializeOptions(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		values[name] = map[string]string{}
		for _, o := range options {
			values[name][o.Section+"."+o.Name] = o.Value
		}
		// systemd checks that the program exists: this one does.
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, bytes.ReplaceAll(text, []byte("/usr/local/bin/stocached"), []byte(os.Args[0])),
			0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	for _, c := range []struct{ file, key, want string }{
		{names[0], "Service.Type", "notify"},
		{names[0], "Service.ExecReload", "/bin/sh -c 'kill -HUP $MAINPID'"},
		{names[0], "Service.RestartPreventExitStatus", fmt.Sprint(exitUsage)},
		{names[0], "Service.Environment", control.SocketsVariable + "=%t/stocached"},
		{names[1], "Socket.FileDescriptorName", control.DataSocket},
		{names[1], "Socket.ListenStream", "%t/stocached/" + control.DataSocket},
		{names[1], "Socket.Service", names[0]},
		{names[2], "Socket.FileDescriptorName", control.AdminSocket},
		{names[2], "Socket.ListenStream", "%t/stocached/" + control.AdminSocket},
		{names[2], "Socket.Service", names[0]},
	} {
		expect.Equal(t, values[c.file][c.key], c.want, "%s: %s", c.file, c.key)
	}
	command := strings.Fields(values[names[0]]["Service.ExecStart"])
	var usage bytes.Buffer
	if len(command) != 4 || command[1] != "serve" || Run([]string{"serve", "--help"}, &usage, io.Discard) != exitOK ||
		!strings.Contains(usage.String(), command[2]+",") {
		t.Errorf("%q", command)
	}
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is not here: the units were parsed, and their values compared, only")
		return
	}
	exposure, err := exec.Command(tool, "security", "--offline=true", paths[0]).CombinedOutput()
	level := regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`).FindSubmatch(exposure)
	if level == nil {
		t.Logf("systemd-analyze does not rate units here: %v: %s", err, exposure)
	} else if rated, err := strconv.ParseFloat(string(level[1]), 64); err != nil || rated >= 4 {
		t.Errorf("%v: systemd-analyze security rates the service %s, want less than 4:\n%s", err, level[1], exposure)
	}
	for _, kind := range []string{"--system", "--user"} {
		cmd := exec.Command(tool, append([]string{kind, "verify"}, paths...)...)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
	}
}
