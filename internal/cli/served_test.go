package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that many goroutines and clients get every sample, with or without a slot, and that
// samples with a slot were stored once.
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
		if err != nil || int(stats.Stored) != c.Info().Slots || (c.Info().Slots == n) != (size == "all") || c.Info().Slots < 20 {
			t.Errorf("%d slots, %d stored, %v", c.Info().Slots, stats.Stored, err)
		}
		samples, err := c.FetchSamples(context.Background(), []int{5, 399, 5})
		if err != nil || !bytes.Equal(samples[0], servedRecord(5)) || !bytes.Equal(samples[1], servedRecord(399)) ||
			!bytes.Equal(samples[2], servedRecord(5)) {
			t.Errorf("samples by themselves: %v", err)
		}
		if one, err := c.GetOrFetch(context.Background(), 398); err != nil || !bytes.Equal(one, servedRecord(398)) {
			t.Errorf("one sample: %v", err)
		}
	}
}

// Ensure that hits go on without a server, that errors of other calls say how to start one, and
// that a client finds a new server by itself.
func TestFetchWithoutServer(t *testing.T) {
	t.Parallel()
	s := newServed(t, 100, "all")
	c := s.dial()
	wantFetch(t, c, rand.Perm(50))
	s.kill()
	wantFetch(t, c, rand.Perm(50))
	expect.NoError(t, c.Fill(context.Background(), []int{5, 3}))
	err := c.Fetch(context.Background(), []int{1, 70}, make([]byte, 2*servedBytes), servedBytes)
	expect.Error(t, err, stocclient.ErrNoServer, "stocached serve -c")
	if _, err := stocclient.Dial(context.Background(), "pets", stocclient.DialOptions{SocketsDir: s.sockets,
		Timeout: 100 * time.Millisecond}); !errors.Is(err, stocclient.ErrNoServer) ||
		!strings.Contains(err.Error(), "stocached serve -c") {
		t.Error(err)
	}
	s.start()
	wantFetch(t, c, rand.Perm(60))
	s.kill()
	s.start()
	wantFetch(t, c, rand.Perm(100)) // its connection has ended, perhaps without its knowledge
	if stats, err := c.Stats(); err != nil || stats.Stored != 100 {
		t.Errorf("%d stored, %v: the second server should have found the first one's", stats.Stored, err)
	}
}

// Ensure that a stopped server blocks no caller beyond its deadline, and writes into no buffer that
// the caller has back.
func TestFetchFromAStoppedServer(t *testing.T) {
	s := newServed(t, 100, "4300kB")
	c := s.dial()
	wantFetch(t, c, []int{1})
	patient := s.dialFor(servedName, 50*time.Millisecond)
	pause(t, s.process)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	dst := make([]byte, 100*servedBytes)
	began := time.Now()
	if err := c.Fetch(ctx, rand.Perm(100), dst, servedBytes); !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	wantFetch(t, c, []int{1}) // a hit
	before := bytes.Clone(dst)
	if _, err := stocclient.Dial(context.Background(), "pets",
		stocclient.DialOptions{SocketsDir: s.sockets, Timeout: 50 * time.Millisecond}); !errors.Is(err,
		stocclient.ErrNoServer) {
		t.Errorf("dial: %v", err)
	}
	minutes, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if _, err := patient.GetOrFetch(minutes, 2); !errors.Is(err, stocclient.ErrNoServer) ||
		!errors.Is(err, stocclient.ErrTimeout) {
		t.Errorf("without a deadline: %v", err)
	}
	fatal.If(t, s.process.Process.Signal(syscall.SIGCONT))
	wantFetch(t, c, rand.Perm(100))
	if !bytes.Equal(before, dst) {
		t.Error("the buffer of a fetch that had ended was written to")
	}
}

