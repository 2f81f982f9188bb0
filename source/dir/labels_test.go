package dir_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/source"
)

// classFolders are names whose order is not obvious: cases, digits, letters beyond ASCII, and a
// name that begins another.
var classFolders = []string{"cat", "Cat", "cat-2", "cat.x", "dog", "10", "9", "é", "zebra", "日本", "𝄞", "￿", "a b"}

func classTree(t *testing.T) (root string) {
	contents := map[string]string{"beside": "x", "z/.hidden": "h", "empty/deep/.only": ""}
	for _, name := range classFolders {
		contents[name+"/b/2.jpg"] = name
		contents[name+"/1.jpg"] = name
	}
	outside := write(t, map[string]string{"x.jpg": "linked"})
	contents["linked"] = "-> " + outside
	return write(t, contents)
}

// The numbers follow the rule that torchvision's ImageFolder documents: the sorted names of the
// folders directly below the root. Samples have the number of their folder.
func TestLabelsOfFolders(t *testing.T) {
	root := classTree(t)
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(root, e.Name())); err == nil && info.IsDir() {
			want = append(want, e.Name())
		}
	}
	// as Python compares strings
	slices.SortFunc(want, func(a, b string) int { return slices.Compare([]rune(a), []rune(b)) })
	s := mustOpen(t, root, source.Settings{"labels": "folders"})
	var got []string
	if err := json.Unmarshal([]byte(note(s, "classes")), &got); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for i, name := range names(t, s, root) {
		class, _, _ := strings.Cut(name, "/")
		data, label := fields(t, s, i)
		if want[label] != class || data != class && class != "linked" {
			t.Errorf("%s: label %d (%s), data %q", name, label, want[label], data)
		}
	}
	if n := s.Info().Samples; n != 2*len(classFolders)+1 {
		t.Errorf("%d samples", n)
	}
	wantNote(t, s, "without a class", "1 files")
	wantNote(t, s, "classes without files", "2, the first is empty")
}

// The numbers are the same as in Python: those of torchvision if it is installed, else of the rule
// in its documentation.
func TestLabelsAsPython(t *testing.T) {
	root := classTree(t)
	const code = `
import json, os, sys
try:
    from torchvision.datasets.folder import find_classes
except ImportError:
    def find_classes(directory):
        classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
        return classes, {name: k for k, name in enumerate(classes)}
print(json.dumps(find_classes(sys.argv[1])[1]))
`
	out, err := exec.Command("python3", "-c", code, root).Output()
	if err != nil {
		t.Skipf("no python3 (%v): TestLabelsOfFolders holds the numbers against the same rule in Go", err)
	}
	var numbers map[string]int
	if err := json.Unmarshal(out, &numbers); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, root, source.Settings{"labels": "folders"})
	var classes []string
	if err := json.Unmarshal([]byte(note(s, "classes")), &classes); err != nil || len(classes) != len(numbers) {
		t.Fatalf("%q, %v; want %v", classes, err, numbers)
	}
	for k, class := range classes {
		if got, ok := numbers[class]; !ok || got != k {
			t.Errorf("%s is %d, in Python %d", class, k, got)
		}
	}
}

// A class keeps its number when a glob or a manifest leaves out all files of other classes.
func TestLabelsOfAPart(t *testing.T) {
	root := write(t, map[string]string{"a/1.png": "a", "b/1.jpg": "b", "c/1.png": "c"})
	s := mustOpen(t, root, source.Settings{"labels": "folders", "glob": "**/*.jpg"})
	if data, label := fields(t, s, 0); data != "b" || label != 1 || s.Info().Samples != 1 {
		t.Errorf("%q is %d", data, label)
	}
	add(t, root+".csv", "c/1.png\nb/1.jpg\n")
	s = mustOpen(t, root, source.Settings{"labels": "folders", "manifest": root + ".csv"})
	for i, want := range []int64{2, 1} {
		if _, label := fields(t, s, i); label != want {
			t.Errorf("sample %d is %d, want %d", i, label, want)
		}
	}
	wantNote(t, s, "classes", `["a","b","c"]`)
}
