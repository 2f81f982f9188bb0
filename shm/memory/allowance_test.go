package memory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that the group changes with the cgroup and with its namespace.
func TestGroup(t *testing.T) {
	a := files(t, map[string]string{"proc/self/cgroup": "0::/a\n", "proc/self/ns/cgroup": ""})
	if b := files(t, map[string]string{"proc/self/cgroup": "0::/a\n", "proc/self/ns/cgroup": ""}); b.group() == a.group() {
		t.Error("the namespace makes no difference")
	}
	before := a.group()
	expect.Equal(t, a.group(), before, "the answers")
	fatal.If(t, os.WriteFile(filepath.Join(a.root, "proc/self/cgroup"), []byte("0::/b\n"), 0o600))
	if a.group() == before {
		t.Error("the cgroup makes no difference")
	}
}