// Ensure that a client gets an error when the data of its cache has changed, and that a new handle
// gets the new data.
func TestFetchAfterTheDataChanged(t *testing.T) {
	s := newServed(t, 100, "all")
	c := s.dial()
	wantFetch(t, c, rand.Perm(50))
	s.write(101)
	var failed *stocclient.FetchError
	if err := c.Fetch(context.Background(), []int{1, 60, 2}, make([]byte, 3*servedBytes),
		servedBytes); !errors.As(err, &failed) || len(failed.Failures) != 1 ||
		failed.Failures[0].Code != control.CodeChanged || failed.Failures[0].Index != 60 ||
		failed.Failures[0].Position != 1 || !strings.Contains(err.Error(), s.records) {
		t.Errorf("under the server: %v", err)
	}
	health := func(words ...string) {
		t.Helper()
		code, stdout, stderr := cli(t, "health", "--sockets", s.sockets)
		for _, w := range words {
			if code != exitOK || !strings.Contains(stdout+stderr, w) {
				t.Errorf("health ends with %d, no %q in %s%s", code, w, stdout, stderr)
			}
		}
	}
	health("serves, but not everything is well", "cache pets: reads fail (changed): first ", s.records)
	_, out, stderr := cli(t, "health", "pets", "--sockets", s.sockets)
	contains(t, out+stderr, "cache pets of the server on "+s.sockets+" serves, but not everything is well",
		"stocached: cache pets: reads fail (changed): first ")
	s.kill()
	s.start()
	health("is well and serves")
	if err := c.Fetch(context.Background(), []int{60}, make([]byte, servedBytes), servedBytes); !errors.Is(err,
		stocclient.ErrReplaced) {
		t.Errorf("under the old handle: %v", err)
	}
	wantFetch(t, c, rand.Perm(50))
	c = s.dial()
	expect.Equal(t, c.Info().Samples, 101, "samples")
	wantFetch(t, c, rand.Perm(101))
}

func TestFetchRefuses(t *testing.T) {
	s := newServed(t, 100, "all")
	var remote *stocclient.RemoteError
	if _, err := stocclient.Dial(context.Background(), "cats",
		stocclient.DialOptions{SocketsDir: s.sockets}); !errors.As(err, &remote) ||
		remote.Code != control.CodeNotFound ||
		!strings.Contains(err.Error(), "it has: pets") {
		t.Error(err)
	}
	c := s.dial()
	for _, i := range []int{-1, 100} {
		if err := c.Fetch(context.Background(), []int{i}, make([]byte, servedBytes), servedBytes); !errors.Is(err,
			stocclient.ErrIndex) {
			t.Error(err)
		}
		expect.Fails(c.FetchSamples(context.Background(), []int{i}))(t, stocclient.ErrIndex)
		expect.Fails(c.Prefetch(context.Background(), []int{i}))(t, stocclient.ErrIndex)
		expect.Error(t, c.Fill(context.Background(), []int{i}), stocclient.ErrIndex)
	}
	if err := c.Fetch(context.Background(), []int{1, 2}, make([]byte, servedBytes), servedBytes); !errors.Is(err,
		stocclient.ErrSchema) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("had enough")
	cancel(cause)
	expect.Error(t, c.Fetch(ctx, []int{1}, make([]byte, servedBytes), servedBytes), cause)
	c.Close()
	if err := c.Fetch(context.Background(), []int{1}, make([]byte, servedBytes), servedBytes); !errors.Is(err,
		stocclient.ErrClosed) {
		t.Error(err)
	}
}

func TestPrefetch(t *testing.T) {
	s := newServed(t, 100, "all")
	c := s.dial()
	wantFetch(t, c, []int{0, 1, 2})
	expect.Gives(c.Prefetch(context.Background(), []int{0, 1, 2, 3, 4, 5}))(t, 3)
	fatal.Until(t, "they come", func() bool { return ready(t, c.Cache) == 6 })
}

