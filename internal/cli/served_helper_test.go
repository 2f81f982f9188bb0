package cli

import (
	"bytes"
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
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
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

// served is a server process of a test, over records, or files with the same bytes.
type served struct {
	t        *testing.T
	folder   string // the folder of its configuration and data
	path     string // the path of its configuration
	records  string // the file or folder of its source
	sockets  string
	segments string
	log      string // log of the processes that have ended
	process  *exec.Cmd

	flooded time.Time // when a client that sends without end stops
}

// newFolder returns a server without a configuration.
func newFolder(t *testing.T) *served {
	t.Helper()
	dir := t.TempDir()
	s := &served{t: t, folder: dir, segments: tmpfs.Folder(t), path: filepath.Join(dir, "config.yaml"),
		records: filepath.Join(dir, "records"), sockets: filepath.Join(dir, "run"), log: filepath.Join(dir, "log")}
	t.Cleanup(func() {
		if t.Failed() && s.process != nil {
			t.Logf("the log of the server:\n%s", s.said())
		}
	})
	return s
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

// newServedCaches starts a server of several caches. prepare makes their data in its folder.
func newServedCaches(t *testing.T, prepare func(folder string), caches ...string) *served {
	t.Helper()
	s := newFolder(t)
	prepare(s.folder)
	text := "caches:\n"
	for _, c := range caches {
		text += fmt.Sprintf("  - {dir: %s, %s}\n", s.segments, c)
	}
	s.configure(text)
	s.start()
	return s
}

// configureServed configures a server of one cache, before its data exists.
func configureServed(t *testing.T, cache string) *served {
	t.Helper()
	s := newFolder(t)
	s.configure(fmt.Sprintf("caches: [{name: %s, dir: %s, %s}]\n", servedName, s.segments, cache))
	return s
}

// configure writes a configuration, and adds the sockets if it has none.
func (s *served) configure(text string) {
	s.t.Helper()
	if !strings.Contains(text, "sockets:") {
		text += fmt.Sprintf("sockets: {dir: %q}\n", s.sockets)
	}
	fatal.If(s.t, os.WriteFile(s.path, []byte(text), 0o600))
}

// configuration returns the configuration, with old replaced by new.
func (s *served) configuration(old, new string) string {
	s.t.Helper()
	text, err := os.ReadFile(s.path)
	if err != nil || !strings.Contains(string(text), old) {
		s.t.Fatalf("no %q in %s, %v", old, text, err)
	}
	return strings.Replace(string(text), old, new, 1)
}

// write writes n records into one file.
func (s *served) write(n int) {
	s.t.Helper()
	var all bytes.Buffer
	for i := range n {
		all.Write(servedRecord(i))
	}
	fatal.If(s.t, os.WriteFile(s.records, all.Bytes(), 0o600))
}

// writeTree writes n files with the bytes of records into a folder.
func (s *served) writeTree(n int, record func(i int) []byte) {
	s.t.Helper()
	fatal.If(s.t, os.MkdirAll(s.records, 0o700))
	for i := range n {
		fatal.If(s.t, os.WriteFile(s.file(i), record(i), 0o600))
	}
}

// file returns the path of file i of a tree.
func (s *served) file(i int) string { return filepath.Join(s.records, fmt.Sprintf("%06d.bin", i)) }

// start starts the server, waits until it serves, and returns its line.
func (s *served) start(environment ...string) string {
	s.t.Helper()
	out := s.launch(environment...)
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil || !strings.HasPrefix(string(line[:n]), "serving") {
		s.t.Fatalf("%q, %v\n%s", line[:n], err, s.said())
	}
	return string(line[:n])
}

// launch starts the server, with variables in its environment, and returns its output.
func (s *served) launch(environment ...string) io.Reader {
	s.t.Helper()
	return s.run(program("serve", "-c", s.path), environment...)
}

// run starts a process as the server.
func (s *served) run(process *exec.Cmd, environment ...string) io.Reader {
	s.t.Helper()
	log := fatal.Value(os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(s.t)
	defer log.Close()
	s.process = process
	s.process.Env = append(s.process.Env, environment...)
	s.process.Stderr = log
	out := fatal.Value(s.process.StdoutPipe())(s.t)
	fatal.If(s.t, s.process.Start())
	s.t.Cleanup(func() { process.Process.Kill(); process.Wait() })
	return out
}

// said returns the log of all processes of this server.
func (s *served) said() string {
	text, err := os.ReadFile(s.log)
	expect.NoError(s.t, err)
	return string(text)
}

// says waits for a text in the log.
func (s *served) says(text string) {
	s.t.Helper()
	fatal.Until(s.t, "the log says "+text, func() bool { return strings.Contains(s.said(), text) })
}

// hangup has the server read its configuration again, and waits for a text that the log gets.
func (s *served) hangup(text string) {
	s.t.Helper()
	before := strings.Count(s.said(), text)
	fatal.If(s.t, s.process.Process.Signal(syscall.SIGHUP))
	fatal.Until(s.t, "the log says "+text+" again", func() bool { return strings.Count(s.said(), text) > before })
}

// end sends a signal, and waits until the server has ended. Only SIGKILL may be an error.
func (s *served) end(signal syscall.Signal) {
	s.t.Helper()
	fatal.If(s.t, s.process.Process.Signal(signal))
	defer time.AfterFunc(time.Minute, func() { s.process.Process.Kill() }).Stop()
	if err := s.process.Wait(); (err == nil) != (signal != syscall.SIGKILL) {
		s.t.Errorf("after %v: %v", signal, err)
	}
}

// ask sends a request to the admin socket.
func (s *served) ask(method, path, body string) (status int, answer string) {
	s.t.Helper()
	socket := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.sockets, control.AdminSocket))
		}}
	request := fatal.Value(http.NewRequest(method, "http://stocached"+path, strings.NewReader(body)))(s.t)
	reply := fatal.Value((&http.Client{Transport: socket, Timeout: 20 * time.Second}).Do(request))(s.t)
	defer reply.Body.Close()
	text := fatal.Value(io.ReadAll(reply.Body))(s.t)
	return reply.StatusCode, string(text)
}

