package diskfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Ensure that no file is made or opened on a network file system, and that the error names it.
func TestNetworkFileSystem(t *testing.T) {
	path, o := filepath.Join(t.TempDir(), "a.tier"), shm.Options{Samples: 10, SampleBytes: 100, Limit: 4 << 20, Fingerprint: "x"}
	var fs unix.Statfs_t
	fatal.If(t, unix.Statfs(filepath.Dir(path), &fs))
	number := uint32(fs.Type)
	defer delete(NetworkFileSystems, number)
	for _, there := range []bool{false, true} {
		NetworkFileSystems[number] = "of a test"
		for name, open := range map[string]func(string, shm.Options) (*Segment, string, error){"Open": Open,
			"OpenShared": OpenShared} {
			_, _, err := open(path, o)
			if !errors.Is(err, shm.ErrInvalid) || !strings.Contains(err.Error(), "(of a test), which may hang; give a folder on a local disk") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := os.Stat(path); (err == nil) != there {
			t.Errorf("the file: %v", err)
		}
		delete(NetworkFileSystems, number)
		s, _, err := Open(path, o)
		fatal.If(t, err)
		s.Close()
	}
}
