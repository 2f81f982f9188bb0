//go:build faultpoints

package client

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Ensure that a disk opens although gc removes its control part between the open and the lock.
func TestDiskControlRemovedAtOpening(t *testing.T) {
	o := DiskOptions{Samples: 10, SampleBytes: 100, Size: 4 << 20, Fingerprint: "x"}
	path := filepath.Join(t.TempDir(), "a.tier")
	var st unix.Stat_t
	fatal.If(t, errors.Join(diedOpen(path), unix.Stat(path, &st)))
	removed := false
	t.Cleanup(func() { fault.SetHook(nil) })
	fault.SetHook(func(point string) {
		if point != "control.opened" || removed {
			return
		}
		for _, l := range fatal.Value(shm.ListControls(""))(t) {
			if strings.HasPrefix(filepath.Base(l.Path), fmt.Sprintf("%d-%d-", st.Dev, st.Ino)) {
				removed = fatal.Value(shm.RemoveUnused(&l))(t)
			}
		}
	})
	d := openedDisk(t, path, o)
	defer d.Close()
	if _, hit, err := d.Get(1, make([]byte, 100)); !hit || err != nil || !removed {
		t.Error(hit, err, removed)
	}
}
