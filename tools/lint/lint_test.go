package lint_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

type goPackage struct {
	ImportPath string
	Doc        string
	GoFiles    []string
}

// packages returns the packages of this module, as `go list` sees them without cgo.
func packages(t *testing.T) []goPackage {
	t.Helper()
	command := exec.Command("go", "list", "-json=ImportPath,Doc,GoFiles", "./...")
	command.Dir = root(t)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs("../..")
	fatal.If(t, err)
	return folder
}

// A package's first comment lets a reader use it without opening another file.
func TestEveryPackageHasAComment(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 { // test files count for nothing here
			t.Errorf("package %s has no comment", p.ImportPath)
		}
	}
}

// What belongs to one machine does not belong here: home folders, private package indexes, and keys.
var foreign = regexp.MustCompile(`/(root|home)/[a-z.]|/work/(main|shared|\.)|--(extra-)?index-url|` +
	`\b(10\.\d+|192\.168|172\.(1[6-9]|2\d|3[01]))\.\d+\.\d+\b|BEGIN [A-Z ]*PRIVATE KEY|gh[pousr]_[A-Za-z0-9]{30}`)

func TestNothingOfOneMachine(t *testing.T) {
	eachLine(t, func(name string, number int, line string) {
		expect.Equal(t, foreign.FindString(line), "", "%s:%d: of one machine", name, number)
	})
}

// A comment at the end of a line says what the line has: "bytes of a page", not "of a page".
var withoutNoun = regexp.MustCompile(`^.*\S\s+(#|//|/\*) (of|that) `)

func TestCommentsHaveANoun(t *testing.T) {
	code := regexp.MustCompile(`\.(c|go|h|py)$`)
	eachLine(t, func(name string, number int, line string) {
		if code.MatchString(name) && !strings.HasPrefix(line, "//") {
			expect.Equal(t, withoutNoun.FindString(line), "", "%s:%d: give this comment a noun", name, number)
		}
	})
}

// eachLine calls check for each line of the text files of this work tree, but for those of this file.
func eachLine(t *testing.T, check func(name string, number int, line string)) {
	t.Helper()
	command := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	command.Dir = root(t)
	out, err := command.Output()
	if err != nil {
		t.Skipf("no git work tree here (%v): nothing to list files with", err)
	}
	files := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	if len(files) < 10 {
		t.Fatalf("only %d files", len(files))
	}
	for _, name := range files {
		if name == "tools/lint/lint_test.go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, not yet committed
		} else if err != nil {
			t.Fatal(err)
		}
		if len(text) > 8000 && strings.IndexByte(string(text[:8000]), 0) >= 0 {
			continue // binary
		}
		for number, line := range strings.Split(string(text), "\n") {
			check(name, number+1, line)
		}
	}
}