// answers returns the answer of the admin socket.
func (s *served) answers(path string) string {
	s.t.Helper()
	status, answer := s.ask(http.MethodGet, path, "")
	fatal.Equal(s.t, status, http.StatusOK, "%s: %s", path, answer)
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
			fatal.Value(fmt.Sscan(rest, &v))(s.t)
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

// args returns a command line with the sockets of the server.
func (s *served) args(args ...string) []string { return append(args, "--sockets", s.sockets) }

// warm fills a cache, which must succeed, and returns the JSON.
func (s *served) warm(name string, flags ...string) jsonObject {
	s.t.Helper()
	return decode[jsonObject](s.t, ok(s.t, s.args(append([]string{"warm", name, "--json"}, flags...)...)...))
}

// attach attaches to the file of a cache of the server.
func (s *served) attach(name string) *cache.Cache {
	return newClient(s.t, filepath.Join(s.segments, name))
}

// dial makes a client that soon gives up if the server is away.
func (s *served) dial() *stocclient.Served {
	s.t.Helper()
	return s.dialFor(servedName, 2*time.Second)
}

// dialFor makes a client of a cache, which waits so long for a server; 0: as long as programs do.
func (s *served) dialFor(cache string, timeout time.Duration) *stocclient.Served {
	s.t.Helper()
	c, err := stocclient.Dial(context.Background(), cache,
		stocclient.DialOptions{SocketsDir: s.sockets, Timeout: timeout})
	fatal.If(s.t, err)
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

// noClaims checks that no sample is claimed.
func noClaims(t *testing.T, c *stocclient.Cache) {
	t.Helper()
	all := fatal.Value(c.Inspect().Clients())(t)
	for _, one := range all {
		expect.Equal(t, one.Claims, 0, "claims of client record %d", one.Record)
	}
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

// evictingServer starts a server with a cache of about so many slots. source: keys of its source; the records are in
// the file `records`.
func evictingServer(t *testing.T, n, slots int, policy, source string) *served {
	t.Helper()
	size, err := (&shm.Options{Samples: uint64(n), SampleBytes: servedBytes, Slots: uint64(slots),
		Policy: shm.PolicyCost}).SegmentBytes()
	fatal.If(t, err)
	s := configureServed(t, fmt.Sprintf("size: %d, policy: %s, parallel: 4, source: {kind: raw, "+
		"sample_bytes: %d, %s}", size, policy, servedBytes, source))
	s.write(n)
	s.start()
	return s
}

// raggedRecord returns sample i of a source of samples of different sizes, which differs from all others.
func raggedRecord(i int) []byte { return servedRecord(i)[:100+i*7919%(servedBytes-99)] }

// raggedServer starts a server of n samples of different sizes, with room for about so many of them. source: as
// evictingServer has it; the records are in the folder.
func raggedServer(t *testing.T, n, fit int, policy, source string) *served {
	t.Helper()
	bytes := 0
	for i := range n {
		bytes += len(raggedRecord(i))
	}
	g, err := shm.NewGeometry(shm.FlagVariable, shm.PolicyLRU, uint64(n), 1, shm.UnitBytes, shm.DefaultClientRecords, 0)
	fatal.If(t, err)
	size := g.PayloadOffset + uint64(bytes/n*fit) + 1<<12 // the slot table takes space, too
	s := configureServed(t, fmt.Sprintf("size: %d, policy: %s, parallel: 4, source: {kind: dir, %s}",
		size, policy, source))
	s.writeTree(n, raggedRecord)
	s.start()
	return s
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
