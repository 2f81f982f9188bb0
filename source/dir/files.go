package dir

import (
	"strings"

	"github.com/stocached/stocached/source"
)

// files are the files of a tree, in the order of the samples. Flat arrays, not a struct with a string each: with millions of files they take a third less, and the
// garbage collector has nothing to look through.
type files struct {
	names  string   // slash-separated, below the root, one behind the other
	ends   []uint64 // of each in names
	stamps []source.Stamp
	labels []int64 // nil: there are none
}

func newFiles(names []string, stamps []source.Stamp, labels []int64) files {
	f := files{ends: make([]uint64, len(names)), stamps: stamps, labels: labels}
	end := 0
	for i, name := range names {
		end += len(name)
		f.ends[i] = uint64(end)
	}
	f.names = strings.Join(names, "")
	return f
}

func (f *files) len() int { return len(f.ends) }

func (f *files) name(i int) string {
	start := uint64(0)
	if i > 0 {
		start = f.ends[i-1]
	}
	return f.names[start:f.ends[i]]
}

// largest returns the index of the largest file.
func (f *files) largest() (i int) {
	for k := range f.stamps {
		if f.stamps[k].Bytes > f.stamps[i].Bytes {
			i = k
		}
	}
	return i
}

// below says whether a name is a path below the root that is written in its shortest form, so that it cannot lead out of it but by a link.
func below(name string) bool {
	for rest, more := name, true; more; {
		var element string
		element, rest, more = strings.Cut(rest, "/")
		if element == "" || element == "." || element == ".." {
			return false
		}
	}
	return strings.IndexByte(name, 0) < 0
}
