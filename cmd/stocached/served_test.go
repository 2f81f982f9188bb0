package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
)

const servedBytes = 3000

// servedRecord is sample i of the source of these tests.
func servedRecord(i int) []byte {
	data := make([]byte, servedBytes)
	for k := range data {
		data[k] = byte(i*7 + k + k>>8)
	}
	return data
}

// served is a server process over n records.
type served struct {
	t       *testing.T
	path    string // of its configuration
	records string
	sockets string
	process *exec.Cmd

	segments string
}

// newServed configures and starts a server. size: of the cache.
func newServed(t *testing.T, n int, size string) *served {
	t.Helper()
	dir := t.TempDir()
	s := &served{t: t, segments: tmpfs(t), path: filepath.Join(dir, "config.yaml"), records: filepath.Join(dir, "records.bin"), sockets: filepath.Join(dir, "run")}
	s.write(n)
	text := fmt.Sprintf("caches: [{name: pets, dir: %s, size: %s, source: {kind: raw, path: records.bin, sample_bytes: %d}}]\nsockets: {dir: %s}\n", s.segments, size, servedBytes, s.sockets)
	if err := os.WriteFile(s.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	return s
}

func (s *served) write(n int) {
	s.t.Helper()
	var all bytes.Buffer
	for i := range n {
		all.Write(servedRecord(i))
	}
	if err := os.WriteFile(s.records, all.Bytes(), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *served) start() {
	s.t.Helper()
	s.process = program("serve", "-c", s.path)
	s.process.Stderr = os.Stderr
	out, err := s.process.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	process := s.process
	s.t.Cleanup(func() { process.Process.Kill(); process.Wait() })
	line := make([]byte, 200)
	if n, err := out.Read(line); err != nil || !strings.HasPrefix(string(line[:n]), "serving") {
		s.t.Fatalf("%q, %v", line[:n], err)
	}
}

// kill ends the server as the kernel would, and waits until it is gone.
func (s *served) kill() {
	s.process.Process.Kill()
	s.process.Wait()
}

func (s *served) dial() *stocclient.Served {
	s.t.Helper()
	c, err := stocclient.Dial(context.Background(), "pets", stocclient.DialOptions{SocketsDir: s.sockets})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// wantFetch fetches samples and compares them.
func wantFetch(t *testing.T, c *stocclient.Served, indices []int) {
	t.Helper()
	dst := make([]byte, len(indices)*servedBytes)
	if err := c.Fetch(context.Background(), indices, dst, servedBytes); err != nil {
		t.Error(err)
		return
	}
	for k, i := range indices {
		if !bytes.Equal(dst[k*servedBytes:][:servedBytes], servedRecord(i)) {
			t.Errorf("sample %d came wrong", i)
		}
	}
}

// Ensure that many goroutines and clients get every sample, with a slot or without, and that what has a slot was stored once.
func TestFetch(t *testing.T) {
	const n = 400
	for _, size := range []string{"all", "4500kB"} {
		s := newServed(t, n, size)
		var clients sync.WaitGroup
		for range 3 {
			c := s.dial()
			for range 3 {
				clients.Go(func() {
					for range 4 {
						wantFetch(t, c, rand.Perm(n)[:150])
					}
				})
			}
		}
		clients.Wait()
		c := s.dial()
		wantFetch(t, c, rand.Perm(n))
		stats, err := c.Stats()
		if err != nil || int(stats.Stored) != c.Slots() || (c.Slots() == n) != (size == "all") || c.Slots() < 20 {
			t.Errorf("%d slots, %d stored, %v", c.Slots(), stats.Stored, err)
		}
		samples, err := c.FetchSamples(context.Background(), []int{5, 399, 5})
		if err != nil || !bytes.Equal(samples[0], servedRecord(5)) || !bytes.Equal(samples[1], servedRecord(399)) || !bytes.Equal(samples[2], servedRecord(5)) {
			t.Errorf("samples by themselves: %v", err)
		}
		if one, err := c.GetOrFetch(context.Background(), 398); err != nil || !bytes.Equal(one, servedRecord(398)) {
			t.Errorf("one sample: %v", err)
		}
	}
}

// Ensure that hits go on without a server, that what needs it says how to start it, and that a client finds a new one by itself.
func TestFetchWithoutServer(t *testing.T) {
	s := newServed(t, 100, "all")
	c := s.dial()
	wantFetch(t, c, rand.Perm(50))
	s.kill()
	wantFetch(t, c, rand.Perm(50))
	err := c.Fetch(context.Background(), []int{1, 70}, make([]byte, 2*servedBytes), servedBytes)
	if !errors.Is(err, stocclient.ErrNoServer) || !strings.Contains(err.Error(), "stocached serve -c") {
		t.Error(err)
	}
	if _, err := stocclient.Dial(context.Background(), "pets", stocclient.DialOptions{SocketsDir: s.sockets}); !errors.Is(err, stocclient.ErrNoServer) || !strings.Contains(err.Error(), "stocached serve -c") {
		t.Error(err)
	}
	s.start()
	wantFetch(t, c, rand.Perm(60))
	s.kill()
	s.start()
	wantFetch(t, c, rand.Perm(100)) // whose connection ended, and who does not know it yet perhaps
	if stats, err := c.Stats(); err != nil || stats.Stored != 100 {
		t.Errorf("%d stored, %v: the second server should have found the first one's", stats.Stored, err)
	}
}

// Ensure that a stopped server holds nobody up for longer than they want to wait, and writes into no buffer that was given up.
func TestFetchFromAStoppedServer(t *testing.T) {
	s := newServed(t, 100, "4300kB")
	c := s.dial()
	wantFetch(t, c, []int{1})
	if err := s.process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	dst := make([]byte, 100*servedBytes)
	began := time.Now()
	if err := c.Fetch(ctx, rand.Perm(100), dst, servedBytes); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	wantFetch(t, c, []int{1}) // a hit
	before := bytes.Clone(dst)
	if _, err := stocclient.Dial(context.Background(), "pets", stocclient.DialOptions{SocketsDir: s.sockets, Timeout: 50 * time.Millisecond}); !errors.Is(err, stocclient.ErrNoServer) {
		t.Errorf("dial: %v", err)
	}
	if err := s.process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wantFetch(t, c, rand.Perm(100))
	if !bytes.Equal(before, dst) {
		t.Error("the buffer of a fetch that had ended was written to")
	}
}

// Ensure that a client is told when the data behind its cache is other data by now, and that a new handle gets that.
func TestFetchAfterTheDataChanged(t *testing.T) {
	s := newServed(t, 100, "all")
	c := s.dial()
	wantFetch(t, c, rand.Perm(50))
	s.write(101)
	var failed *stocclient.FetchError
	if err := c.Fetch(context.Background(), []int{1, 60, 2}, make([]byte, 3*servedBytes), servedBytes); !errors.As(err, &failed) || len(failed.Failures) != 1 ||
		failed.Failures[0].Code != control.CodeChanged || failed.Failures[0].Index != 60 || failed.Failures[0].Position != 1 || !strings.Contains(err.Error(), "records.bin") {
		t.Errorf("under the server: %v", err)
	}
	s.kill()
	s.start()
	if err := c.Fetch(context.Background(), []int{60}, make([]byte, servedBytes), servedBytes); !errors.Is(err, stocclient.ErrReplaced) {
		t.Errorf("under the old handle: %v", err)
	}
	wantFetch(t, c, rand.Perm(50))
	c = s.dial()
	if c.Samples() != 101 {
		t.Errorf("%d samples", c.Samples())
	}
	wantFetch(t, c, rand.Perm(101))
}

func TestFetchRefuses(t *testing.T) {
	s := newServed(t, 100, "all")
	var remote *stocclient.RemoteError
	if _, err := stocclient.Dial(context.Background(), "cats", stocclient.DialOptions{SocketsDir: s.sockets}); !errors.As(err, &remote) || remote.Code != control.CodeNotFound ||
		!strings.Contains(err.Error(), "it has: pets") {
		t.Error(err)
	}
	c := s.dial()
	for _, i := range []int{-1, 100} {
		if err := c.Fetch(context.Background(), []int{i}, make([]byte, servedBytes), servedBytes); !errors.Is(err, stocclient.ErrIndex) {
			t.Error(err)
		}
		if _, err := c.FetchSamples(context.Background(), []int{i}); !errors.Is(err, stocclient.ErrIndex) {
			t.Error(err)
		}
		if _, err := c.Prefetch(context.Background(), []int{i}); !errors.Is(err, stocclient.ErrIndex) {
			t.Error(err)
		}
	}
	if err := c.Fetch(context.Background(), []int{1, 2}, make([]byte, servedBytes), servedBytes); !errors.Is(err, stocclient.ErrSchema) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("had enough")
	cancel(cause)
	if err := c.Fetch(ctx, []int{1}, make([]byte, servedBytes), servedBytes); !errors.Is(err, cause) {
		t.Errorf("a fetch with a context that has ended: %v", err)
	}
	c.Close()
	if err := c.Fetch(context.Background(), []int{1}, make([]byte, servedBytes), servedBytes); !errors.Is(err, stocclient.ErrClosed) {
		t.Error(err)
	}
}

func TestPrefetch(t *testing.T) {
	s := newServed(t, 100, "all")
	c := s.dial()
	wantFetch(t, c, []int{0, 1, 2})
	if queued, err := c.Prefetch(context.Background(), []int{0, 1, 2, 3, 4, 5}); queued != 3 || err != nil {
		t.Errorf("%d queued, %v", queued, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if stats, err := c.Stats(); err != nil || stats.Ready == 6 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("they never came")
		}
	}
}

// Ensure that a server that is killed again and again, in the middle of everything, tears and loses nothing: clients get right bytes or ErrNoServer, hits go on, and the next
// server finds what the ones before have stored.
func TestServerKilledUnderLoad(t *testing.T) {
	const n, kills = 3000, 50
	s := newServed(t, n, "all")
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var fetched, refused atomic.Int64
	for range 3 {
		c := s.dial()
		clients.Go(func() {
			dst := make([]byte, 50*servedBytes)
			for {
				select {
				case <-stop:
					return
				default:
				}
				indices := rand.Perm(n)[:50]
				switch err := c.Fetch(context.Background(), indices, dst, servedBytes); {
				case errors.Is(err, stocclient.ErrNoServer):
					refused.Add(1)
					time.Sleep(time.Millisecond)
					continue
				case err != nil:
					t.Error(err)
					return
				}
				fetched.Add(1)
				for k, i := range indices {
					if !bytes.Equal(dst[k*servedBytes:][:servedBytes], servedRecord(i)) {
						t.Errorf("sample %d came wrong", i)
						return
					}
				}
			}
		})
	}
	observer, err := stocclient.Attach(filepath.Join(s.segments, "pets"), stocclient.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer observer.Close()
	busy := 0
	for range kills {
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		before, err := observer.Stats()
		if err != nil {
			t.Fatal(err)
		}
		s.kill()
		if after, err := observer.Stats(); err != nil || after.Ready < before.Ready {
			t.Fatalf("%d samples before, %d after a kill, %v", before.Ready, after.Ready, err)
		} else if after.Ready < n {
			busy++
		} else if r, err := observer.Clear(context.Background()); err != nil || r != stocclient.Stored { // so that there is something to do for the next ones
			t.Fatal(r, err)
		}
		s.start()
	}
	close(stop)
	clients.Wait()
	c := s.dial()
	wantFetch(t, c, rand.Perm(n))
	v, err := c.Verify(0, n)
	if err != nil || v.Corrupt != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	all, err := c.Clients()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Claims != 0 {
			t.Errorf("client record %d still lists %d claims", one.Record, one.Claims)
		}
	}
	t.Logf("%d kills, %d of them while samples were missing; %d fetches, %d refused", kills, busy, fetched.Load(), refused.Load())
	if busy < kills/4 || fetched.Load() == 0 {
		t.Error("that shows little")
	}
}
