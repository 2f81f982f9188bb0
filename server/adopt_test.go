package server_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// Ensure that a server makes a new segment if the last user of the segment that it finds is just
// removing it.
func TestAdoptsWhileTheLastUserLeaves(t *testing.T) {
	m := newMemory(10, 100)
	o := options(t, m, server.CacheOptions{})
	seg, err := shm.Create(shm.Options{Name: "pets", Dir: o.Caches[0].Dir, Samples: 10,
		Fields: m.Info().Schema.Fields, Policy: shm.PolicyFirstCome, Fingerprint: m.fingerprint})
	fatal.If(t, err)
	defer seg.Close()
	locks := fatal.Value(seg.NewLocks())(t)
	fatal.Gives(locks.LastUser())(t, true)
	var leaving sync.WaitGroup
	leaving.Go(func() {
		time.Sleep(300 * time.Millisecond) // by then the server waits for it
		expect.NoError(t, seg.Remove())
		locks.Close()
	})
	s, _ := start(t, o)
	leaving.Wait()
	p, number, fresh := join(t, s)
	if fresh.Header.UUID == seg.Header.UUID {
		t.Error("it is the old one")
	}
	p.wantFetched(number, 3)
}

// Ensure that a server replaces a segment of another version that no process uses, and says so in one line. It leaves
// the cache out, and names the processes, while one is in use. The memory of the old one counts as free.
func TestReplacesAnotherVersion(t *testing.T) {
	o := options(t, newMemory(10, 100), server.CacheOptions{})
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	seg := fatal.Value(shm.Create(shm.Options{Name: "pets", Dir: o.Caches[0].Dir, Samples: 10, SampleBytes: 100}))(t)
	defer seg.Close()
	locks := fatal.Value(seg.NewLocks())(t)
	fatal.Value(unix.Pwrite(seg.FD(), []byte{shm.LayoutVersion + 1}, shm.HeaderVersion))(t)
	users := fmt.Sprintf("processes %d (", os.Getpid())
	expect.Fails(server.Check(t.Context(), o))(t, shm.ErrVersion, users)
	expect.Fails(server.New(t.Context(), o))(t, shm.ErrVersion, users)
	fatal.If(t, locks.Close())
	expect.Works(server.Check(t.Context(), o))(t)
	s, _ := start(t, o)
	p, number, _ := join(t, s)
	p.wantFetched(number, 3)
	expect.Equal(t, strings.Count(log.String(), "replaces one of another version"), 1, "lines in\n%s", log.String())
}

// Ensure that a server drops an emptied cache that it cannot make again because its folder is
// unreachable. Its clients get an error at once.
func TestEmptiedCacheThatCannotComeBack(t *testing.T) {
	server.SetJanitorPause(t, 50*time.Millisecond)
	m := newMemory(100, 100<<10)
	o := options(t, m, server.CacheOptions{RemoveUnused: time.Second})
	s, _ := start(t, o)
	p, number, seg := join(t, s)
	p.fetch(number, 0, shuffled(100)...)
	seg.Close()
	dir := o.Caches[0].Dir
	fatal.If(t, os.Rename(dir, dir+"-moved"))
	t.Cleanup(func() { os.RemoveAll(dir + "-moved") })
	if err := os.Symlink(dir, dir); err != nil { // so that the server cannot even find out whether the file exists
		t.Fatal(err)
	}
	p.socket.Close()
	fatal.Until(t, "it is gone", func() bool { return s.Caches() == 0 })
	code := make(chan int, 1)
	go func() {
		n, _ := ask(t, s, "/v1/caches/pets")
		code <- n
	}()
	select {
	case n := <-code:
		expect.Equal(t, n, 404, "")
	case <-time.After(time.Minute):
		t.Error("no answer")
	}
}

// Ensure that a server's own counters go on when another cache replaces one, and when a cache is
// emptied.
func TestCountersGoOn(t *testing.T) {
	server.SetJanitorPause(t, 50*time.Millisecond)
	shelf := newShelf()
	shelf.put(1, 100, 100<<10)
	shelf.put(2, 100, 100<<10).fails[9] = source.ErrCorrupt
	o := onShelf(t, shelf, map[string]int{"pets": 1})
	dir := o.Caches[0].Dir
	s, _ := start(t, o)
	p, number, _ := join(t, s)
	p.fetch(number, 0, shuffled(60)...)
	reload(t, s, with(o, server.CacheOptions{Name: "pets", Dir: dir, Source: source.Settings{"id": 2}, RemoveUnused: time.Second}))
	_, text := ask(t, s, "/metrics")
	wantLines(t, text, `stocached_source_reads_total{cache="pets"} 60`,
		`stocached_fill_seconds_count{cache="pets"} 60`, `stocached_slots_filled{cache="pets"} 0`)
	number, seg := p.attach("pets")
	p.fetch(number, 0, shuffled(20)...)
	seg.Close()
	p.socket.Close()
	first := fatal.Value(os.Stat(filepath.Join(dir, "pets")))(t)
	fatal.Until(t, "it is emptied", func() bool {
		now, err := os.Stat(filepath.Join(dir, "pets"))
		return err == nil && !os.SameFile(first, now)
	})
	fatal.Until(t, "it is back, and all was counted", func() bool {
		_, text := ask(t, s, "/metrics")
		return strings.Contains(text, `stocached_source_reads_total{cache="pets"} 79`+"\n") &&
			strings.Contains(text, `stocached_source_errors_total{cache="pets",kind="damaged"} 1`+"\n") &&
			strings.Contains(text, `stocached_slots_filled{cache="pets"} 0`+"\n")
	})
}

// Ensure that a server that gets one of its two sockets opens the other one in the same folder,
// where clients and operators expect both.
func TestOneSocketIsGiven(t *testing.T) {
	for _, name := range []string{control.DataSocket, control.AdminSocket} {
		o := options(t, newMemory(10, 100), server.CacheOptions{})
		dir := filepath.Join(t.TempDir(), "given")
		fatal.If(t, os.Mkdir(dir, 0o700))
		l := fatal.Value(net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"}))(t)
		if name == control.DataSocket {
			o.DataSocket = l
		} else {
			o.AdminSocket = l
		}
		s, stop := start(t, o)
		expect.Equal(t, s.Dir(), dir, "%s", name)
		p := connect(t, dir)
		p.socket.Close()
		if code, _ := ask(t, s, "/healthz"); code != 200 {
			t.Errorf("%s: %d", name, code)
		}
		stop()
	}
}
