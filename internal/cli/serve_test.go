package cli

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"
)

// configure writes a configuration of one cache of 20 records, and returns its path, the folder of
// the segment and that of the sockets.
func configure(t *testing.T) (path, segments, sockets string) {
	t.Helper()
	dir := t.TempDir()
	segments, sockets = tmpfs(t), filepath.Join(dir, "run")
	if err := os.WriteFile(filepath.Join(dir, "records.bin"), bytes.Repeat([]byte("0123456789"), 20),
		0o600); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("caches: [{name: pets, dir: %s, source: {kind: raw, path: records.bin, sample_bytes: "+
		"10}}]\nsockets: {dir: %s}\n", segments, sockets)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, segments, sockets
}

// Ensure that a server serves, says where, ends on SIGTERM, and leaves its cache; that a second one
// is refused; and that SIGKILL does no harm.
func TestServe(t *testing.T) {
	path, segments, sockets := configure(t)
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
		server := program("serve", "-c", path)
		var log bytes.Buffer
		server.Stderr = &log
		out, err := server.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Process.Kill() })
		line := make([]byte, 1000)
		n, err := out.Read(line)
		if want := "serving 1 cache on " + sockets + "\n"; err != nil || string(line[:n]) != want {
			t.Fatalf("%q, %v; want %q\n%s", line[:n], err, want, log.String())
		}
		socket, err := net.Dial("unix", filepath.Join(sockets, control.DataSocket))
		if err != nil {
			t.Fatal(err)
		}
		socket.Close()
		fails(t, exitExists, []string{"another process answers on"}, "serve", "-c", path)
		server.Process.Signal(end)
		ended := make(chan error, 1)
		go func() { ended <- server.Wait() }()
		select {
		case err := <-ended:
			if (err == nil) != (end != syscall.SIGKILL) {
				t.Errorf("after %v: %v\n%s", end, err, log.String())
			}
		case <-time.After(time.Minute):
			t.Fatalf("it does not end on %v", end)
		}
		seg, err := shm.Open(filepath.Join(segments, "pets"), shm.OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if seg.Samples != 20 || !strings.HasPrefix(seg.Header.Fingerprint, "raw-") {
			t.Errorf("%+v", seg.Header)
		}
		seg.Close()
	}
}

// Ensure that a server that is ended while it opens its sources exits with 0: a service manager
// takes another exit status for a failure.
func TestServeEndsWhileItBegins(t *testing.T) {
	path, _, sockets := configure(t)
	folder := filepath.Join(filepath.Dir(path), "files")
	for k := range 20_000 { // this takes a while
		if err := os.MkdirAll(filepath.Join(folder, fmt.Sprint(k%100)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(k%100), fmt.Sprint(k)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path,
		fmt.Appendf(nil, "caches: [{name: pets, unnamed: true, source: {kind: dir, path: files}}]\nsockets: "+
			"{dir: %s}\n", sockets), 0o600); err != nil {
		t.Fatal(err)
	}
	server := program("serve", "-c", path)
	var log bytes.Buffer
	server.Stderr = &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill() })
	for range 10_000 { // it opens its sources after it listens
		if _, err := os.Stat(filepath.Join(sockets, control.DataSocket)); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	server.Process.Signal(syscall.SIGTERM)
	if err := server.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
	if left, err := os.ReadDir(sockets); err != nil || len(left) != 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}

func TestServeCheck(t *testing.T) {
	path, segments, sockets := configure(t)
	if got, want := ok(t, "serve", "-c", path, "--check"), path+": good, 1 cache\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, left := range []string{sockets, filepath.Join(segments, "pets")} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("a check made %s", left)
		}
	}
	if err := os.Remove(filepath.Join(filepath.Dir(path), "records.bin")); err != nil {
		t.Fatal(err)
	}
	fails(t, exitNotFound, []string{"records.bin"}, "serve", "-c", path, "--check")
	if err := os.WriteFile(path, []byte("caches: [{nam: pets}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, exitUsage, []string{"caches[0].nam: there is no such key"}, "serve", "-c", path, "--check")
	fails(t, exitNotFound, []string{"none.yaml"}, "serve", "-c", filepath.Join(filepath.Dir(path), "none.yaml"))
	fails(t, exitUsage, []string{"config"}, "serve")
}

func TestConfigPrint(t *testing.T) {
	path, _, sockets := configure(t)
	t.Setenv("STOCACHED_LOG_LEVEL", "warn")
	got := ok(t, "config", "print", "-c", path)
	contains(t, got, "sockets.dir", sockets, "file", "log.level", "warn", "STOCACHED_LOG_LEVEL", "log.format", "text",
		"default")
	objects := decode[[]jsonObject](t, ok(t, "config", "print", "-c", path, "--json"))
	k := slices.IndexFunc(objects, func(o jsonObject) bool { return o["key"] == "sockets.dir" })
	if k < 0 {
		t.Fatalf("%v", objects)
	}
	wantFields(t, objects[k], jsonObject{"key": "sockets.dir", "value": sockets, "from": "file"})
	contains(t, got, "caches[0].source.kind", "raw")
}
