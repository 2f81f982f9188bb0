package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that generated files are those that shm/layout.go and shm/option_table.go make.
func TestGeneratedFilesAreClean(t *testing.T) {
	for path, write := range generated {
		have := fatal.Value(os.ReadFile("../" + path))(t)
		if string(have) != write(string(have)) {
			t.Errorf("%s differs from what package shm says: run go generate ./shm and commit it", path)
		}
	}
}

// Ensure that the C header has all constants of the layout, and of the rules about memory.
func TestHeaderIsComplete(t *testing.T) {
	for name, least := range map[string]int{"../../shm/layout.go": 80, "../../shm/memory/space.go": 8} {
		if constants := completeFor(t, name); constants < least {
			t.Fatalf("only %d constants found in %s", constants, name)
		}
	}
}

// completeFor looks for the constants of a file in the C header, and counts them.
func completeFor(t *testing.T, path string) (constants int) {
	t.Helper()
	file := fatal.Value(parser.ParseFile(token.NewFileSet(), path, nil, 0))(t)
	text := strings.ReplaceAll(string(header()), "_", "")
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				// STOC_VARIABLE_DIM is in stocached.h, and UINT64_MAX in C
				if name.Name == "_" || name.Name == "VariableDim" || name.Name == "Unlimited" {
					continue
				}
				constants++
				upper := strings.ToUpper(name.Name)
				if !strings.Contains(text, " STOC"+upper+" ") && !strings.Contains(text, " STOCCOUNTER"+upper+" ") {
					t.Errorf("%s of %s is not in the header: add it to main.go", name.Name, path)
				}
			}
		}
	}
	return constants
}
