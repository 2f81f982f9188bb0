package kinds_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
)

// labelCase is a case of source/testdata/labels.json, which the tests of Python read too.
type labelCase struct {
	Name    string
	Tree    []string // files, folders (a slash at the end), and links (" -> " and the target)
	Local   bool     // a bucket cannot have it
	Classes []string
	Labels  map[string]int64
	Empty   []string // classes without a picture
	Odd     []string // what the warning names
}

func labelCases(t *testing.T) (cases []labelCase) {
	t.Helper()
	text, err := os.ReadFile("../testdata/labels.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	fatal.If(t, err)
	return cases
}

// bytesOf returns a name of the table with its bytes that are not UTF-8.
func bytesOf(t *testing.T, name string) string {
	t.Helper()
	name = fatal.Value(url.PathUnescape(name))(t)
	return name
}

// makeTree makes the tree of a case in a folder.
func (c *labelCase) makeTree(t *testing.T, root string) {
	t.Helper()
	for _, item := range c.Tree {
		name, target, link := strings.Cut(item, " -> ")
		path := filepath.Join(root, bytesOf(t, name))
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case err != nil:
		case link:
			err = os.Symlink(target, path)
		case strings.HasSuffix(name, "/"):
			err = os.Mkdir(path, 0o755)
		default:
			err = os.WriteFile(path, []byte(name), 0o600)
		}
		fatal.If(t, err)
	}
}

// check compares classes, labels and warning of a source.
func (c *labelCase) check(t *testing.T, s source.Source, hidden bool) {
	t.Helper()
	said := sourcetest.Note(s, "odd classes")
	var want []string
	for _, class := range c.Classes {
		want = append(want, strings.ToValidUTF8(bytesOf(t, class), "�"))
	}
	var classes []string
	if err := json.Unmarshal([]byte(sourcetest.Note(s, "classes")), &classes); err != nil || !slices.Equal(classes, want) {
		t.Errorf("classes %s, want %q", sourcetest.Note(s, "classes"), want)
	}
	odd := slices.Clone(c.Odd)
	if !hidden { // then a class of hidden files has no file
		for number, class := range c.Classes {
			if !strings.HasPrefix(class, ".") && !slices.ContainsFunc(slices.Collect(maps.Keys(c.Labels)), func(name string) bool {
				return strings.HasPrefix(name, class+"/") && !strings.Contains(name, "/.")
			}) && !slices.Contains(c.Empty, class) {
				odd = append(odd, fmt.Sprintf("%s (class %d, no file)", class, number))
			}
		}
	}
	for _, part := range odd {
		expect.Says(t, said, part)
	}
	if n := strings.Count(said, "(class"); n > len(odd) || len(odd) == 0 && said != "" {
		t.Errorf("odd classes: %q, want %q", said, odd)
	}
	got := map[string]int64{}
	for i := range s.Info().Samples {
		n, err := s.Size(i)
		sample := make([]byte, n)
		if err == nil {
			_, err = s.Read(t.Context(), i, sample)
		}
		schema := s.Info().Schema
		parts, split := schema.Split(sample)
		if err != nil || split != nil {
			t.Fatal(err, split)
		}
		_, name, _ := strings.Cut(s.Where(i), "/data/")
		got[name] = int64(binary.LittleEndian.Uint64(parts[1].Data))
	}
	labels := map[string]int64{}
	for name, label := range c.Labels {
		if name = bytesOf(t, name); hidden || name[0] != '.' && !strings.Contains(name, "/.") {
			labels[name] = label
		}
	}
	if !maps.Equal(got, labels) {
		t.Errorf("labels %v, want %v", got, labels)
	}
}

// Ensure that the labels of folders are those of torchvision's ImageFolder, also from an index.
func TestLabelsOfFolders(t *testing.T) {
	for _, c := range labelCases(t) {
		for _, hidden := range []bool{false, true} {
			t.Run(fmt.Sprint(c.Name, " ", hidden), func(t *testing.T) {
				root := filepath.Join(t.TempDir(), "data")
				c.makeTree(t, root)
				for range 2 { // the second time from the index
					s := opened(t, source.Settings{"kind": "dir", "path": root, "labels": "folders",
						"glob": "**/*.jpg", "hidden": hidden, "index": root + ".index"})
					c.check(t, s, hidden)
				}
			})
		}
	}
}

// Ensure that folders of a bucket give the same labels. An object such as cat/ makes a folder without files.
func TestLabelsOfABucket(t *testing.T) {
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			for k, c := range labelCases(t) {
				if c.Local {
					continue
				}
				for _, item := range c.Tree {
					var data []byte
					if !strings.HasSuffix(item, "/") {
						data = []byte(item)
					}
					b.put(t, fmt.Sprint(k, "/data/", item), data)
				}
				t.Run(c.Name, func(t *testing.T) {
					s, err := b.open(fmt.Sprint(b.at, "/", k, "/data"),
						source.Settings{"kind": "dir", "labels": "folders", "glob": "**/*.jpg", "hidden": true})
					fatal.If(t, err)
					defer s.Close()
					c.check(t, s, true)
				})
			}
		})
	}
}
