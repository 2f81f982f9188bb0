package dir_test

import (
	"errors"
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

func TestSuite(t *testing.T) {
	// The first in order is large, and not a whole number of blocks.
	contents := map[string]string{"cat/1.bin": long(300_001, 1), "cat/2.bin": "two", "dog/a/3.bin": long(70_000, 3),
		"dog/empty.bin": "", "top.bin": "top"}
	order := []string{"cat/1.bin", "cat/2.bin", "dog/a/3.bin", "dog/empty.bin", "top.bin"}
	label := map[string]int64{"cat": 0, "dog": 1}
	for name, v := range map[string]struct {
		settings source.Settings
		order    []string
		manifest string
		label    func(name string) int64 // nil: no labels
		late     bool
	}{
		"plain":     {order: order},
		"glob":      {settings: source.Settings{"glob": "**/*.bin"}, order: order},
		"none kept": {settings: source.Settings{"descriptors": 0}, order: order},
		"one kept":  {settings: source.Settings{"descriptors": 1}, order: order},
		"some kept": {settings: source.Settings{"descriptors": 3}, order: order},
		"folders": {settings: source.Settings{"labels": "folders"}, order: order[:4],
			label: func(name string) int64 { return label[name[:3]] }},
		"manifest": {manifest: "cat/1.bin\ntop.bin\ncat/2.bin\n", order: []string{"cat/1.bin", "top.bin", "cat/2.bin"}},
		"manifest with labels": {settings: source.Settings{"labels": "manifest"},
			manifest: "path\tlabel\ncat/1.bin\t7\ntop.bin\t-8\ncat/2.bin\t7\n",
			order: []string{"cat/1.bin", "top.bin",
				"cat/2.bin"}, label: func(name string) int64 { return map[bool]int64{true: -8, false: 7}[name == "top.bin"] }},
		"index": {settings: source.Settings{"index": ""}, order: order, late: true},
		"index, folders": {settings: source.Settings{"labels": "folders", "index": ""}, order: order[:4], late: true,
			label: func(name string) int64 { return label[name[:3]] }},
		"index, manifest": {settings: source.Settings{"index": ""}, manifest: "cat/1.bin\ntop.bin\ncat/2.bin\n",
			order: []string{"cat/1.bin", "top.bin", "cat/2.bin"}, late: true},
	} {
		if testing.Short() && !slices.Contains([]string{"none kept", "one kept", "some kept", "index"}, name) {
			continue // the others differ in what one goroutine does when it opens the source
		}
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				root := write(t, contents)
				own := source.Settings{}
				for k, value := range v.settings {
					own[k] = value
				}
				if v.manifest != "" {
					own["manifest"] = root + ".csv"
					add(t, root+".csv", v.manifest)
				}
				f := sourcetest.Fixture{Open: func(*testing.T) (source.Source, error) { return open(root, own) },
					Files: []string{filepath.Join(root, v.order[0])}, Late: v.late}
				for _, name := range v.order {
					want := []byte(contents[name])
					if v.label != nil {
						want = labelled(contents[name], v.label(name))
					}
					f.Want = append(f.Want, want)
				}
				if v.late {
					own["index"] = root + ".index"
					s := mustOpen(t, root, own) // writes the index, which the suite reads
					sourcetest.WantNote(t, s, "index", "written")
					s.Close()
					s = mustOpen(t, root, own)
					sourcetest.WantNote(t, s, "index", "read from")
					s.Close()
				}
				return f
			})
		})
	}
}

func TestDescribes(t *testing.T) {
	root := write(t, map[string]string{"b/x": "12345", "a/y": "", "a/z": "1"})
	s := mustOpen(t, root, nil)
	info := s.Info()
	if info.Kind != "dir" || info.Samples != 3 || !info.Schema.Variable || info.Schema.SampleBytes != 5 ||
		dtypes(info.Schema) != "data bytes 1;" || !strings.HasPrefix(info.Fingerprint, "dir-") {
		t.Errorf("%+v", info)
	}
	sourcetest.WantNote(t, s, "bytes", "6 in all, 5 in the largest file")
	sourcetest.WantNote(t, s, "empty files", "1, the first is a/y")
	s = mustOpen(t, root, source.Settings{"labels": "folders"})
	if info := s.Info(); dtypes(info.Schema) != "data bytes 1;label int64 0;" || info.Schema.SampleBytes != 256 {
		t.Errorf("%+v", info)
	}
	sourcetest.WantNote(t, s, "classes", `["a","b"]`)
}

// The order is that of the bytes of whole paths, in which a dash and a dot come before a slash.
func TestOrder(t *testing.T) {
	root := write(t, map[string]string{"a/x": "", "a-b/x": "", "a.b": "", "B": "", "a/10": "", "a/9": "", "é": "", "z": "", "\xff": "", "a0": ""})
	wantNames(t, mustOpen(t, root, nil), root, "B", "a-b/x", "a.b", "a/10", "a/9", "a/x", "a0", "z", "é", "\xff")
}

