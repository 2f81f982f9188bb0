package dir_test

import (
	"testing"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
)

// A class keeps its number when a glob or a manifest leaves out all files of other classes.
func TestLabelsOfAPart(t *testing.T) {
	root := write(t, map[string]string{"a/1.png": "a", "b/1.jpg": "b", "c/1.png": "c", "beside.jpg": "x", ".d/1.jpg": "d"})
	s := mustOpen(t, root, source.Settings{"labels": "folders", "glob": "**/*.jpg"})
	if data, label := fields(t, s, 0); data != "b" || label != 2 || s.Info().Samples != 1 {
		t.Errorf("%q is %d", data, label)
	}
	sourcetest.WantNote(t, s, "without a class", "1 files")
	sourcetest.WantNote(t, s, "odd classes", "also .d (class 0, hidden), a (class 1, no file), c (class 3, no file); remove")
	add(t, root+".csv", "c/1.png\nb/1.jpg\n")
	s = mustOpen(t, root, source.Settings{"labels": "folders", "manifest": root + ".csv"})
	for i, want := range []int64{3, 2} {
		if _, label := fields(t, s, i); label != want {
			t.Errorf("sample %d is %d, want %d", i, label, want)
		}
	}
	sourcetest.WantNote(t, s, "classes", `[".d","a","b","c"]`)
	sourcetest.WantNote(t, s, "odd classes", "also .d (class 0, hidden); remove")
}
