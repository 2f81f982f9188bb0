package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// gone says whether a path does not exist.
func gone(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err != nil
}

// Ensure that gc leaves a cache alone while a process uses it, even an idle one, and removes it
// after that process was killed. It relies on the kernel: the pid and a claim are still in the
// segment. Without --yes it never removes.
func TestGCKilled(t *testing.T) {
	dir, path := newCache(t, small())
	child := start(t, "claim", path)
	look := func(args ...string) jsonObject {
		t.Helper()
		return decode[[]jsonObject](t, ok(t, append([]string{"gc", "--dir", dir, "--json"}, args...)...))[0]
	}
	wantFields(t, look("--yes"), jsonObject{"unused": false, "removed": false, "verdict": "in use", "clients_live": 1})
	if gone(t, path) {
		t.Fatal("removed while in use")
	}
	child.kill()
	wantFields(t, look(), jsonObject{"unused": true, "removed": false, "verdict": "would be removed",
		"clients_live": 0})
	if gone(t, path) {
		t.Fatal("removed by a dry run")
	}
	wantFields(t, look("--yes"), jsonObject{"unused": true, "removed": true, "verdict": "removed"})
	if !gone(t, path) {
		t.Error("not removed")
	}
}

// Ensure that gc removes only verified segments of this user, and that an age only narrows the
// choice.
func TestGCLeavesAlone(t *testing.T) {
	dir, used := newCache(t, small())
	newClient(t, used)
	for _, name := range []string{"unused", "damaged", "truncated"} {
		ok(t, "create", name, "--dir", dir, "--samples", "10", "--sample-bytes", "100")
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	damage(t, path("damaged"), 300)
	fatal.If(t, os.Truncate(path("truncated"), 5000))
	fatal.If(t, os.WriteFile(path("notes.txt"), []byte("mine"), 0o600))
	fatal.If(t, os.Symlink(path("unused"), path("link")))
	fatal.If(t, os.Mkdir(path("directory"), 0o700))
	code, out, stderr := cli(t, "gc", "--dir", dir)
	expect.Equal(t, code, exitOK, "")
	contains(t, out, "in use", "would be removed", "left alone: ", "not a valid segment")
	contains(t, stderr, "nothing was removed: 1 unused, 4.0 MiB in all; stocached gc --yes removes them")

	ok(t, "gc", "--dir", dir, "--yes", "--older-than", "1h")
	if gone(t, path("unused")) {
		t.Fatal("removed though it is young")
	}
	contains(t, ok(t, "gc", "--dir", dir, "--older-than", "1h"), "less than 1h0m0s")
	ok(t, "gc", "--dir", dir, "--yes", "--older-than", "1ns")
	for _, name := range []string{"test", "damaged", "truncated", "notes.txt", "link", "directory"} {
		if gone(t, path(name)) {
			t.Errorf("%s is gone", name)
		}
	}
	if !gone(t, path("unused")) {
		t.Error("not removed")
	}
	code, _, stderr = cli(t, "gc", "--dir", dir, "--yes")
	expect.Equal(t, code, exitOK, "")
	contains(t, stderr, "nothing to remove in "+dir)
}

// Ensure that gc leaves a cache alone that a process begins to use, or that is replaced, between
// check and removal.
func TestGCRace(t *testing.T) {
	dir, path := newCache(t, small())
	judge := func() *candidate {
		t.Helper()
		listed, err := shm.List(dir)
		if err != nil || len(listed) != 1 {
			t.Fatal(listed, err)
		}
		c := &candidate{found: found{Listed: listed[0]}}
		(&gcFlags{now: time.Now()}).judge(c)
		if !c.unused {
			t.Fatal(c.verdict)
		}
		return c
	}
	c := judge()
	user := newClient(t, path)
	if err := c.remove(); err != nil || c.removed || c.unused || c.verdict != "in use by now" {
		t.Error(err, c.verdict)
	}
	fatal.If(t, user.Close())
	c = judge()
	ok(t, "rm", path)
	ok(t, "create", "test", "--dir", dir, "--samples", "10", "--sample-bytes", "100")
	if err := c.remove(); err != nil || c.removed || c.unused || c.verdict != "removed by another program" {
		t.Error(err, c.verdict)
	}
	if gone(t, path) {
		t.Error("another cache of the same name was removed")
	}
}

// Ensure that no command follows a symbolic link that another user has put in place of this user's
// folder, for a name, a path or a list.
func TestLinkInPlaceOfTheDefaultFolder(t *testing.T) {
	const uid = 54322
	folder := fmt.Sprintf("/dev/shm/stocached-%d", uid)
	elsewhere := tmpfs.Folder(t)
	fatal.If(t, os.Chown(elsewhere, uid, uid))
	as := func(args ...string) (int, string) {
		t.Helper()
		cmd := childOf(t, uid, "main", args...)
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if code, out := as("create", "mine", "--dir", elsewhere, "--samples", "10",
		"--sample-bytes", "100"); code != exitOK {
		t.Fatal(out)
	}
	fatal.If(t, errors.Join(os.Symlink(elsewhere, folder), os.Lchown(folder, strangerID, strangerID)))
	t.Cleanup(func() { os.Remove(folder) })
	for _, command := range [][]string{{"gc"}, {"gc", "--yes"}, {"gc", "--yes", "--dir", folder},
		{"gc", "--yes", "--dir", folder + "/"}, {"ls"}, {"stats"}, {"rm", "mine"}, {"rm", folder + "/mine"},
		{"rm", "mine", "--dir", folder}, {"stats", "mine"}, {"inspect", "mine"}, {"verify", folder + "/mine"},
		{"create", "other", "--samples", "10", "--sample-bytes", "100"}} {
		if code, out := as(command...); code != exitPermission || !strings.Contains(out, "symbolic link") {
			t.Errorf("%q: exit %d\n%s", command, code, out)
		}
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

var gcDisk = stocclient.DiskOptions{Samples: 10, SampleBytes: 100, Size: 4 << 20, Fingerprint: "x"}

// Ensure that gc leaves the control part of a disk cache alone while a process uses it, and removes it after that
// process was killed. The next user finds the samples in the file.
func TestGCControlPart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.tier")
	child := start(t, "disk", file)
	var st unix.Stat_t
	fatal.If(t, unix.Stat(file, &st))
	own := fmt.Sprintf("disk/%d-%d-", st.Dev, st.Ino)
	row := func(args ...string) jsonObject { // gc of all caches of this user would meet those of other tests
		t.Helper()
		for _, r := range decode[[]jsonObject](t, ok(t, append([]string{"gc", "--json"}, args...)...)) {
			if name, _ := r["name"].(string); strings.HasPrefix(name, own) {
				return r
			}
		}
		return nil
	}
	r := row()
	wantFields(t, r, jsonObject{"unused": false, "removed": false, "verdict": "in use", "clients_live": 1})
	path, _ := r["path"].(string)
	// The same file in a folder of this test, for gc --yes.
	dir, _ := newCache(t, small())
	fatal.If(t, os.Mkdir(filepath.Join(dir, "disk"), 0o700))
	fatal.If(t, os.Link(path, filepath.Join(dir, "disk", filepath.Base(path))))
	wantFields(t, row("--yes", "--dir", dir), jsonObject{"unused": false, "removed": false, "verdict": "in use"})
	child.kill()
	wantFields(t, row(), jsonObject{"unused": true, "removed": false, "verdict": "would be removed", "clients_live": 0})
	wantFields(t, row("--yes", "--dir", dir), jsonObject{"unused": true, "removed": true, "verdict": "removed"})
	listed := fatal.Value(shm.ListControls(""))(t)
	for _, l := range listed {
		if l.Path != path {
			continue
		}
		expect.Gives(shm.RemoveUnused(&l))(t, true)
	}
	if !gone(t, path) || row() != nil {
		t.Error("it is still there")
	}
	d := fatal.Value(stocclient.OpenDisk(file, gcDisk))(t)
	defer d.Close()
	dst := make([]byte, gcDisk.SampleBytes)
	if _, hit, err := d.Get(3, dst); !hit || err != nil || !bytes.Equal(dst, content(3, len(dst))) {
		t.Error(hit, err)
	}
}

// Ensure that gc removes what no process uses after the time of day was set back. Only --older-than asks for an age.
func TestGCAfterTheClockWasSetBack(t *testing.T) {
	dir := tmpfs.Folder(t)
	path := filepath.Join(dir, "early")
	ok(t, "create", "early", "--dir", dir, "--samples", "10", "--sample-bytes", "100")
	run := func(olderThan time.Duration) string {
		var out bytes.Buffer
		f := gcFlags{dirFlag: dirFlag{dir}, yes: true, olderThan: olderThan, now: time.Now().Add(-time.Hour)}
		expect.NoError(t, f.run(&out, io.Discard))
		return out.String()
	}
	contains(t, run(time.Minute), "created in the future")
	if gone(t, path) {
		t.Error("removed, though its age is unknown")
	}
	contains(t, run(0), "removed")
	if !gone(t, path) {
		t.Error("not removed")
	}
}
