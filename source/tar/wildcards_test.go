package tar

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

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
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	ofFiles := func(pattern string) ([]string, error) { return shardPaths(t.Context(), new(source.Place), pattern) }
	ofObjects := func(pattern string) (all []string, err error) {
		expanded, err := expandBraces(pattern)
		if err != nil {
			return nil, err
		}
		for _, one := range expanded {
			found, err := []string{one}, error(nil)
			if wild(one) {
				found, err = globObjects(t.Context(), bucket{names: cases.Files}, one)
			}
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
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
	if got, err := ofFiles("./.h/../a//t*.tar"); err != nil || !slices.Equal(got, []string{"a/t1.tar", "a/t2.tar"}) {
		t.Error(got, err)
	}
}
