package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// Ensure that generated files are those that shm/layout.go and shm/option_table.go make.
func TestGeneratedFilesAreClean(t *testing.T) {
	for path, write := range generated {
		have, err := os.ReadFile("../" + path)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != write(string(have)) {
			t.Errorf("%s differs from what package shm says: run go generate ./shm and commit it", path)
		}
	}
}

// Ensure that the C header has all constants of the layout.
func TestHeaderIsComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../shm/layout.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, constants := string(header()), 0
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if name.Name == "_" || name.Name == "VariableDim" { // that one is STOC_VARIABLE_DIM of stocached.h
					continue
				}
				if constants++; !strings.Contains(strings.ReplaceAll(text, "_", ""),
					" STOC"+strings.ToUpper(name.Name)+" ") &&
					!strings.Contains(strings.ReplaceAll(text, "_", ""), " STOCCOUNTER"+strings.ToUpper(name.Name)+
						" ") {
					t.Errorf("%s of shm/layout.go is not in the header: add it to main.go", name.Name)
				}
			}
		}
	}
	if constants < 80 {
		t.Fatalf("only %d constants found in shm/layout.go", constants)
	}
}
