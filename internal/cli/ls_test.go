package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// Ensure that ls shows the caches of a directory with their clients, reports files that are not
// caches, and changes nothing.
func TestLs(t *testing.T) {
	dir, path := newCache(t, small())
	fatal.If(t, os.WriteFile(filepath.Join(dir, "broken"), []byte("STOCACHE but no more"), 0o600))
	before := snapshot(t, path)
	code, out, stderr := cli(t, "ls", "--dir", dir)
	expect.Equal(t, code, exitOK, "")
	contains(t, out, "NAME", "FRACTION", "test", "0.6000", "broken")
	for _, line := range lines(out) {
		if len(line) > 90 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
	contains(t, ok(t, "ls", "--dir", dir, "--long"), "NAME", "FRACTION", "SLOTS", "PIDS", "CREATED", "UNLINK", "PATH",
		path)
	contains(t, stderr, "broken: not a valid segment: 20 bytes, a header has 4096")
	rows := decode[[]jsonObject](t, ok(t, "ls", "--dir", dir, "--json"))
	fatal.Equal(t, len(rows), 2, "%v", rows)
	wantFields(t, rows[0], jsonObject{"name": "broken", "samples": nil, "in_use": nil, "unlink": nil,
		"segment_bytes": 20})
	wantFields(t, rows[1], jsonObject{"name": "test", "path": path, "samples": 10, "slots": 6, "slots_fraction": 0.6,
		"clients_live": 0, "in_use": false, "unlink": "never", "problem": ""})
	expect.Equal(t, snapshot(t, path), before, "the file after ls")
	newClient(t, path)
	rows = decode[[]jsonObject](t, ok(t, "ls", "--dir", dir, "--json"))
	wantFields(t, rows[1], jsonObject{"clients_live": 1, "in_use": true})
}

// Ensure that ls reports no cache that is being made. Another process makes caches without a name all the time.
func TestLsWhileCachesAreMade(t *testing.T) {
	maker := start(t, "make")
	for range 15 {
		_, out, stderr := cli(t, "ls", "--json")
		for _, row := range decode[[]jsonObject](t, out) {
			if problem := row["problem"]; problem != "" && strings.HasPrefix(fmt.Sprint(row["path"]), fmt.Sprintf("/proc/%d/", maker.Process.Pid)) {
				t.Fatal(problem, stderr)
			}
		}
	}
}

// Ensure that a directory without caches is not an error.
func TestLsEmpty(t *testing.T) {
	dir := tmpfs.Folder(t)
	code, out, stderr := cli(t, "ls", "--dir", dir)
	if code != exitOK || out != "" {
		t.Errorf("exit %d, %q", code, out)
	}
	contains(t, stderr, "no caches in "+dir)
	expect.Equal(t, ok(t, "ls", "--dir", dir, "--json"), "[]\n", "")
	fails(t, exitUsage, []string{"1 argument, expected none"}, "ls", "x")
}

// Ensure that no command that lists caches takes a mistyped --dir for a directory without caches.
func TestMissingDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	for _, command := range []string{"ls", "ls --json", "stats", "stats --json", "stats --watch", "gc", "gc --yes", "top --once", "web"} {
		fails(t, exitNotFound, []string{"--dir: stat " + dir + ": no such file or directory; leave it out for the caches in " +
			shm.DefaultDir()}, append(strings.Fields(command), "--dir", dir)...)
	}
}

// Ensure that ls finds a cache without a name in another process, that commands know it by the
// shown name, and that it ends with its process.
func TestLsUnnamed(t *testing.T) {
	child := start(t, "unnamed")
	find := func() jsonObject {
		for _, row := range decode[[]jsonObject](t, ok(t, "ls", "--json")) {
			if pids, _ := row["pids"].([]any); slices.ContainsFunc(pids,
				func(pid any) bool { return fmt.Sprint(pid) == fmt.Sprint(child.Process.Pid) }) {
				return row
			}
		}
		return nil
	}
	row := find()
	if row == nil {
		t.Fatal("not listed")
	}
	wantFields(t, row, jsonObject{"samples": 10, "clients_live": 1, "in_use": true, "unlink": "last", "processes": 1})
	name, path := row["name"].(string), row["path"].(string)
	second := start(t, "use", path)
	wantFields(t, find(), jsonObject{"clients_live": 2, "processes": 2})
	line := func(args ...string) []string {
		all := lines(ok(t, append([]string{"ls"}, args...)...))
		return strings.Fields(all[slices.IndexFunc(all,
			func(line string) bool { return strings.HasPrefix(line, name+" ") })])
	}
	pids := []string{fmt.Sprint(child.Process.Pid), fmt.Sprint(second.Process.Pid)}
	if long := line("-l"); !slices.ContainsFunc(long, func(cell string) bool {
		each := strings.Split(cell, ",")
		return len(each) == 2 && slices.Contains(each, pids[0]) && slices.Contains(each, pids[1])
	}) {
		t.Error(long)
	}
	// clients, used, and which program has it
	fatal.Until(t, "two processes in ls", func() bool { // tests that list all caches open this one for a moment too
		short := strings.Join(line(), " ")
		return strings.Contains(short, " 2 yes "+pids[0]+" cli.test and 1 more") ||
			strings.Contains(short, " 2 yes "+pids[1]+" cli.test and 1 more")
	})
	second.end(t)
	for _, target := range []string{name, path} {
		wantFields(t, decode[jsonObject](t, ok(t, "stats", target, "--json")),
			jsonObject{"name": name, "ready": 5, "clients_live": 1})
		wantFields(t, decode[jsonObject](t, ok(t, "verify", target, "--json")), jsonObject{"checked": 5, "corrupt": 0})
		wantFields(t, decode[jsonObject](t, ok(t, "inspect", target, "2", "--json")),
			jsonObject{"state": "READY", "length": 100})
		fails(t, exitUsage, []string{"ends with the last process"}, "rm", target)
	}
	_, out, _ := cli(t, "stats") // caches of others may end in any code
	contains(t, out, name)
	contains(t, ok(t, "__complete", "stats", "stocached:"), name)
	listed := fatal.Value(shm.ListUnnamed())(t)
	k := slices.IndexFunc(listed, func(l shm.Listed) bool { return l.Path == path })
	if vanished(&listed[k], shm.ErrFormat) {
		t.Error("vanished while it is there")
	}
	child.kill()
	if row := find(); row != nil {
		t.Error(row)
	}
	if !vanished(&listed[k], shm.ErrFormat) {
		t.Error("there though it vanished")
	}
	fails(t, exitNotFound, []string{name, "stocached ls"}, "stats", name)
	fails(t, exitNotFound, []string{path}, "stats", path)
}

func init() { servedChildren["make"] = makeUnnamed }

// makeUnnamed is "make": it makes caches without a name, one after the other, until its standard input ends.
func makeUnnamed([]string) error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	for k := 0; ; k++ {
		seg, err := shm.Create(shm.Options{Samples: 10, SampleBytes: 100})
		if err != nil {
			return err
		}
		if k == 0 {
			fmt.Println("ready")
		}
		if err := seg.Close(); err != nil {
			return err
		}
		select {
		case err := <-ended:
			return err
		default:
		}
	}
}
