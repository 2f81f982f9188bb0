package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"golang.org/x/tools/txtar"
)

// configurations is the folder of good and bad configurations.
const configurations = "../../server/config/testdata/"

// Ensure that a check reports the errors of all sources at once, and makes nothing.
func TestServeCheckOfWhatDoesNotOpen(t *testing.T) {
	if got, want := ok(t, "serve", "-c", configurations+"good/opens.yaml", "--check"), configurations+
		"good/opens.yaml: good, 3 caches\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	folder := t.TempDir()
	archive := fatal.Value(txtar.ParseFile(configurations + "unopenable.txtar"))(t)
	files := fatal.Value(txtar.FS(archive))(t)
	if err := errors.Join(os.CopyFS(filepath.Join(folder, "unopenable"), files),
		os.CopyFS(filepath.Join(folder, "data"), os.DirFS(configurations+"data"))); err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(folder, "unopenable", "*.yaml"))
	if err != nil || len(all) < 15 {
		t.Fatal(all, err)
	}
	t.Setenv("STOCACHED_SOCKETS_DIR", filepath.Join(t.TempDir(), "run"))
	for _, path := range all {
		text := fatal.Value(os.ReadFile(strings.TrimSuffix(path, ".yaml") + ".want"))(t)
		code, stdout, stderr := cli(t, "serve", "-c", path, "--check")
		if code == exitOK || stdout != "" {
			t.Errorf("%s: exit %d, %q", path, code, stdout)
		}
		for want := range strings.Lines(string(text)) {
			if want = strings.TrimSuffix(want, "\n"); !strings.Contains(stderr, want) {
				t.Errorf("%s: want %q in: %s", path, want, stderr)
			}
		}
		if _, _, without := cli(t, "serve", "-c", path); without == "" || strings.Contains(without, "serving") {
			t.Errorf("%s: without --check: %s", path, without)
		}
	}
}
