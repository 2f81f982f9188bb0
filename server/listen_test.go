package server

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// stale leaves a socket like a killed server does.
func stale(t *testing.T, path string) {
	t.Helper()
	l := fatal.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	fatal.If(t, l.Close())
}

// Ensure that exactly one of several servers that start at the same time beside a stale socket
// listens, and is reachable.
func TestManyListenAtOnce(t *testing.T) {
	for round := range 200 {
		path := filepath.Join(t.TempDir(), "s")
		stale(t, path)
		var all sync.WaitGroup
		begin := make(chan struct{})
		listeners := make(chan *net.UnixListener, 8)
		for range cap(listeners) {
			all.Go(func() {
				<-begin
				l, err := listen(path)
				if err != nil && !errors.Is(err, ErrServed) {
					t.Error(err)
				}
				if err == nil {
					listeners <- l
				}
			})
		}
		close(begin)
		all.Wait()
		close(listeners)
		n := len(listeners)
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
		}
		for l := range listeners {
			l.Close()
		}
		if n != 1 || err != nil {
			t.Fatalf("round %d: %d listen; connecting: %v", round, n, err)
		}
	}
}

// Ensure that listen removes only a socket without a listener: no file, and not the socket of a
// stopped server.
func TestListenRemovesNothingElse(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	fatal.If(t, os.WriteFile(file, []byte("mine"), 0o600))
	expect.Fails(listen(file))(t, shm.ErrInvalid, "is not a socket")
	if text, err := os.ReadFile(file); string(text) != "mine" || err != nil {
		t.Errorf("%q, %v", text, err)
	}

	stopped := filepath.Join(dir, "stopped")
	fd := fatal.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	fatal.If(t, errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: stopped}), unix.Listen(fd, 0)))
	for { // until the backlog is full
		c, err := net.Dial("unix", stopped)
		if err != nil {
			break
		}
		defer c.Close()
	}
	expect.Fails(listen(stopped))(t, ErrServed, "does not answer")
	expect.Works(os.Lstat(stopped))(t)
}