// Ensure that programs without options survive restarts of their server. A fetch waits for the next server and gets
// every sample if its server is ending, ends during the fetch, or has not started yet. A dial waits, too.
func TestFetchAcrossRestarts(t *testing.T) {
	t.Parallel()
	const n = 3000
	s := configureServed(t, fmt.Sprintf("size: 8MB, parallel: 8, source: {kind: raw, path: records, sample_bytes: "+
		"%d, limits: {latency: 2ms}}", servedBytes))
	s.write(n)
	s.start()
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		c := s.dialFor("pets", 0)
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				wantFetch(t, c, rand.Perm(n)[:50])
			}
		})
	}
	for k := range 6 {
		time.Sleep(150 * time.Millisecond)
		s.end([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[k%2])
		late := make(chan error, 1)
		go func() {
			c, err := stocclient.Dial(context.Background(), "pets", stocclient.DialOptions{SocketsDir: s.sockets})
			if err == nil {
				err = c.Close()
			}
			late <- err
		}()
		time.Sleep(time.Duration(100+2000*(k/5)) * time.Millisecond) // the last time for long
		s.start()
		expect.NoError(t, <-late)
	}
	close(stop)
	readers.Wait()
}

// Ensure that a fetched sample counts as one miss, and as nothing else.
func TestFetchCountsOnce(t *testing.T) {
	for _, size := range []string{"all", "4300kB"} { // only some fit
		s := newServed(t, 400, size)
		c := s.dial()
		for epoch := range 2 {
			for k := range 8 {
				wantFetch(t, c, first(400)[k*50:][:50])
			}
			stats, err := c.Stats()
			hits := uint64(epoch * min(c.Info().Slots, 400))
			if err != nil || stats.Hits != hits || stats.Misses != uint64(400*(epoch+1))-hits {
				t.Errorf("size %s, epoch %d: %d hits, %d misses, %v; there are %d slots", size, epoch, stats.Hits,
					stats.Misses, err, c.Info().Slots)
			}
		}
		var there []int // several readers have decided which ones
		for i := range c.Ready() {
			if there = append(there, i); len(there) == 3 {
				break
			}
		}
		expect.Works(c.FetchSamples(context.Background(), there))(t)
		if stats, err := c.Stats(); err != nil || stats.Hits != uint64(min(c.Info().Slots, 400)+3) {
			t.Errorf("samples by themselves: %d hits, %v", stats.Hits, err)
		}
	}
}

// Ensure that a server that is killed again and again under load tears and loses nothing. Clients
// get right bytes or ErrNoServer, hits go on, and the next server finds all samples that earlier
// ones have stored.
func TestServerKilledUnderLoad(t *testing.T) {
	const n = 3000
	kills := killsOr(t, 50)
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
	observer := fatal.Value(stocclient.Attach(filepath.Join(s.segments, servedName), stocclient.AttachOptions{}))(t)
	defer observer.Close()
	busy := 0
	for range kills {
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		before := fatal.Value(observer.Stats())(t)
		s.kill()
		if after, err := observer.Stats(); err != nil || after.Ready < before.Ready {
			t.Fatalf("%d samples before, %d after a kill, %v", before.Ready, after.Ready, err)
		} else if after.Ready < n {
			busy++
		} else if r, err := observer.Clear(context.Background()); err != nil ||
			r != stocclient.Stored { // so that the next ones have samples to fill
			t.Fatal(r, err)
		}
		s.start()
	}
	close(stop)
	clients.Wait()
	c := s.dial()
	wantFetch(t, c, rand.Perm(n))
	v, err := c.Inspect().Verify(0, n)
	if err != nil || v.Corrupt != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	noClaims(t, c.Cache)
	t.Logf("%d kills, %d of them while samples were missing; %d fetches, %d refused", kills, busy, fetched.Load(),
		refused.Load())
	if busy < kills/4 || fetched.Load() == 0 {
		t.Error("that shows little")
	}
}