func TestGlob(t *testing.T) {
	root := write(t, map[string]string{"1.jpg": "", "a/2.jpg": "", "a/b/3.JPG": "", "a/b/4.png": "", ".h/5.jpg": "", "a/.6.jpg": "", "a/[7].jpg": ""})
	for glob, want := range map[string][]string{
		"":                  {"1.jpg", "a/2.jpg", "a/[7].jpg", "a/b/3.JPG", "a/b/4.png"},
		"**":                {"1.jpg", "a/2.jpg", "a/[7].jpg", "a/b/3.JPG", "a/b/4.png"},
		"*.jpg":             {"1.jpg"},
		"**/*.jpg":          {"1.jpg", "a/2.jpg", "a/[7].jpg"},
		"**/*.{jpg,JPG}":    {"1.jpg", "a/2.jpg", "a/[7].jpg", "a/b/3.JPG"},
		"a/**":              {"a/2.jpg", "a/[7].jpg", "a/b/3.JPG", "a/b/4.png"},
		"a/*/[0-9].*":       {"a/b/3.JPG", "a/b/4.png"},
		"**/\\[7\\].jpg":    {"a/[7].jpg"},
		"{1.jpg,a/b/4.png}": {"1.jpg", "a/b/4.png"},
	} {
		wantNames(t, mustOpen(t, root, source.Settings{"glob": glob}), root, want...)
	}
	wantNames(t, mustOpen(t, root, source.Settings{"glob": "**/*.jpg", "hidden": true}), root, ".h/5.jpg", "1.jpg",
		"a/.6.jpg", "a/2.jpg", "a/[7].jpg")
}

func TestRefuses(t *testing.T) {
	root := write(t, map[string]string{"a/1.jpg": "one", "2.jpg": "two"})
	file := filepath.Join(root, "2.jpg")
	manifest := root + ".csv"
	add(t, manifest, "2.jpg,5\n")
	for name, c := range map[string]struct {
		settings source.Settings
		want     string // part of the message
	}{
		"no path":              {source.Settings{"path": ""}, "no path"},
		"a file":               {source.Settings{"path": file}, file + " is not a folder"},
		"a file, index":        {source.Settings{"path": file, "index": root + ".index"}, file + " is not a folder"},
		"a file, manifest":     {source.Settings{"path": file, "manifest": manifest}, file + " is not a folder"},
		"two lists":            {source.Settings{"glob": "*", "manifest": manifest}, "leave out glob"},
		"bad glob":             {source.Settings{"glob": "[a"}, `glob "[a" is no pattern`},
		"bad labels":           {source.Settings{"labels": "names"}, `labels is "names"; known are: none, folders, manifest`},
		"labels of nothing":    {source.Settings{"labels": "manifest"}, "needs a manifest"},
		"negative descriptors": {source.Settings{"descriptors": -1}, "descriptors is -1"},
		"many descriptors":     {source.Settings{"descriptors": 1 << 40}, "raise the limit"},
		"nothing matches":      {source.Settings{"glob": "*.png"}, `has no file that matches "*.png"`},
		"nothing in a class": {source.Settings{"glob": "*.jpg", "labels": "folders"},
			"in a folder of a class; 1 lie beside the folders"},
		"unknown key":          {source.Settings{"paht": "x"}, `unknown key "paht"; known are: descriptors, glob, hidden, index, labels, manifest, path`},
		"index inside":         {source.Settings{"index": filepath.Join(root, "a/index")}, "put it outside"},
		"manifest is a folder": {source.Settings{"manifest": root}, "is not a regular file"},
		"labels not in a folder": {source.Settings{"manifest": manifest, "labels": "folders"},
			"line 1: 2.jpg is not in the folder of a class"},
	} {
		s, err := open(root, c.settings)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	hidden := write(t, map[string]string{".x": "", ".y/z": ""})
	if _, err := open(hidden, nil); !errors.Is(err, source.ErrInvalid) ||
		!strings.Contains(err.Error(), hidden+" has no file; names that begin with a dot are left out") {
		t.Error(err)
	}
	for name, settings := range map[string]source.Settings{
		"no folder":             {"path": root + "-none"},
		"no folder, index":      {"path": root + "-none", "index": root + ".index"},
		"no manifest":           {"manifest": root + "-none.csv"},
		"no place for an index": {"index": root + "-none/index"},
	} {
		if _, err := open(root, settings); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), root+"-none") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file that exceeds the limit of samples is refused when the tree is opened. It is a hole and
// takes no space.
func TestTooLarge(t *testing.T) {
	root := write(t, map[string]string{"large": "", "small": "x"})
	if err := os.Truncate(filepath.Join(root, "large"), 1<<32); err != nil {
		t.Skip(err)
	}
	if _, err := open(root, nil); !errors.Is(err, source.ErrInvalid) ||
		!strings.Contains(err.Error(), filepath.Join(root, "large")+" has 4294967296 bytes") {
		t.Error(err)
	}
	wantNames(t, mustOpen(t, root, source.Settings{"glob": "small"}), root, "small")
}

// The same files have the same fingerprint in any place, and however they are found. Other names,
// labels or times change it.
func TestFingerprint(t *testing.T) {
	root := write(t, map[string]string{"a/1": "one", "b/2": "two"})
	first := mustOpen(t, root, nil).Info().Fingerprint
	moved := root + "-moved"
	fatal.If(t, os.Rename(root, moved))
	add(t, root+".csv", "a/1\nb/2\n")
	for name, settings := range map[string]source.Settings{"moved": nil, "glob": {"glob": "*/*"},
		"manifest": {"manifest": root + ".csv"}, "none kept": {"descriptors": 0}} {
		expect.Equal(t, mustOpen(t, moved, settings).Info().Fingerprint, first, "%s", name)
	}
	all := []string{first}
	for _, list := range []string{"b/2\na/1\n", "a/1\n", "a/1,0\nb/2,1\n", "a/1,1\nb/2,1\n"} {
		add(t, root+".csv", list)
		settings := source.Settings{"manifest": root + ".csv"}
		if strings.Contains(list, ",") {
			settings["labels"] = "manifest"
		}
		all = append(all, mustOpen(t, moved, settings).Info().Fingerprint)
	}
	add(t, filepath.Join(moved, "a/3"), "")
	all = append(all, mustOpen(t, moved, nil).Info().Fingerprint)
	slices.Sort(all)
	if len(slices.Compact(all)) != 6 {
		t.Errorf("some fingerprints of different data are the same: %q", all)
	}
}
