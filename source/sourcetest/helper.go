package sourcetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
)

// Documented returns the keys in the tables of docs/spec/sources.md, by heading. root is the path of
// the repository.
func Documented(t testing.TB, root string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/spec/sources.md"))
	fatal.If(t, err)
	row, keys, heading := regexp.MustCompile("^\\| `([a-z_0-9]+)` \\|"), map[string][]string{}, ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		} else if m := row.FindStringSubmatch(line); m != nil {
			keys[heading] = append(keys[heading], m[1])
		}
	}
	return keys
}

// Noise returns n bytes that do not compress, the same for each i.
func Noise(i, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(b)
	return b
}

// Tree returns the contents of the files of a folder, by name.
func Tree(t testing.TB, folder string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	fatal.If(t, err)
	files := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(folder, e.Name()))
		fatal.If(t, err)
		files[e.Name()] = string(b)
	}
	return files
}

// Descriptors returns the paths in /proc of those descriptors of this process whose files have names
// that begin so.
func Descriptors(t testing.TB, name string) (paths []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	fatal.If(t, err)
	for _, e := range entries {
		path := "/proc/self/fd/" + e.Name()
		if to, _ := os.Readlink(path); strings.HasPrefix(to, name) {
			paths = append(paths, path)
		}
	}
	return paths
}

// Content returns n bytes that differ from sample to sample.
func Content(sample, n int) []byte {
	data := make([]byte, n)
	for k := range min(n, 3*256) {
		data[k] = byte(sample>>(8*(k%3)) + k/3)
	}
	for k := 3 * 256; k < n; k *= 2 {
		copy(data[k:], data[:k]) // it repeats; the race detector makes a loop over all bytes slow
	}
	return data
}

// Helper returns the path of stocached-decode, which it builds once in a test binary. root is the path of the
// repository. Without the headers of its libraries, it skips the test.
func Helper(t testing.TB, root string) string {
	t.Helper()
	built.Do(func() {
		if out, err := exec.Command(filepath.Join(root, "tools/setup.sh"), "has-codecs").CombinedOutput(); err != nil {
			built.lacks = fmt.Sprintf("headers of the decoders are missing (make setup-c-tests installs them): %v %s", err, out)
			return
		}
		build := exec.Command("make", "-s", "-C", filepath.Join(root, "cimage"), "all", "../build/image/pixels")
		build.Env = append(os.Environ(), "MAKEFLAGS=", "MFLAGS=")
		out, err := build.CombinedOutput()
		if err == nil {
			built.path, err = filepath.Abs(filepath.Join(root, "build/stocached-decode"))
		}
		if err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	switch {
	case built.lacks != "":
		t.Skip(built.lacks)
	case built.err != nil:
		t.Fatal(built.err)
	}
	return built.path
}

var built struct {
	sync.Once
	path  string
	lacks string // why there is none, on this machine
	err   error
}

// Note returns the text of a note; "" if there is none.
func Note(s source.Source, name string) string {
	for _, n := range s.Info().Notes {
		if n.Name == name {
			return n.Text
		}
	}
	return ""
}

// WantNote checks that a note has this text in it. With "" it checks that there is no such note.
func WantNote(t testing.TB, s source.Source, name, part string) {
	t.Helper()
	if text := Note(s, name); !strings.Contains(text, part) || (text == "") != (part == "") {
		t.Errorf("note %s: %q; want %q", name, text, part)
	}
}
