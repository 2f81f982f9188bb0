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
	all := sorter{folder: o.listFolder(), labelled: labelled}
	defer all.close()
	numbers := map[string]int64{} // of classes, in the order of the listing
	var classes []string
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
		number, known := numbers[class]
		if inside && labelled && !known {
			class, number = strings.Clone(class), int64(len(classes)) // without the rest of the name
			numbers[class], classes, used = number, append(classes, class), append(used, false)
		}
		switch {
		case !keep(name):
			return nil
		case labelled && !inside:
			outside++
			return nil
		case labelled:
			used[number] = true
		}
		return all.add(heldFile{strings.Clone(name), stamp, number}) // without the rest of the address
	})
	if err == nil {
		l.files, err = all.done(ctx)
	}
	if err == nil && l.files.n == 0 {
		err = o.nothing(root, outside)
	}
	if err != nil {
		return nil, err
	}
	if l.Notes = append(w.notes(), objects.Notes()...); labelled {
		o.nameClasses(l, classes, used, outside)
	}
	return l, nil
}

// nameClasses sorts classes, and notes the number of each in that order. used says which of them have files.
func (o *settings) nameClasses(l *listing, classes []string, used []bool, outside int) {
	l.Classes = slices.Sorted(slices.Values(classes))
	l.Numbers = make([]int64, len(classes))
	sorted := make([]bool, len(l.Classes))
	for k, class := range classes {
		number, _ := slices.BinarySearch(l.Classes, class)
		l.Numbers[k] = int64(number)
		sorted[number] = used[k]
	}
	l.files.numbers = l.Numbers
	o.noteClasses(l, sorted, outside)
}
