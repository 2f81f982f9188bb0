package dir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

func TestManifest(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one", "b/2": "two", ".hidden": "h", "with, comma": "c", `q"uote`: "q", "path": "p", "tab\tbed": "t"})
	for name, c := range map[string]struct {
		text   string
		want   []string
		labels []int64 // nil: no labels
	}{
		"paths":                {"b/2\na/1\n", []string{"b/2", "a/1"}, nil},
		"no last line break":   {"b/2\na/1", []string{"b/2", "a/1"}, nil},
		"CRLF, empty lines":    {"\r\nb/2\r\n\r\na/1\r\n", []string{"b/2", "a/1"}, nil},
		"byte order mark":      {"\xEF\xBB\xBFpath\nb/2\n", []string{"b/2"}, nil},
		"header":               {"path\na/1\n", []string{"a/1"}, nil},
		"a file named path":    {"./path\na/1\npath\n", []string{"path", "a/1", "path"}, nil},
		"twice":                {"a/1\na/1\n./a//1\n", []string{"a/1", "a/1", "a/1"}, nil},
		"hidden":               {".hidden\n", []string{".hidden"}, nil},
		"quotes":               {"\"with, comma\"\n\"q\"\"uote\"\n", []string{"with, comma", `q"uote`}, nil},
		"labels not asked for": {"a/1,x\n", []string{"a/1"}, nil},
		"numbers":              {"path,label\na/1,5\nb/2, -7 \n", []string{"a/1", "b/2"}, []int64{5, -7}},
		"tabs":                 {"a/1\t5\nwith, comma\t6\n", []string{"a/1", "with, comma"}, []int64{5, 6}},
		"tabs and quotes":      {"path\tlabel\n\"tab\tbed\"\t1\n", []string{"tab\tbed"}, []int64{1}},
		"names": {"a/1,dog\nb/2,cat\na/1,emu\nb/2,dog\n", []string{"a/1", "b/2", "a/1", "b/2"},
			[]int64{1, 0, 2, 1}},
		"64 bits": {"a/1,9223372036854775807\nb/2,-9223372036854775808\n", []string{"a/1", "b/2"},
			[]int64{1<<63 - 1, -1 << 63}},
	} {
		path := root + ".csv"
		add(t, path, c.text)
		settings := source.Settings{"manifest": path}
		if c.labels != nil {
			settings["labels"] = "manifest"
		}
		s, err := open(root, settings)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantNames(t, s, root, c.want...)
		for i, want := range c.labels {
			if _, got := fields(t, s, i); got != want {
				t.Errorf("%s: sample %d has label %d, want %d", name, i, got, want)
			}
		}
		switch name {
		case "labels not asked for":
			sourcetest.WantNote(t, s, "labels", "are not read")
		case "names":
			sourcetest.WantNote(t, s, "classes", `["cat","dog","emu"]`)
		}
		s.Close()
	}
}

func TestManifestRefuses(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one", "b/2": "two"})
	fatal.If(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	for name, c := range map[string]struct {
		text   string
		labels bool
		want   string // part of the message
	}{
		"empty":           {"", false, "the manifest lists no files"},
		"header only":     {"path,label\n", false, "the manifest lists no files"},
		"absolute":        {"a/1\n/etc/passwd\n", false, `line 2 "/etc/passwd" is not a path below the folder`},
		"above":           {"a/../../x\n", false, `line 1 "a/../../x" is not a path below`},
		"the folder":      {".\n", false, `"." is not a path`},
		"no path":         {"a/1,1\n,2\n", false, `line 2 "" is not a path`},
		"NUL":             {"a\x00b\n", false, "is not a path"},
		"HTML":            {"\n<!DOCTYPE html>\n<html><body>Please log in</body></html>\n", false, "a page of HTML"},
		"columns":         {"a/1,1,2\n", false, "line 1 has 3 columns"},
		"columns differ":  {"a/1,1\nb/2\n", false, "line 2"},
		"open quote":      {"\"a/1\n", false, "quote"},
		"a folder":        {"a/1\nb\n", false, "line 2: invalid source: " + root + "/b is not a regular file"},
		"a FIFO":          {"fifo\n", false, "is not a regular file"},
		"no labels":       {"a/1\n", true, "line 1 has no label"},
		"a label missing": {"a/1,1\nb/2,\n", true, "line 2 has no label"},
		"a slip":          {"a/1,1\nb/2,O\n", true, `the label of line 1 is a number (1), that of line 2 is not ("O")`},
		"a slip before":   {"a/1,x\nb/2,0\n", true, `the label of line 2 is a number (0), that of line 1 is not ("x")`},
		"65 bits":         {"a/1,9223372036854775808\n", true, "line 1: the label 9223372036854775808 has more than 64 bits"},
	} {
		path := root + ".csv"
		add(t, path, c.text)
		settings := source.Settings{"manifest": path}
		if c.labels {
			settings["labels"] = "manifest"
		}
		s, err := open(root, settings)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	add(t, root+".csv", "a/1\nb/none\n")
	if _, err := open(root, source.Settings{"manifest": root + ".csv"}); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), "b/none") {
		t.Error(err)
	}
}

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
