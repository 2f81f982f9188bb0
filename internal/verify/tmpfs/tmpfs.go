// Package tmpfs has folders in memory for tests.
package tmpfs

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Folder makes a folder for segments, until the test ends.
func Folder(t testing.TB) string {
	t.Helper()
	dir := fatal.Value(os.MkdirTemp("/dev/shm", "stocached-test-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Mount mounts a tmpfs of its own in a folder until the test ends, with options such as size=16m. It skips a test of a
// user who may not.
func Mount(t testing.TB, dir, options string) string {
	t.Helper()
	fatal.Privileged(t, "mount a tmpfs", unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options))
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
