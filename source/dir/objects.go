package dir

import (
	"cmp"
	"context"
	"strings"

	"github.com/stocached/stocached/source"
)

// foundObjects lists the objects below an address. A name that a file system could not have, such as
// one with an empty part, is skipped and counted. It keeps nothing of a page of the listing but what the
// files need.
func (o *settings) foundObjects(ctx context.Context, objects source.Objects, root string, keep func(string) bool) (
	*listing, error) {
	outside, labelled := 0, o.Labels == labelsOfFolders
	var w skips
	var all classes
	b := newBuilder(o.listFolder())
	defer b.close()
	err := objects.List(ctx, root+"/", func(object string, stamp source.Stamp) error {
		name := strings.TrimPrefix(object, root+"/")
		var label int64
		class, inside := classOf(name)
		if labelled && inside {
			label = all.add(class) // also that of an object that is no sample
		}
		switch {
		case source.StandsForFolder(object):
			if bare := strings.TrimSuffix(name, "/"); stamp.Bytes > 0 && keep(bare) {
				w.skip(name, "a name that ends in / and has data")
			}
			return nil
		case !below(name):
			w.skip(name, "not a path")
			return nil
		case !o.Hidden && (name[0] == '.' || strings.Contains(name, "/.")), !keep(name):
			return nil
		case labelled && !inside:
			outside++
			return nil
		case labelled:
			all.used[label] = true
		}
		return cmp.Or(source.CheckElsewhere(ctx, name), b.add(name, stamp, label))
	})
	if err != nil {
		return nil, err
	}
	l := &listing{rest: rest{Notes: append(w.notes(), objects.Notes()...)}}
	return l, o.finish(ctx, l, b, &all, root, outside, false)
}
