package sourcetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Helper builds stocached-decode and returns its path. root is the path of the repository. Without
// the headers of libjpeg, it skips the test.
func Helper(t testing.TB, root string) string {
	t.Helper()
	if out, err := exec.Command(filepath.Join(root, "tools/setup.sh"), "has-jpeg").CombinedOutput(); err != nil {
		t.Skipf("there is no jpeglib.h here (make setup-c-tests installs it): %v %s", err, out)
	}
	build := exec.Command("make", "-s", "-C", filepath.Join(root, "cimage"), "all", "../build/image/pixels")
	build.Env = append(os.Environ(), "MAKEFLAGS=", "MFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	path, err := filepath.Abs(filepath.Join(root, "build/stocached-decode"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}
