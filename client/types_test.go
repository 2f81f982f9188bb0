package client_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// parsed is the documentation of a package in a folder of the repository.
func parsed(t *testing.T, folder string) *doc.Package {
	t.Helper()
	set := token.NewFileSet()
	paths := fatal.Value(filepath.Glob("../" + folder + "/*.go"))(t)
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f := fatal.Value(parser.ParseFile(set, path, nil, parser.ParseComments))(t)
		files = append(files, f)
	}
	p := fatal.Value(doc.NewFromFiles(set, files, "github.com/stocached/stocached/"+folder))(t)
	return p
}

// Ensure that `go doc client.TYPE` names all fields and methods of each type that is another package's.
func TestAliasesAreDocumented(t *testing.T) {
	others := map[string]*doc.Package{}
	aliases := 0
	var check func(comment, folder, name string)
	check = func(comment, folder, name string) {
		if others[folder] == nil {
			others[folder] = parsed(t, folder)
		}
		for _, other := range others[folder].Types {
			if other.Name != name {
				continue
			}
			var members []string
			for _, m := range other.Methods {
				members = append(members, m.Name)
			}
			switch is := other.Decl.Specs[0].(*ast.TypeSpec).Type.(type) {
			case *ast.StructType:
				for _, f := range is.Fields.List {
					for _, n := range f.Names {
						members = append(members, n.Name)
					}
				}
			case *ast.SelectorExpr: // an alias of an alias
				check(comment, is.X.(*ast.Ident).Name, is.Sel.Name)
			}
			for _, m := range members {
				if ast.IsExported(m) && !regexp.MustCompile(`\b`+m+`\b`).MatchString(comment) {
					t.Errorf("the comment of %s.%s does not name %s", folder, name, m)
				}
			}
		}
	}
	for _, is := range parsed(t, "client").Types {
		spec := is.Decl.Specs[0].(*ast.TypeSpec)
		if other, ok := spec.Type.(*ast.SelectorExpr); ok && spec.Assign.IsValid() {
			aliases++
			check(is.Doc, other.X.(*ast.Ident).Name, other.Sel.Name)
		}
	}
	if aliases < 10 {
		t.Errorf("found %d aliases", aliases)
	}
}
