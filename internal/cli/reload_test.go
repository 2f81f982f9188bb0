package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
	"github.com/stocached/stocached/shm"
)

// Ensure that on SIGHUP a server applies the changes of its file while clients fetch, reports what
// needs a restart, and changes nothing for an invalid file.
func TestReload(t *testing.T) {
	const n = 200
	s := &served{t: t, segments: tmpfs(t)}
	dir := t.TempDir()
	s.path, s.records, s.sockets = filepath.Join(dir, "config.yaml"), filepath.Join(dir, "records.bin"),
		filepath.Join(dir, "run")
	s.write(n)
	configure := func(text string) {
		t.Helper()
		text = strings.ReplaceAll(text, "SOURCE",
			fmt.Sprintf("dir: %s, source: {kind: raw, path: records.bin, sample_bytes: %d}", s.segments, servedBytes))
		if err := os.WriteFile(s.path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sockets := "\nsockets: {dir: " + s.sockets + "}"
	configure("caches: [{name: pets, SOURCE}, {name: leaves, SOURCE}]" + sockets)
	cmd, log, end := managed(t, program("serve", "-c", s.path))
	log.wantLog(t, "serving 2 caches on ")
	hangup := func(want string) {
		t.Helper()
		before := len(log.String())
		cmd.Process.Signal(syscall.SIGHUP)
		log.wantLog(t, want)
		if strings.Contains(log.String()[:before], want) {
			t.Fatalf("%q was said before", want)
		}
	}
	dial := func(name string) (*stocclient.Served, error) {
		return stocclient.Dial(context.Background(), name, stocclient.DialOptions{SocketsDir: s.sockets})
	}
	uuid := func() [16]byte {
		t.Helper()
		seg, err := shm.Open(filepath.Join(s.segments, "pets"), shm.OpenOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer seg.Close()
		return seg.Header.UUID
	}
	first := uuid()

	// Readers of a cache that stays notice nothing.
	done := make(chan struct{})
	var readers sync.WaitGroup
	var fetched atomic.Int64
	for range 2 {
		c := s.dial()
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				wantFetch(t, c, rand.Perm(n)[:20])
				if fetched.Add(1)%100 == 0 {
					if _, err := c.Clear(context.Background()); err != nil { // so that there are samples to fetch
						t.Error(err)
						return
					}
				}
			}
		})
	}
	leaver, err := dial("leaves")
	if err != nil {
		t.Fatal(err)
	}
	defer leaver.Close()

	configure("caches: [{name: pets, sise: 3, SOURCE}]\nlog: {level: loud}" + sockets)
	hangup("caches[0].sise: there is no such key")
	log.wantLog(t, `msg="the new configuration was not applied" `)
	configure("caches: [{name: pets, dir: " + s.segments +
		", source: {kind: raw, path: nothing.bin, sample_bytes: 10}}]" + sockets)
	hangup("nothing.bin")
	configure("caches: [{name: pets, SOURCE}, {name: leaves, SOURCE}]\nlimits: {total: 5MiB}" + sockets)
	hangup("limits.total is 5.0 MiB")
	if c, err := dial("leaves"); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}

	configure("caches: [{name: pets, parallel: 9, SOURCE}, {name: comes, SOURCE}]" +
		"\nlog: {level: debug, format: json}\nlimits: {total: 1GiB}\nadmin: {pprof: true}\nmetrics: {listen: " +
		"\"127.0.0.1:0\"}\nweb: {listen: \"127.0.0.1:0\"}\nsockets: {dir: /elsewhere}")
	hangup("the new configuration is in force")
	for _, key := range []string{"log.format", "admin.pprof", "metrics.listen", "web.listen", "sockets.dir"} {
		log.wantLog(t, "that needs a restart\" key="+key)
	}
	if strings.Contains(log.String(), "key=log.level") || strings.Contains(log.String(), "key=limits.total") {
		t.Errorf("they need no restart:\n%s", log)
	}
	var remote *stocclient.RemoteError
	if _, err := dial("leaves"); !errors.As(err, &remote) || remote.Code != control.CodeNotFound {
		t.Errorf("a cache that has left: %v", err)
	}
	if err := leaver.Fetch(context.Background(), []int{7}, make([]byte, servedBytes), servedBytes); !errors.As(err,
		&remote) || remote.Code != control.CodeNotFound {
		t.Errorf("its client: %v", err)
	}
	c, err := dial("comes")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wantFetch(t, c, rand.Perm(n))
	close(done)
	readers.Wait()
	if uuid() != first || fetched.Load() < 10 {
		t.Errorf("the cache that stays was replaced, or no client read it: %d fetches", fetched.Load())
	}

	// Another size: a cold cache, and clients of the old one get an answer.
	old := s.dial()
	defer old.Close()
	configure("caches: [{name: pets, size: 4500kB, SOURCE}]" + sockets)
	hangup("replaced; attached clients keep the old one")
	log.wantLog(t, "caches=1")
	if _, err := old.Clear(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := old.Fetch(context.Background(), []int{7}, make([]byte, servedBytes), servedBytes); !errors.Is(err,
		stocclient.ErrReplaced) {
		t.Errorf("a client of the old one: %v", err)
	}
	wantFetch(t, s.dial(), rand.Perm(n))
	if uuid() == first {
		t.Error("it is the old one")
	}
	end()
}

