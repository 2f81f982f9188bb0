package dir

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"
)

// foundObjects lists the objects below an address. A name that a file system could not have, such as
// one with an empty part, is skipped and counted. It keeps nothing of a page of the listing but what the
// files need, so ten million objects take the memory of their index and little more.
func (o *settings) foundObjects(ctx context.Context, objects source.Objects, root string, keep func(string) bool) (
	*listing, error) {
	w := &walk{} // for its notes
	var b builder
	classes, class := []string{}, "" // in the order of the listing
	outside, labelled := 0, o.Labels == labelsOfFolders
	err := objects.List(ctx, root+"/", func(object string, stamp source.Stamp) error {
		name := strings.TrimPrefix(object, root+"/")
		switch {
		case !below(name):
			w.skipped = append(w.skipped, name+" (not a path)")
			return nil
		case !o.Hidden && (name[0] == '.' || strings.Contains(name, "/.")):
			return nil
		}
		first, _, inside := strings.Cut(name, "/")
		if inside && labelled && first != class {
			class = strings.Clone(first) // without the rest of the name
			classes = append(classes, class)
		}
		switch {
		case !keep(name):
		case labelled && !inside:
			outside++
		case labelled:
			b.add(name, stamp, int64(len(classes)-1))
		default:
			b.add(name, stamp, 0)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	l := &listing{rest: rest{Notes: w.notes()}, files: b.files(labelled)}
	if labelled {
		o.nameClasses(l, classes, outside)
	}
	if l.files.len() == 0 {
		return nil, o.nothing(root, outside)
	}
	return l, nil
}

// nameClasses sorts classes, and gives each file the number of its class in that order.
func (o *settings) nameClasses(l *listing, classes []string, outside int) {
	l.Classes = slices.Compact(slices.Sorted(slices.Values(classes)))
	used, numbers := make([]bool, len(l.Classes)), make([]int, len(classes))
	for k, class := range classes {
		numbers[k], _ = slices.BinarySearch(l.Classes, class)
	}
	for i := range l.files.len() {
		k := numbers[l.files.label(i)]
		used[k] = true
		binary.LittleEndian.PutUint64(l.files.labels[i*wordBytes:], uint64(k))
	}
	o.noteClasses(l, used, outside)
}
