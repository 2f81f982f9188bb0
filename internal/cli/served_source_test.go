package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

// writeTree writes n files with the bytes of records into a folder.
func (s *served) writeTree(n int) {
	s.t.Helper()
	s.writeRecords(n, servedRecord)
}

func (s *served) writeRecords(n int, record func(i int) []byte) {
	s.t.Helper()
	if err := os.MkdirAll(s.records, 0o700); err != nil {
		s.t.Fatal(err)
	}
	for i := range n {
		if err := os.WriteFile(s.file(i), record(i), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// file returns the path of file i of a tree.
func (s *served) file(i int) string { return filepath.Join(s.records, fmt.Sprintf("%06d.bin", i)) }

// startBound starts the server so that permissions of files apply to it, even as root.
func (s *served) startBound() {
	s.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // forever: no other code may use this thread
		for _, capability := range []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH} {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && os.Geteuid() == 0 {
				s.t.Errorf("a capability cannot be dropped: %v", err)
			}
		}
		s.start()
	}()
	<-done
}

// failures fetches samples one by one and returns the failure of each, "" for those that came.
func (s *served) failures(c *stocclient.Served, indices []int) map[int]stocclient.FetchFailure {
	s.t.Helper()
	samples, err := c.FetchSamples(context.Background(), indices)
	var failed *stocclient.FetchError
	if err != nil && !errors.As(err, &failed) {
		s.t.Fatal(err)
	}
	wrong := map[int]stocclient.FetchFailure{}
	if failed != nil {
		for _, f := range failed.Failures {
			wrong[f.Index] = f
		}
	}
	for k, i := range indices {
		if _, failed := wrong[i]; failed != (samples[k] == nil) || !failed &&
			!bytes.Equal(samples[k], servedRecord(i)) {
			s.t.Errorf("sample %d: %d bytes, %+v", i, len(samples[k]), wrong[i])
		}
	}
	return wrong
}

// Ensure that each failure of a served file is reported with its code, its reason and its name.
// Wrong bytes are never served, the rest of the batch comes, and a repaired file is read.
func TestServedFilesThatFail(t *testing.T) {
	const n = 14
	s := configureServed(t, "source: {kind: dir, path: records}")
	s.writeTree(n)
	s.startBound()
	c := s.dial()
	s.failures(c, []int{0, 1}) // from here on hits
	stat := func(i int) time.Time {
		info, err := os.Stat(s.file(i))
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	replace := func(i int, by func(path string) error) error { return errors.Join(os.Remove(s.file(i)), by(s.file(i))) }
	other := bytes.Repeat([]byte("another file's bytes"), servedBytes/20)
	later := time.Now().Add(time.Second)
	breaks := map[int]struct {
		do   func(path string) error
		code control.Code
		text string
		kind string
	}{
		2: {func(p string) error { return os.Rename(p, s.records+".away") }, control.CodeRead, "no such file", "missing"},
		3: {func(p string) error {
			return os.Truncate(p, 100)
		}, control.CodeChanged, "had 3000 bytes and has 100", "changed"},
		4: {func(p string) error {
			return os.Truncate(p, 2*servedBytes)
		}, control.CodeChanged, "had 3000 bytes and has 6000", "changed"},
		5: {func(p string) error {
			return os.Chtimes(p, later, later)
		}, control.CodeChanged, "was written to", "changed"},
		// as large as before
		6: {func(p string) error {
			return os.WriteFile(p, other, 0o600)
		}, control.CodeChanged, "was written to", "changed"},
		7: {func(p string) error { return os.Chmod(p, 0) }, control.CodeRead, "permission denied", "denied"},
		8: {func(string) error {
			return replace(8, func(p string) error { return unix.Mkfifo(p, 0o600) })
		}, control.CodeChanged, "not a regular file", "changed"},
		9: {func(string) error {
			return replace(9, func(p string) error { return os.Mkdir(p, 0o700) })
		}, control.CodeChanged, "not a regular file", "changed"},
		10: {func(string) error {
			return replace(10, func(p string) error { return os.Symlink("nowhere", p) })
		}, control.CodeRead, "no such file", "missing"},
		11: {func(string) error {
			return replace(11, func(p string) error { return os.Symlink(filepath.Base(s.file(12)), p) })
		}, control.CodeChanged, "was written to", "changed"},
		0: {func(p string) error { return os.WriteFile(p, other, 0o600) }, 0, "", ""}, // they are in the cache
		1: {os.Remove, 0, "", ""},
	}
	before := stat(11)
	if err := os.Chtimes(s.file(12), before.Add(time.Second), before.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{"changed": 1} // sample 12
	for i, b := range breaks {
		if err := b.do(s.file(i)); err != nil {
			t.Fatal(i, err)
		}
		if b.kind != "" {
			kinds[b.kind]++
		}
	}
	wrong := s.failures(c, first(n))
	for i, b := range breaks {
		f, failed := wrong[i]
		if failed != (b.code != 0) || f.Code != b.code || !strings.Contains(f.Text, b.text) || failed &&
			!strings.Contains(f.Text, s.file(i)) {
			t.Errorf("file %d: %+v; want %v with %q and %s", i, f, b.code, b.text, s.file(i))
		}
	}
	if len(wrong) != len(breaks)-2+1 || wrong[12].Code != control.CodeChanged {
		t.Errorf("%d failed: %+v", len(wrong), wrong)
	}
	for kind, want := range kinds {
		if got := int(s.metric("stocached_source_errors_total",
			fmt.Sprintf(`cache="pets",kind=%q`, kind))); got != want {
			t.Errorf("%d errors of the kind %s were counted, want %d", got, kind, want)
		}
	}
	if stats, err := c.Stats(); err != nil || stats.Ready != 3 { // 0, 1 and 13
		t.Errorf("%d samples are there, %v", stats.Ready, err)
	}

	// The files are as before.
	if err := errors.Join(os.Rename(s.records+".away", s.file(2)), os.Chmod(s.file(7), 0o600)); err != nil {
		t.Fatal(err)
	}
	if wrong := s.failures(c, []int{2, 7}); len(wrong) != 0 {
		t.Errorf("files that are back: %+v", wrong)
	}

	// The next server finds other data, and begins a cold cache.
	s.kill()
	for _, i := range []int{8, 9, 10} {
		os.RemoveAll(s.file(i))
	}
	s.start()
	if _, err := c.FetchSamples(context.Background(), []int{13, 6}); !errors.Is(err, stocclient.ErrReplaced) {
		t.Errorf("through the old handle: %v", err)
	}
	if c := s.dial(); c.Info().Samples != n-4 {
		t.Errorf("%d samples", c.Info().Samples)
	} else if stats, err := c.Stats(); err != nil || stats.Ready != 0 {
		t.Errorf("%d samples of the old data, %v", stats.Ready, err)
	}
}

// Ensure that a single file with all records that shrinks, disappears or changes under a server is
// refused from then on, and that cached samples stay.
func TestServedRecordsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(path string) error
		text string // "": the server goes on
	}{
		"shorter": {func(p string) error {
			return os.Truncate(p, 50*servedBytes)
		}, "had 300000 bytes and has 150000"},
		"empty": {func(p string) error { return os.Truncate(p, 0) }, "had 300000 bytes and has 0"},
		"longer": {func(p string) error {
			return os.Truncate(p, 200*servedBytes)
		}, "had 300000 bytes and has 600000"},
		"written to": {func(p string) error {
			later := time.Now().Add(time.Second)
			return os.Chtimes(p, later, later)
		}, "was written to"},
		"gone": {os.Remove, ""}, // the server has it open
		"replaced": {func(p string) error {
			return errors.Join(os.WriteFile(p+"2", []byte("other"), 0o600), os.Rename(p+"2", p))
		}, ""},
	} {
		s := newServed(t, 100, "all")
		h := s.dial()
		wantFetch(t, h, first(20))
		if err := c.do(s.records); err != nil {
			t.Fatal(err)
		}
		wrong := s.failures(h, first(60))
		for i := range 60 {
			f, failed := wrong[i]
			if want := i >= 20 && c.text != ""; failed != want || want &&
				(f.Code != control.CodeChanged || !strings.Contains(f.Text, c.text) ||
					!strings.Contains(f.Text, s.records)) {
				t.Errorf("%s: sample %d: %+v", name, i, f)
			}
		}
		s.kill()
	}
}

// Ensure that the next server keeps the cache of a file with another mode and link, and not that of a file which another
// one of the same size and time has replaced.
func TestServedFileThatIsReplaced(t *testing.T) {
	s := newServed(t, 100, "all")
	wantFetch(t, s.dial(), first(20))
	for _, c := range []struct {
		do    func()
		ready uint64
	}{
		{func() {
			if err := errors.Join(os.Chmod(s.records, 0o640), os.Link(s.records, s.records+".link")); err != nil {
				t.Fatal(err)
			}
		}, 20},
		{func() {
			data, err := os.ReadFile(s.records)
			if err != nil {
				t.Fatal(err)
			}
			sourcetest.Replace(t, s.records, data)
		}, 0},
	} {
		s.kill()
		c.do()
		s.start()
		if stats, err := s.dial().Stats(); err != nil || stats.Ready != c.ready {
			t.Errorf("%d samples are there, %v; want %d", stats.Ready, err, c.ready)
		}
	}
}

// Ensure that a server whose source does not open reports the cache, the path and the reason,
// leaves an existing cache unchanged, and starts when the source opens.
func TestServedSourceThatDoesNotOpen(t *testing.T) {
	s := newServed(t, 100, "all")
	s.kill()
	hidden := s.records + ".hidden"
	// A link, whose renames change nothing of the file.
	if err := errors.Join(os.Rename(s.records, s.records+".file"), os.Symlink(s.records+".file", s.records)); err != nil {
		t.Fatal(err)
	}
	s.start()
	c := s.dial()
	wantFetch(t, c, first(30))
	s.kill()
	for name, b := range map[string]struct {
		do   func() error
		exit int
		text string
	}{
		"missing":  {func() error { return nil }, exitNotFound, "no such file"},
		"a folder": {func() error { return os.Mkdir(s.records, 0o700) }, exitUsage, "not a regular file"},
		"truncated": {func() error {
			return os.WriteFile(s.records, make([]byte, servedBytes+1), 0o600)
		}, exitUsage, "3001"},
		"empty": {func() error { return os.WriteFile(s.records, nil, 0o600) }, exitUsage, s.records},
	} {
		if err := errors.Join(os.Rename(s.records, hidden), b.do()); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := cli(t, "serve", "-c", s.path)
		if code != b.exit {
			t.Errorf("%s: exit %d, want %d: %s", name, code, b.exit, stderr)
		}
		contains(t, stderr, "cache pets", s.records, b.text)
		if err := errors.Join(os.RemoveAll(s.records), os.Rename(hidden, s.records)); err != nil {
			t.Fatal(err)
		}
		wantFetch(t, c, first(30))
	}
	s.start()
	if stats, err := c.Stats(); err != nil || stats.Ready != 30 {
		t.Errorf("%d samples are there, %v", stats.Ready, err)
	}
	wantFetch(t, c, first(100))
}

// Ensure that a slow cache of a server does not slow down others, and that the server ends after
// the reads under way, without new ones.
func TestServedSlowSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &served{t: t, segments: tmpfs(t), path: filepath.Join(dir, "config.yaml"),
		records: filepath.Join(dir, "records"), sockets: filepath.Join(dir, "run"), log: filepath.Join(dir, "log")}
	s.write(100)
	text := fmt.Sprintf(`caches:
  - {name: pets, dir: %[1]s, source: {kind: raw, path: records, sample_bytes: %[2]d}}
  - {name: slow, dir: %[1]s, source: {kind: raw, path: records, sample_bytes: %[2]d, limits: {latency: 3s, heads: 4}}}
sockets: {dir: %[3]s}
`, s.segments, servedBytes, s.sockets)
	if err := os.WriteFile(s.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	slow, err := stocclient.Dial(context.Background(), "slow", stocclient.DialOptions{SocketsDir: s.sockets})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	answered := make(chan error, 1)
	go func() {
		_, err := slow.FetchSamples(context.Background(), first(50))
		answered <- err
	}()
	for deadline := time.Now().Add(20 * time.Second); s.metric("stocached_queue_depth", `cache="slow"`) != 46 &&
		time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
	}
	c := s.dial()
	began := time.Now()
	wantFetch(t, c, first(100))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("another cache took %v", took)
	}
	s.process.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- s.process.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(25 * time.Second):
		t.Fatal("it does not end beside slow reads")
	}
	// it has looked for the next server, and there is none
	if err := <-answered; !errors.Is(err, stocclient.ErrNoServer) {
		t.Errorf("who waited got %v", err)
	}
}

// Ensure that source info and the log of a server say once that a web server does not tell its changes, and what
// to do. They say nothing of one that does.
func TestWebServerThatHidesChanges(t *testing.T) {
	for modified, times := range map[time.Time]int{{}: 1, time.Unix(1e9, 0): 0} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, r.URL.Path, modified, bytes.NewReader(servedRecord(0)))
		}))
		defer web.Close()
		s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: %s/records, sample_bytes: %d}", web.URL, servedBytes))
		s.start()
		wantFetch(t, s.dial(), []int{0})
		info := ok(t, "source", "info", web.URL+"/records", "--kind", "raw", "--source", fmt.Sprintf("sample_bytes=%d", servedBytes))
		for what, text := range map[string]string{"source info": info, "the log": s.said()} {
			if n := strings.Count(text, "sends neither ETag nor Last-Modified (objects: 1, such as "+web.URL+"/records)"); n != times ||
				strings.Count(text, "another name") != n {
				t.Errorf("%s says it %d times, want %d:\n%s", what, n, times, text)
			}
		}
	}
}
