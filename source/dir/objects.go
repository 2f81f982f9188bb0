package dir

import (
	"context"
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
	var all classes
	b := newBuilder(o.listFolder(), labelled)
	err := objects.List(ctx, root+"/", func(object string, stamp source.Stamp) error {
		name := strings.TrimPrefix(object, root+"/")
		e := entry{name: []byte(name), stamp: stamp}
		class, inside := classOf(name)
		if labelled && inside {
			e.label = all.add(class) // also that of an object that is no sample
		}
		switch {
		case source.StandsForFolder(object):
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
			all.used[e.label] = true
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
		l.Numbers = all.sort()
		l.files.numbers, l.Classes = l.Numbers, all.names
		l.noteClasses(&all, outside)
	}
	return l, err
}
