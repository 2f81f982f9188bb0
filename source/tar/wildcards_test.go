package tar

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
)

// bucket lists names as a server lists objects.
type bucket struct {
	source.Objects
	names []string
}

func (b bucket) List(_ context.Context, prefix string, each func(name string, stamp source.Stamp) error) error {
	for _, name := range b.names {
		if strings.HasPrefix(name, prefix) {
			if err := each(name, source.Stamp{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Ensure that wildcards match the files and the objects of testdata/wildcards.json. Tests of Python read it too.
func TestWildcards(t *testing.T) {
	var cases struct {
		Files   []string
		Matched []struct {
			Pattern string
			Paths   []string
		}
		Refused []struct{ Pattern, Error string }
	}
	text, err := os.ReadFile("testdata/wildcards.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil || len(cases.Matched) == 0 || len(cases.Refused) == 0 {
		t.Fatal(cases, err)
	}
	t.Chdir(t.TempDir())
	for _, name := range cases.Files {
		fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, nil, 0o600)))
	}
	ofFiles := func(pattern string) ([]string, error) { return shardPaths(t.Context(), nil, pattern, false) }
	ofObjects := func(pattern string) ([]string, error) {
		return shardPaths(t.Context(), bucket{names: cases.Files}, pattern, false)
	}
	for name, paths := range map[string]func(pattern string) ([]string, error){"files": ofFiles, "objects": ofObjects} {
		for _, c := range cases.Matched {
			if got, err := paths(c.Pattern); err != nil || !reflect.DeepEqual(got, c.Paths) {
				t.Errorf("%s: %q: %q, %v; want %q", name, c.Pattern, got, err, c.Paths)
			}
		}
		for _, c := range cases.Refused {
			if got, err := paths(c.Pattern); !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), c.Error) {
				t.Errorf("%s: %q: %q, %v; want %q", name, c.Pattern, got, err, c.Error)
			}
		}
	}
	sorted, err := shardPaths(t.Context(), nil, "{x,t[!1],y*,[x]}.tar", true)
	if err != nil || !slices.Equal(sorted, []string{"t!.tar", "t2.tar", "t^.tar", "x.tar"}) {
		t.Error(sorted, err)
	}
	if got, err := ofFiles("./.h/../a//t*.tar"); err != nil || !slices.Equal(got, []string{"a/t1.tar", "a/t2.tar"}) {
		t.Error(got, err)
	}
}

// Ensure that links lead to their files once, even in a circle, that nothing waits for a pipe, and that no folder that is closed
// is left out in silence.
func TestWildcardsOfLinks(t *testing.T) {
	t.Chdir(t.TempDir())
	err := errors.Join(os.MkdirAll("a/b", 0o700), os.MkdirAll("c/d", 0o700), os.WriteFile("a/b/1.tar", nil, 0o600),
		os.Symlink("../..", "a/b/up"), os.Symlink(".", "self"), os.Symlink("../a", "c/to"), os.Symlink("1.tar", "a/b/2.tar"),
		os.Symlink("none", "a/none.tar"), os.Symlink("b", "a/b.tar"), syscall.Mkfifo("a/pipe.tar", 0o600))
	fatal.If(t, err)
	for pattern, want := range map[string][]string{
		"a/*.tar":     {"a/none.tar"},
		"a/**/*.tar":  {"a/b.tar/1.tar", "a/b.tar/2.tar", "a/b/1.tar", "a/b/2.tar", "a/none.tar"},
		"self/*/*/1*": {"self/a/b.tar/1.tar", "self/a/b/1.tar"},
		"c/**/b/*":    {"c/to/b/1.tar", "c/to/b/2.tar"},
		"**/d/**":     nil,
	} {
		if got, err := shardPaths(t.Context(), nil, pattern, true); !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %q, %v", pattern, got, err)
		}
	}
	if os.Geteuid() == 0 {
		return // who may read all
	}
	fatal.If(t, os.Chmod("c/d", 0))
	expect.Fails(shardPaths(t.Context(), nil, "**/*.tar", true))(t, fs.ErrPermission)
}