// Ensure that stocached reload says what a server applied and what it refused, that config print --server shows what is
// in force, that a cache which leaves the file is removed, and that rm removes no cache of a server.
func TestReloadCommand(t *testing.T) {
	s := newServed(t, 100, "all")
	text, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	configure := func(old, with string) {
		t.Helper()
		next := strings.Replace(string(text), old, with, 1)
		if next == string(text) {
			t.Fatalf("no %q in %s", old, text)
		}
		if err := os.WriteFile(s.path, []byte(next), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reload := func(code int) jsonObject {
		t.Helper()
		got, out, stderr := cli(t, "reload", "--json", "--sockets", s.sockets)
		if got != code {
			t.Fatalf("status %d, want %d: %s", got, code, stderr)
		}
		return decode[jsonObject](t, out)
	}
	inForce := func(want ...string) {
		t.Helper()
		for _, line := range want {
			if out := ok(t, "config", "print", "--server", "--sockets", s.sockets); !regexp.MustCompile(`(?m)^` + line + ` *$`).MatchString(out) {
				t.Errorf("no %q in\n%s", line, out)
			}
		}
	}
	fails(t, exitPermission, []string{"belongs to a server", "stocached reload"}, "rm", filepath.Join(s.segments, servedName))
	wantFetch(t, s.dial(), []int{1})
	inForce(`limits.total +none +default`, `caches\[0\].parallel +4 +default`)

	configure("sockets:", "limits: {total: 1GiB}\nlog: {format: json}\nsockets:")
	wantFields(t, reload(exitOK), jsonObject{"result": "applied", "error": "", "changed": []any{}, "needs_restart": []any{"log.format"}})
	inForce(`limits.total +1073741824 +file`, `log.format +text +default`)
	configure("name: "+servedName, "parallel: 9, name: "+servedName)
	wantFields(t, reload(exitOK), jsonObject{"result": "applied", "changed": []any{servedName}})
	inForce(`limits.total +none +default`, `caches\[0\].parallel +9 +file`)
	configure("name: "+servedName, "sise: 9, name: "+servedName)
	wantFields(t, reload(exitFailed), jsonObject{"result": "refused", "changed": []any{}})
	inForce(`caches\[0\].parallel +9 +file`)

	configure("name: "+servedName, "name: other")
	wantFields(t, reload(exitOK), jsonObject{"added": []any{"other"}, "removed": []any{servedName}})
	if !gone(t, filepath.Join(s.segments, servedName)) {
		t.Error("the cache that left the file is still there")
	}
	s.kill()
	fails(t, exitNoServer, nil, "reload", "--sockets", s.sockets)
	ok(t, "rm", filepath.Join(s.segments, "other")) // the server is gone
}

// Ensure that the rest of a file is applied when one of its caches cannot be made.
func TestReloadInPart(t *testing.T) {
	path, segments, _ := configure(t)
	began, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	level, log := new(slog.LevelVar), slog.New(slog.NewTextHandler(io.Discard, nil))
	s, err := server.New(context.Background(), began.Options(log))
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	defer serving.Wait()
	defer end()
	if err := os.WriteFile(filepath.Join(segments, "way"), []byte("no segment"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("caches: [{name: way, dir: %[1]s, source: {kind: raw, path: records.bin, sample_bytes: "+
		"10}}, {name: cats, dir: %[1]s, source: {kind: raw, path: records.bin, sample_bytes: 10}}]\n"+
		"log: {level: debug}\n", segments)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &reloader{path: path, began: began, level: level, log: log, manager: manager{log}}
	r.begin(ctx, s)
	if did := r.reload(ctx); did.Result != resultPartly || !errors.Is(did.err, shm.ErrFormat) ||
		!strings.Contains(did.Error, "applied except for some caches: cache way: ") ||
		!slices.Equal(did.Failed, []string{"way"}) || !slices.Equal(did.Added, []string{"cats"}) {
		t.Errorf("%+v", did)
	}
	for _, want := range []config.Setting{{Key: "log.level", Value: "debug", From: "file"},
		{Key: "caches[0].name", Value: "way", From: "file; the server has left it out"},
		{Key: "caches[1].source.sample_bytes", Value: "10", From: "file"}} {
		if !slices.Contains(r.settings(), want) {
			t.Errorf("no %v in %v", want, r.settings())
		}
	}
	if level.Level() != slog.LevelDebug || s.Caches() != 1 {
		t.Errorf("level %v, %d caches", level, s.Caches())
	}

	// A cache that cannot be replaced goes on, and what is shown is what it goes on with.
	elsewhere := tmpfs(t)
	text = fmt.Sprintf("caches: [{name: cats, dir: %s, source: {kind: raw, path: records.bin, sample_bytes: 10}}]\n", elsewhere)
	if err := errors.Join(os.WriteFile(filepath.Join(elsewhere, "cats"), []byte("no segment"), 0o600),
		os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	if did := r.reload(ctx); did.Result != resultPartly || !slices.Equal(did.Failed, []string{"cats"}) || s.Caches() != 1 {
		t.Errorf("%+v, %d caches", did, s.Caches())
	}
	if want := (config.Setting{Key: "caches[0].dir", Value: segments, From: "file"}); !slices.Contains(r.settings(), want) {
		t.Errorf("no %v in %v", want, r.settings())
	}
}
