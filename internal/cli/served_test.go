package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
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

// servedRecord returns sample i of the source of these tests, which differs from all others.
func servedRecord(i int) []byte {
	data := make([]byte, servedBytes)
	for k := range data {
		data[k] = byte(i>>(8*(k%2))*7 + k + k>>8)
	}
	return data
}

// servedName is the name of the cache of a served.
var servedName = "pets"

// served is a server process over records, or files with the same bytes.
type served struct {
	t       *testing.T
	path    string // of its configuration
	records string // the file or folder of its source
	sockets string
	log     string // log of the processes that have ended
	process *exec.Cmd

	segments string
	flooded  time.Time // when a client that sends without end stops
}

// newServed configures and starts a server over n records. size: of the cache.
func newServed(t *testing.T, n int, size string) *served {
	t.Helper()
	s := configureServed(t, fmt.Sprintf("size: %s, source: {kind: raw, path: records, sample_bytes: %d}", size,
		servedBytes))
	s.write(n)
	s.start()
	return s
}

// configureServed configures a server of one cache, before its data exists.
func configureServed(t *testing.T, cache string) *served {
	t.Helper()
	dir := t.TempDir()
	s := &served{t: t, segments: tmpfs(t), path: filepath.Join(dir, "config.yaml"),
		records: filepath.Join(dir, "records"), sockets: filepath.Join(dir, "run"), log: filepath.Join(dir, "log")}
	text := fmt.Sprintf("caches: [{name: %s, dir: %s, %s}]\nsockets: {dir: %q}\n", servedName, s.segments, cache, s.sockets)
	if err := os.WriteFile(s.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && s.process != nil {
			t.Logf("the log of the server:\n%s", s.said())
		}
	})
	return s
}

// write writes n records into one file.
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

// start starts the server and waits until it serves.
func (s *served) start() {
	s.t.Helper()
	out := s.launch()
	line := make([]byte, 200)
	if n, err := out.Read(line); err != nil || !strings.HasPrefix(string(line[:n]), "serving") {
		s.t.Fatalf("%q, %v\n%s", line[:n], err, s.said())
	}
}

// launch starts the server, with variables in its environment, and returns its output.
func (s *served) launch(environment ...string) io.Reader {
	s.t.Helper()
	log, err := os.OpenFile(cmp.Or(s.log, os.DevNull), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.process = program("serve", "-c", s.path)
	s.process.Env = append(s.process.Env, environment...)
	s.process.Stderr = log
	out, err := s.process.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	process := s.process
	s.t.Cleanup(func() { process.Process.Kill(); process.Wait() })
	return out
}

// said returns the log of all processes of this server.
func (s *served) said() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Error(err)
	}
	return string(text)
}

// ask sends a request to the admin socket.
func (s *served) ask(method, path, body string) (status int, answer string) {
	s.t.Helper()
	socket := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.sockets, control.AdminSocket))
		}}
	request, err := http.NewRequest(method, "http://stocached"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	reply, err := (&http.Client{Transport: socket, Timeout: 20 * time.Second}).Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

// answers returns the answer of the admin socket.
func (s *served) answers(path string) string {
	s.t.Helper()
	status, answer := s.ask(http.MethodGet, path, "")
	if status != http.StatusOK {
		s.t.Fatalf("%s: %d\n%s", path, status, answer)
	}
	return answer
}

// metric returns one number of the server, of the cache or of all with these labels.
func (s *served) metric(name, labels string) float64 {
	s.t.Helper()
	text, of := s.answers("/metrics"), name+"{"+labels+"} "
	if labels == "" {
		of = name + " "
	}
	for line := range strings.Lines(text) {
		var v float64
		if rest, ok := strings.CutPrefix(line, of); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				s.t.Fatal(err)
			}
			return v
		}
	}
	s.t.Fatalf("no %s{%s} in\n%s", name, labels, text)
	return 0
}

// kill sends SIGKILL to the server, and waits until it has ended.
func (s *served) kill() {
	s.process.Process.Kill()
	s.process.Wait()
}

