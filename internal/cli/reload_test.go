package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/server/config"
	"github.com/stocached/stocached/shm"
)

// Ensure that on SIGHUP a server applies the changes of its file, reports what needs a restart, and changes nothing for
// an invalid file. Package server tests what clients notice.
func TestReload(t *testing.T) {
	s := newFolder(t)
	s.write(20)
	configure := func(text string) {
		t.Helper()
		s.configure(strings.ReplaceAll(text, "SOURCE",
			fmt.Sprintf("dir: %s, source: {kind: raw, path: records, sample_bytes: %d}", s.segments, servedBytes)) + "\n")
	}
	configure("caches: [{name: pets, SOURCE}]")
	s.start()
	c := s.dial()
	configure("caches: [{name: pets, sise: 3, SOURCE}]\nlog: {level: loud}")
	s.hangup("caches[0].sise: there is no such key")
	contains(t, s.said(), `msg="the new configuration was not applied" `)
	configure("caches: [{name: pets, SOURCE}]\nlimits: {total: 3MiB}")
	s.hangup("limits.total is 3.0 MiB")
	wantFetch(t, c, first(20))
	configure("caches: [{name: pets, parallel: 9, SOURCE}, {name: comes, SOURCE}]" +
		"\nlog: {level: debug, format: json}\nlimits: {total: 1GiB}\nadmin: {pprof: true}\nmetrics: {listen: " +
		"\"127.0.0.1:0\"}\nweb: {listen: \"127.0.0.1:0\"}\nsockets: {dir: /elsewhere}")
	s.hangup("the new configuration is in force")
	for _, key := range []string{"log.format", "admin.pprof", "metrics.listen", "web.listen", "sockets.dir"} {
		contains(t, s.said(), "that needs a restart\" key="+key)
	}
	if strings.Contains(s.said(), "key=log.level") || strings.Contains(s.said(), "key=limits.total") {
		t.Errorf("they need no restart:\n%s", s.said())
	}
	wantFetch(t, c, first(20))
	configure("caches: [{name: pets, size: 4250kB, SOURCE}]")
	s.hangup("replaced; attached clients keep the old one")
	expect.Equal(t, ready(t, c.Cache), 20, "samples for a client of the old one")
}

// Ensure that stocached reload says what a server applied and what it refused, that config print --server shows what is
// in force, that a cache which leaves the file is removed, and that rm removes no cache of a server.
func TestReloadCommand(t *testing.T) {
	s := newServed(t, 100, "all")
	first := s.configuration("", "")
	configure := func(old, with string) {
		t.Helper()
		s.configure(strings.Replace(first, old, with, 1))
	}
	reload := func(code int) jsonObject {
		t.Helper()
		got, out, stderr := cli(t, "reload", "--json", "--sockets", s.sockets)
		fatal.Equal(t, got, code, "status: %s", stderr)
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
	served := configureServed(t, "source: {kind: raw, path: records, sample_bytes: 3000}")
	served.write(20)
	path, segments := served.path, served.segments
	began := fatal.Value(config.Load(path))(t)
	level, log := new(slog.LevelVar), slog.New(slog.NewTextHandler(io.Discard, nil))
	s := fatal.Value(server.New(context.Background(), began.Options(log)))(t)
	ctx, end := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { expect.NoError(t, s.Serve(ctx)) })
	defer serving.Wait()
	defer end()
	fatal.If(t, os.WriteFile(filepath.Join(segments, "way"), []byte("no segment"), 0o600))
	const source = "source: {kind: raw, path: records, sample_bytes: 3000}"
	served.configure(fmt.Sprintf("caches: [{name: way, dir: %[1]s, %[2]s}, {name: cats, dir: %[1]s, %[2]s}]\n"+
		"log: {level: debug}\n", segments, source))
	r := &reloader{path: path, began: began, level: level, log: log, manager: manager{log}}
	r.begin(ctx, s)
	if did := r.reload(ctx); did.Result != resultPartly || !errors.Is(did.err, shm.ErrFormat) ||
		!strings.Contains(did.Error, "applied except for some caches: cache way: ") ||
		!slices.Equal(did.Failed, []string{"way"}) || !slices.Equal(did.Added, []string{"cats"}) {
		t.Errorf("%+v", did)
	}
	for _, want := range []config.Setting{{Key: "log.level", Value: "debug", From: "file"},
		{Key: "caches[0].name", Value: "way", From: "file; the server has left it out"},
		{Key: "caches[1].source.sample_bytes", Value: "3000", From: "file"}} {
		if !slices.Contains(r.settings(), want) {
			t.Errorf("no %v in %v", want, r.settings())
		}
	}
	if level.Level() != slog.LevelDebug || s.Caches() != 1 {
		t.Errorf("level %v, %d caches", level, s.Caches())
	}

	// A cache that cannot be replaced goes on, and what is shown is what it goes on with.
	elsewhere := tmpfs.Folder(t)
	served.configure(fmt.Sprintf("caches: [{name: cats, dir: %s, %s}]\n", elsewhere, source))
	fatal.If(t, os.WriteFile(filepath.Join(elsewhere, "cats"), []byte("no segment"), 0o600))
	if did := r.reload(ctx); did.Result != resultPartly || !slices.Equal(did.Failed, []string{"cats"}) || s.Caches() != 1 {
		t.Errorf("%+v, %d caches", did, s.Caches())
	}
	if want := (config.Setting{Key: "caches[0].dir", Value: segments, From: "file"}); !slices.Contains(r.settings(), want) {
		t.Errorf("no %v in %v", want, r.settings())
	}
}
