package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Ensure that the server leaves out caches with a damaged segment or a missing source, and serves
// the others. The log, health, metrics and clients get the names, their files stay unchanged, and a
// reload adds repaired ones.
func TestDamagedCachesAreLeftOut(t *testing.T) {
	s := newFolder(t)
	s.write(20)
	at := func(name string) string { return filepath.Join(s.segments, name) }
	make := func(name string) {
		t.Helper()
		seg := fatal.Value(shm.Create(shm.Options{Name: name, Dir: s.segments, Samples: 20, SampleBytes: servedBytes}))(t)
		fatal.If(t, seg.Close())
	}
	bad := []struct {
		name, why string
		damage    func() error
		mend      func() error
	}{
		{"folder", "is a directory", func() error { return os.Mkdir(at("folder"), 0o700) },
			func() error { return os.Remove(at("folder")) }},
		{"garbage", "not a valid segment", func() error {
			return os.WriteFile(at("garbage"), []byte("garbage"), 0o600)
		}, func() error { return os.Remove(at("garbage")) }},
		{"header", "not a valid segment", func() error {
			make("header")
			damage(t, at("header"), 300)
			return nil
		}, func() error { return os.Remove(at("header")) }},
		{"missing", "no such file", func() error { return nil },
			func() error { return os.Link(s.records, filepath.Join(s.folder, "missing")) }},
		{"truncated", "not a valid segment", func() error {
			make("truncated")
			return os.Truncate(at("truncated"), 5000)
		}, func() error { return os.Remove(at("truncated")) }},
	}
	config := "caches:\n"
	for _, b := range bad {
		fatal.If(t, b.damage())
		path := "records"
		if b.name == "missing" {
			path = b.name
		}
		config += fmt.Sprintf("  - {name: %s, dir: %s, source: {kind: raw, path: %s, sample_bytes: %d}}\n", b.name,
			s.segments, path, servedBytes)
	}
	s.configure(config)
	code, _, stderr := cli(t, "serve", "-c", s.path) // none is left
	if code != exitNotFound && code != exitCorrupt && code != exitPermission {
		t.Errorf("exit %d", code)
	}
	for _, b := range bad {
		contains(t, stderr, b.name, b.why)
	}
	s.configure(config + fmt.Sprintf("  - {name: pets, dir: %s, source: {kind: raw, path: records, sample_bytes: %d}}\n",
		s.segments, servedBytes))
	_, _, stderr = cli(t, "serve", "-c", s.path, "--check")
	for _, b := range bad {
		contains(t, stderr, b.name, b.why)
	}

	contains(t, s.start(), "serving 1 cache on "+s.sockets+"; 5 left out, the log says why")
	wantFetch(t, s.dial(), first(20))
	code, stdout, stderr := cli(t, "health", "--sockets", s.sockets)
	if code != exitOK || !strings.Contains(stdout, "serves, but not everything is well") {
		t.Errorf("exit %d: %s", code, stdout)
	}
	leftOut := decode[struct {
		LeftOut []string `json:"left_out"`
	}](t, ok(t, "health", "--sockets", s.sockets, "--json")).LeftOut
	fatal.Equal(t, len(leftOut), len(bad), "%q", leftOut)
	for k, b := range bad {
		contains(t, s.said(), b.name)
		contains(t, leftOut[k], "cache "+b.name+": ", b.why, "; stocached reload tries it again")
		contains(t, stderr, "stocached: cache "+b.name+": ", b.why)
		fails(t, exitNotFound, []string{"this server has left it out: cache " + b.name + ": ", b.why}, "health", b.name,
			"--sockets", s.sockets)
		if status, answer := s.ask("GET", "/v1/caches/"+b.name, ""); status != 404 ||
			!strings.Contains(answer, "left it out") {
			t.Errorf("%d %s", status, answer)
		}
		expect.Equal(t, s.metric("stocached_left_out", `cache="`+b.name+`"`), 1, "%s", b.name)
		if b.name != "missing" && gone(t, at(b.name)) {
			t.Errorf("%s was removed", b.name)
		}
	}
	expect.Equal(t, s.metric("stocached_left_out", `cache="pets"`), 0, "")

	// A reload adds the repaired cache and leaves out the rest. It forgets one that was removed
	// from the file.
	fatal.If(t, errors.Join(bad[1].mend(), bad[3].mend()))
	s.configure(strings.Replace(config, "name: folder", "name: pets", 1))
	s.hangup("a part of the new configuration was not applied")
	for _, name := range []string{"pets", "garbage", "missing"} {
		ok(t, "health", name, "--sockets", s.sockets)
	}
	// Of one cache it says only what is wrong with that one.
	if code, out, stderr := cli(t, "health", "pets", "--sockets", s.sockets); code != exitOK || stderr != "" ||
		!strings.Contains(out, "is well and serves") {
		t.Errorf("%d %s %s", code, out, stderr)
	}
	_, _, stderr = cli(t, "health", "--sockets", s.sockets)
	contains(t, stderr, "cache header: ", "cache truncated: ", "was applied in part: ")
	expect.Equal(t, strings.Count(stderr, "\n"), 3, "%v", stderr)
	fatal.If(t, errors.Join(bad[2].mend(), bad[4].mend()))
	s.hangup("the new configuration is in force")
	if _, _, stderr := cli(t, "health", "--sockets", s.sockets); stderr != "" {
		t.Error(stderr)
	}
	s.end(syscall.SIGTERM)
}
