package dir

import (
	"context"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"
)

// foundObjects lists the objects below an address. A name that a file system could not have, such as
// one with an empty part, is skipped and counted. It keeps nothing of a page of the listing but what the
// files need.
func (o *settings) foundObjects(ctx context.Context, objects source.Objects, root string, keep func(string) bool) (
	*listing, error) {
	l, outside, labelled := &listing{}, 0, o.Labels == labelsOfFolders
	var w skips
	b := newBuilder(o.listFolder(), labelled)
	var classes []string // in the order of the listing
	var used []bool
	err := objects.List(ctx, root+"/", func(object string, stamp source.Stamp) error {
		name := strings.TrimPrefix(object, root+"/")
		switch {
		case !below(name):
			w.skip(name, "not a path")
			return nil
		case !o.Hidden && (name[0] == '.' || strings.Contains(name, "/.")):
			return nil
		}
		class, _, inside := strings.Cut(name, "/")
		if inside && labelled && (len(classes) == 0 || class != classes[len(classes)-1]) {
			classes, used = append(classes, strings.Clone(class)), append(used, false) // without the rest of the name
		}
		e := entry{name: []byte(name), stamp: stamp}
		switch {
		case !keep(name):
			return nil
		case labelled && !inside:
			outside++
			return nil
		case labelled:
			e.label = int64(len(classes) - 1)
			used[e.label] = true
		}
		return b.add(&e)
	})
	if err == nil && b.files.n == 0 {
		err = o.nothing(root, outside)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	l.Notes = w.notes()
	if l.files, err = b.done(); err == nil && labelled {
		o.nameClasses(l, classes, used, outside)
	}
	return l, err
}

// nameClasses sorts classes, and notes the number of each in that order. used says which of them have files.
func (o *settings) nameClasses(l *listing, classes []string, used []bool, outside int) {
	l.Classes = slices.Compact(slices.Sorted(slices.Values(classes)))
	l.Numbers = make([]int64, len(classes))
	sorted := make([]bool, len(l.Classes))
	for k, class := range classes {
		number, _ := slices.BinarySearch(l.Classes, class)
		l.Numbers[k] = int64(number)
		sorted[number] = sorted[number] || used[k]
	}
	l.files.numbers = l.Numbers
	o.noteClasses(l, sorted, outside)
}
