package dir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/stocached/stocached/source"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// found lists the files of the tree.
func (o *settings) found(ctx context.Context, place *source.Place, root string) (*listing, error) {
	keep := func(name string) bool { return o.Glob == "" || doublestar.MatchUnvalidated(o.Glob, name) }
	if objects := place.Objects(); objects != nil {
		return o.foundObjects(ctx, objects, root, keep)
	}
	w := newWalk(root, o.Hidden, keep)
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	slices.Sort(w.names)
	slices.SortFunc(w.folders, func(a, b folder) int { return strings.Compare(a.Name, b.Name) })
	l := &listing{rest: rest{Folders: w.folders, Notes: w.notes()}}
	names, labels := o.label(l, w.names, classesOf(w.folders))
	if len(names) == 0 {
		return nil, o.nothing(root, len(w.names))
	}
	stamps, err := stamps(ctx, root, names)
	if err != nil {
		return nil, err
	}
	l.files = newFiles(names, stamps, labels)
	return l, nil
}

// label returns the files that are samples, and their labels: all of names, or with labels of folders
// those in the folder of a class. It adds classes and notes to l.
func (o *settings) label(l *listing, names, classes []string) (inside []string, labels []int64) {
	inside = names
	if o.Labels == labelsOfFolders {
		inside = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.Contains(name, "/") })
		l.Classes = classes
		var used []bool
		labels, used = labelsByFolder(inside, classes)
		o.noteClasses(l, used, len(names)-len(inside))
	}
	return inside, labels
}

// noteClasses adds notes: how many files lie outside folders, and which classes no file has used.
func (o *settings) noteClasses(l *listing, used []bool, outside int) {
	if outside > 0 {
		l.Notes = append(l.Notes, source.Note{Name: "without a class",
			Text: fmt.Sprintf("%d files outside folders were left out", outside)})
	}
	first, empty := "", 0
	for k, ok := range used {
		if !ok {
			first, empty = cmp.Or(first, l.Classes[k]), empty+1
		}
	}
	if empty > 0 {
		l.Notes = append(l.Notes, source.Note{Name: "classes without files",
			Text: fmt.Sprintf("%d, the first is %s", empty, first)})
	}
}

// nothing returns the error for a tree without samples.
func (o *settings) nothing(root string, outside int) error {
	what := "no file"
	if o.Glob != "" {
		what = fmt.Sprintf("no file that matches %q (matched against the whole path below it: "+
			"**/ matches any folders)", o.Glob)
	}
	if o.Labels == labelsOfFolders {
		what += " in a folder of a class"
		if outside > 0 {
			what += fmt.Sprintf("; %d lie beside the folders", outside)
		}
	}
	if !o.Hidden {
		what += "; names that begin with a dot are left out unless hidden is set"
	}
	return fmt.Errorf("%w: %s has %s", source.ErrInvalid, root, what)
}

// walk lists a tree with several goroutines.
type walk struct {
	root   string
	hidden bool
	keep   func(name string) bool

	mu      sync.Mutex // protects the fields below
	wake    sync.Cond
	todo    []*inTree
	busy    int // number of places that are being listed
	err     error
	names   []string
	folders []folder
	skipped []string // names, with the reason
}

// inTree is a folder below the root.
type inTree struct {
	name     string
	above    *inTree
	dev, ino uint64
}

func newWalk(root string, hidden bool, keep func(name string) bool) *walk {
	w := &walk{root: root, hidden: hidden, keep: keep, todo: []*inTree{{}}}
	w.wake.L = &w.mu
	return w
}

func (w *walk) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { w.fail(context.Cause(ctx)) })
	defer stop()
	var all sync.WaitGroup
	for range lookups {
		all.Go(w.work)
	}
	all.Wait()
	w.mu.Lock() // ctx may end now
	defer w.mu.Unlock()
	return w.err
}

// work lists places until none is left, the newest first: so few known places wait at any time.
func (w *walk) work() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.todo) == 0 && w.busy > 0 && w.err == nil {
			w.wake.Wait()
		}
		if len(w.todo) == 0 || w.err != nil {
			return
		}
		p := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		w.busy++
		w.mu.Unlock()
		got, err := w.list(p)
		w.mu.Lock()
		w.busy--
		if err != nil && w.err == nil {
			w.err = err
		}
		w.todo = append(w.todo, got.todo...)
		w.names = append(w.names, got.names...)
		w.folders = append(w.folders, got.folders...)
		w.skipped = append(w.skipped, got.skipped...)
		w.wake.Broadcast()
	}
}

func (w *walk) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.wake.Broadcast()
}

// seen is the content of one place.
type seen struct {
	todo    []*inTree
	names   []string
	folders []folder
	skipped []string
}

// list reads one folder.
func (w *walk) list(p *inTree) (got seen, err error) {
	full := filepath.Join(w.root, p.name)
	f, err := os.OpenFile(full, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ENOTDIR) {
			err = fmt.Errorf("%w: %s is not a folder", source.ErrInvalid, full)
		}
		return got, err
	}
	defer f.Close()
	var st unix.Stat_t // before the listing, so that a later change gives another time
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return got, &fs.PathError{Op: "stat", Path: full, Err: err}
	}
	p.dev, p.ino = st.Dev, st.Ino
	for a := p.above; a != nil; a = a.above {
		if a.dev == p.dev && a.ino == p.ino {
			got.skipped = append(got.skipped, p.name+" (a link back to a folder above it)")
			return got, nil
		}
	}
	got.folders = append(got.folders, folder{p.name, st.Mtim.Nano()})
	entries, err := f.ReadDir(-1)
	if err != nil {
		return got, err
	}
	for _, e := range entries {
		if !w.hidden && e.Name()[0] == '.' {
			continue
		}
		name := path.Join(p.name, e.Name())
		mode := e.Type()
		if mode&fs.ModeSymlink != 0 {
			info, err := os.Stat(filepath.Join(w.root, name))
			switch {
			case err == nil:
				mode = info.Mode().Type()
			case !w.keep(name):
				continue
			default:
				return got, fmt.Errorf("%w: a symbolic link to a missing or unreadable file; remove it, or exclude it by glob", err)
			}
		}
		switch {
		case mode.IsDir():
			got.todo = append(got.todo, &inTree{name: name, above: p})
		case !w.keep(name):
		case mode.IsRegular():
			got.names = append(got.names, name)
		default:
			got.skipped = append(got.skipped, name+" ("+special(mode)+")")
		}
	}
	return got, nil
}

func special(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "not a regular file"
}

func (w *walk) notes() []source.Note {
	if len(w.skipped) == 0 {
		return nil
	}
	return []source.Note{{Name: "skipped",
		Text: fmt.Sprintf("%d, the first is %s", len(w.skipped), slices.Min(w.skipped))}}
}