// dial makes a client that soon gives up if the server is away.
func (s *served) dial() *stocclient.Served {
	s.t.Helper()
	c, err := stocclient.Dial(context.Background(), servedName,
		stocclient.DialOptions{SocketsDir: s.sockets, Timeout: 2 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// servedChildren are further programs that a process of these tests can be, beside stocached and
// child.
var servedChildren = map[string]func(args []string) error{"fetch": fetchAll, "stay": stay, "knock": knock, "rank": rank}

// fetchAll is "fetch SOCKETS": a client that fetches every sample of the cache and ends.
func fetchAll(args []string) error {
	c, err := stocclient.Dial(context.Background(), servedName, stocclient.DialOptions{SocketsDir: args[0]})
	if err != nil {
		return err
	}
	_, err = c.FetchSamples(context.Background(), rand.Perm(c.Info().Samples))
	return errors.Join(err, c.Close())
}

// first returns the indices 0..n-1.
func first(n int) []int { return between(0, n) }

// between returns the indices from..to-1.
func between(from, to int) (indices []int) {
	for i := from; i < to; i++ {
		indices = append(indices, i)
	}
	return indices
}

// ready counts the cached samples, and compares each.
func ready(t *testing.T, c *stocclient.Cache) int { return readyOf(t, c, servedRecord) }

// readyOf is ready for other samples.
func readyOf(t *testing.T, c *stocclient.Cache, record func(i int) []byte) (n int) {
	t.Helper()
	for i, data := range c.Ready() {
		n++
		if !bytes.Equal(data, record(i)) {
			t.Errorf("sample %d is wrong", i)
		}
	}
	if s, err := c.Stats(); err != nil || int(s.Ready) != n || s.Corrupt != 0 || s.Lost != 0 {
		t.Errorf("%d samples are there, stats are %+v, %v", n, s, err)
	}
	return n
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
	err := c.Fetch(context.Background(), []int{1, 70}, make([]byte, 2*servedBytes), servedBytes)
	if !errors.Is(err, stocclient.ErrNoServer) || !strings.Contains(err.Error(), "stocached serve -c") {
		t.Error(err)
	}
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

// Ensure that clients without options wait for a server that restarts, also clients that start during the restart.
func TestFetchOverARestart(t *testing.T) {
	t.Parallel()
	s := newServed(t, 100, "all")
	c, err := stocclient.Dial(context.Background(), servedName, stocclient.DialOptions{SocketsDir: s.sockets})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.kill()
	ended := make(chan error, 2)
	go func() {
		_, err := c.FetchSamples(context.Background(), []int{7})
		ended <- err
	}()
	go func() {
		c, err := stocclient.Dial(context.Background(), servedName, stocclient.DialOptions{SocketsDir: s.sockets})
		if err == nil {
			err = c.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatal("a call gave up:", err)
	case <-time.After(2500 * time.Millisecond):
	}
	s.start()
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
}

// Ensure that a stopped server blocks no caller beyond its deadline, and writes into no buffer that
// the caller has back.
func TestFetchFromAStoppedServer(t *testing.T) {
	s := newServed(t, 100, "4300kB")
	c := s.dial()
	wantFetch(t, c, []int{1})
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
	if err := s.process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
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
	if c.Info().Samples != 101 {
		t.Errorf("%d samples", c.Info().Samples)
	}
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
		if _, err := c.FetchSamples(context.Background(), []int{i}); !errors.Is(err, stocclient.ErrIndex) {
			t.Error(err)
		}
		if _, err := c.Prefetch(context.Background(), []int{i}); !errors.Is(err, stocclient.ErrIndex) {
			t.Error(err)
		}
	}
	if err := c.Fetch(context.Background(), []int{1, 2}, make([]byte, servedBytes), servedBytes); !errors.Is(err,
		stocclient.ErrSchema) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("had enough")
	cancel(cause)
	if err := c.Fetch(ctx, []int{1}, make([]byte, servedBytes), servedBytes); !errors.Is(err, cause) {
		t.Errorf("a fetch with a context that has ended: %v", err)
	}
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

// killsVariable is how often a test kills, instead of as often as it says.
const killsVariable = "STOCACHED_TEST_KILLS"

func killsOr(t *testing.T, kills int) int {
	t.Helper()
	if text := os.Getenv(killsVariable); text != "" {
		if _, err := fmt.Sscan(text, &kills); err != nil || kills < 1 {
			t.Fatalf("%s=%q", killsVariable, text)
		}
	}
	return kills
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
	observer, err := stocclient.Attach(filepath.Join(s.segments, servedName), stocclient.AttachOptions{})
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
	all, err := c.Inspect().Clients()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Claims != 0 {
			t.Errorf("client record %d still lists %d claims", one.Record, one.Claims)
		}
	}
	t.Logf("%d kills, %d of them while samples were missing; %d fetches, %d refused", kills, busy, fetched.Load(),
		refused.Load())
	if busy < kills/4 || fetched.Load() == 0 {
		t.Error("that shows little")
	}
}
