package config_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server/config"

	"golang.org/x/tools/txtar"
)

// unpack writes the files of an archive of testdata into a new folder, and returns it.
func unpack(t *testing.T, archive string) (folder string) {
	t.Helper()
	a := fatal.Value(txtar.ParseFile(filepath.Join("testdata", archive)))(t)
	files := fatal.Value(txtar.FS(a))(t)
	folder = t.TempDir()
	fatal.If(t, os.CopyFS(folder, files))
	return folder
}

// wants returns the lines of the file beside a configuration: parts of its error message.
func wants(t *testing.T, path string) []string {
	t.Helper()
	text := fatal.Value(os.ReadFile(strings.TrimSuffix(path, filepath.Ext(path)) + ".want"))(t)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func glob(t *testing.T, pattern string, atLeast int) []string {
	t.Helper()
	all, err := filepath.Glob(pattern)
	if err != nil || len(all) < atLeast {
		t.Fatalf("%d files, %v", len(all), err)
	}
	return all
}

// Ensure that every good file, the example included, is accepted by a server.
func TestGoodFiles(t *testing.T) {
	for _, path := range append(glob(t, "testdata/good/*.yaml", 5), "../../config.example.yaml") {
		c, err := config.Load(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if o := c.Options(nil); len(o.Caches) == 0 || o.Caches[0].Name == "" || o.Caches[0].Source["kind"] == nil {
			t.Errorf("%s: %+v", path, o)
		}
	}
	every := fatal.Value(config.Load("testdata/good/every-key.yaml"))(t)
	defaults := fatal.Value(config.Load("testdata/good/defaults.yaml"))(t)
	if a, b := fmt.Sprint(defaults.Options(nil).Caches[0].Size, defaults.Limits, defaults.Admin, defaults.Metrics,
		defaults.Log), "0 {0 536870912} { false} {} {text info}"; a != b {
		t.Errorf("defaults: %s", a)
	}
	if a := every.Options(nil).Caches[0]; a.Size != 3<<29 || a.Parallel != 32 || a.ReadTimeout.Minutes() != 90 ||
		a.RemoveUnused.Hours() != 24 || a.Dir == "" || len(a.Decode) != 2 || len(a.Tiers) != 1 ||
		a.Tiers[0]["password_file"] != "testdata/good/p" || a.Unnamed ||
		!every.Options(nil).Caches[1].Unnamed {
		t.Errorf("%+v", a)
	}
	text := fatal.Value(os.ReadFile("testdata/good/every-key.yaml"))(t)
	for _, key := range config.Keys() {
		if !regexp.MustCompile(`\b` + key + `:`).Match(text) {
			t.Errorf("every-key.yaml has no %s", key)
		}
	}
}

// Ensure that every bad file is refused with the expected message, which names the file, and that
// each complaint in the sources of this package has a file.
func TestBadFiles(t *testing.T) {
	var said []string
	for _, path := range glob(t, unpack(t, "bad.txtar")+"/*.yaml", 40) {
		c, err := config.Load(path)
		if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", path, c, err)
			continue
		}
		said = append(said, err.Error())
		for _, want := range wants(t, path) {
			expect.Says(t, err.Error(), want)
		}
	}
	expect.Fails(config.Load(filepath.Join(t.TempDir(), "none.yaml")))(t, os.ErrNotExist)
	for _, format := range complaints(t) {
		pattern := regexp.MustCompile(`(?s)` + regexp.MustCompile(`%[a-z]`).ReplaceAllString(regexp.QuoteMeta(format),
			`.*`))
		if !slices.ContainsFunc(said, pattern.MatchString) {
			t.Errorf("no bad file is refused with %q", format)
		}
	}
}

// complaints returns the formats of errors and complaints in the sources of the package.
func complaints(t *testing.T) (formats []string) {
	t.Helper()
	for _, path := range glob(t, "*.go", 3) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file := fatal.Value(parser.ParseFile(token.NewFileSet(), path, nil, 0))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := ""
			switch f := call.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
			}
			if !slices.Contains([]string{"complain", "Errorf", "New", "Sprintf"}, name) {
				return true
			}
			for _, argument := range call.Args {
				if literal, ok := argument.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					text := fatal.Value(strconv.Unquote(literal.Value))(t)
					// that one is about a missing file
					if strings.Contains(text, " ") && !strings.HasPrefix(text, "read the configuration") {
						formats = append(formats, text)
					}
				}
			}
			return true
		})
	}
	if len(formats) < 19 {
		t.Fatalf("only %d complaints found: %q", len(formats), formats)
	}
	return formats
}
