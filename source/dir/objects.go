package dir

import (
	"context"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"
)

// foundObjects lists the objects below an address. A name that a file system could not have, such as
// one with an empty part, is skipped and counted.
func (o *settings) foundObjects(ctx context.Context, objects source.Objects, root string, keep func(string) bool) (
	*listing, error) {
	w := &walk{} // for its notes
	var names, classes []string
	var stamps []source.Stamp
	class := ""
	err := objects.List(ctx, root+"/", func(object string, stamp source.Stamp) error {
		name := strings.TrimPrefix(object, root+"/")
		switch {
		case !below(name):
			w.skipped = append(w.skipped, name+" (not a path)")
			return nil
		case !o.Hidden && (name[0] == '.' || strings.Contains(name, "/.")):
			return nil
		}
		if first, _, inside := strings.Cut(name, "/"); inside && first != class {
			class = first
			classes = append(classes, first)
		}
		if keep(name) {
			names, stamps = append(names, strings.Clone(name)), append(stamps, stamp)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	l := &listing{rest: rest{Notes: w.notes()}}
	inside, labels := o.label(l, names, slices.Compact(slices.Sorted(slices.Values(classes))))
	if len(inside) == 0 {
		return nil, o.nothing(root, len(names))
	}
	if len(inside) < len(names) { // those in folders, in their order
		k := 0
		for i, name := range names {
			if k < len(inside) && name == inside[k] {
				stamps[k] = stamps[i]
				k++
			}
		}
		stamps = stamps[:k]
	}
	l.files = newFiles(inside, stamps, labels)
	return l, nil
}
