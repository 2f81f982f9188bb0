package cli

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/shm"
)

// otherVersion makes a segment one of another layout version.
func otherVersion(t testing.TB, path string) {
	t.Helper()
	overwrite(t, path, shm.HeaderVersion, binary.LittleEndian.AppendUint32(nil, shm.LayoutVersion+1)...)
}

// Ensure that a segment of another version is replaced, and removed by gc, once no process uses it. Until then create
// says which process does.
func TestOtherVersion(t *testing.T) {
	dir, path := newCache(t, small())
	create := []string{"create", "test", "--dir", dir, "--samples", "10", "--sample-bytes", "100"}
	child := start(t, "claim", path)
	otherVersion(t, path)
	look := func(args ...string) jsonObject {
		t.Helper()
		_, out, _ := cli(t, append(args, "--dir", dir, "--json")...)
		return decode[[]jsonObject](t, out)[0]
	}
	fails(t, exitVersion, []string{"layout 2,", fmt.Sprintf("processes %d (", child.Process.Pid), "end them"}, create...)
	wantFields(t, look("ls"), jsonObject{"in_use": true, "clients_live": nil, "samples": nil})
	wantFields(t, look("gc", "--yes"), jsonObject{"removed": false, "verdict": "in use"})
	child.kill()
	wantFields(t, look("ls"), jsonObject{"in_use": false})
	wantFields(t, look("gc", "--older-than", "1s"), jsonObject{"unused": false})
	wantFields(t, look("gc"), jsonObject{"unused": true, "verdict": "would be removed"})
	code, _, stderr := cli(t, create...)
	expect.Equal(t, code, 0, "exit")
	contains(t, stderr, "layout 2,", "no process used it, so an empty cache has replaced it")
	wantFields(t, look("ls"), jsonObject{"in_use": false, "samples": 10.0, "problem": ""})
	otherVersion(t, path)
	wantFields(t, look("gc", "--yes"), jsonObject{"removed": true, "verdict": "removed"})
	ok(t, create...)
	otherVersion(t, path)
	wantFields(t, look("rm", "test"), jsonObject{"removed": true})
	if !gone(t, path) {
		t.Error("rm left it")
	}
}
