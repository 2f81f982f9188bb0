package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// Ensure that rm removes caches by name and by path, tries each, and ends with the code of the
// first failure.
func TestRm(t *testing.T) {
	dir := tmpfs.Folder(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		ok(t, "create", name, "--dir", dir, "--samples", "10", "--sample-bytes", "100")
	}
	contains(t, ok(t, "rm", "a", "--dir", dir), "a     yes      4.0 MiB  0")
	rows := decode[[]jsonObject](t, ok(t, "rm", filepath.Join(dir, "b"), "--json"))
	wantFields(t, rows[0], jsonObject{"path": filepath.Join(dir, "b"), "removed": true, "clients_live": 0,
		"reason": ""})
	code, out, stderr := cli(t, "rm", "nothing", "c", "..", "--dir", dir, "--json")
	expect.Equal(t, code, exitNotFound, "")
	rows = decode[[]jsonObject](t, out)
	for k, removed := range []bool{false, true, false} {
		wantFields(t, rows[k], jsonObject{"removed": removed})
	}
	contains(t, stderr, "no such cache", "stocached ls", `".." is not`)
	names, _ := filepath.Glob(dir + "/*")
	if len(names) != 1 || filepath.Base(names[0]) != "d" {
		t.Error(names)
	}
	fails(t, exitUsage, []string{"one or more names", "stocached gc"}, "rm")
}

// Ensure that clients of a removed cache keep it, and are counted.
func TestRmInUse(t *testing.T) {
	dir, path := newCache(t, small())
	c := newClient(t, path)
	wantFields(t, decode[[]jsonObject](t, ok(t, "rm", "test", "--dir", dir, "--json"))[0],
		jsonObject{"removed": true, "clients_live": 1})
	store(t, c, 1)
	if _, hit, err := c.View(1); !hit || err != nil {
		t.Error(hit, err)
	}
}

// Ensure that rm removes only segments of this user, damaged ones included.
func TestRmForeign(t *testing.T) {
	dir, path := newCache(t, small())
	file := filepath.Join(dir, "notes.txt")
	fatal.If(t, os.WriteFile(file, []byte("not a cache"), 0o600))
	fails(t, exitPermission, []string{"no segment, and nothing else is removed"}, "rm", file)
	fails(t, exitPermission, []string{"a directory"}, "rm", dir+"/.")
	fails(t, exitPermission, []string{"a symbolic link"}, "rm", symlink(t, path))
	for _, kept := range []string{file, path} {
		expect.Works(os.Stat(kept))(t)
	}
	damage(t, path, 300)
	if _, err := shm.Open(path, shm.OpenOptions{}); exitCode(err) != exitCorrupt {
		t.Fatal(err)
	}
	wantFields(t, decode[[]jsonObject](t, ok(t, "rm", path, "--json"))[0],
		jsonObject{"removed": true, "clients_live": nil})
}
