package dir

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/stocached/stocached/source"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/charlievieth/fastwalk"
)

// lookups is how many goroutines inspect files and folders concurrently. It exceeds the number of
// cores, because they wait for the disk or the network. Each takes a share at a time.
const lookups, share = 16, 64

// found lists the files of the tree.
func (o *settings) found(ctx context.Context, place *source.Place, root string) (*listing, error) {
	keep := func(name string) bool { return o.Glob == "" || doublestar.MatchUnvalidated(o.Glob, name) }
	if objects := place.Objects(); objects != nil {
		return o.foundObjects(ctx, objects, root, keep)
	}
	w := &walk{root: root, hidden: o.Hidden, labelled: o.Labels == labelsOfFolders, keep: keep, files: newBuilder(o.listFolder())}
	defer w.files.close()
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	slices.SortFunc(w.folders, func(a, b folder) int { return strings.Compare(a.Name, b.Name) })
	l := &listing{rest: rest{Folders: w.folders, Notes: w.skips.notes()}}
	return l, o.finish(ctx, l, w.files, &w.classes, root, w.outside, true)
}

// finish sorts the files that were found, inspects local ones, and gives them the final numbers of their classes.
func (o *settings) finish(ctx context.Context, l *listing, b *builder, all *classes, root string, outside int, local bool) (err error) {
	labelled := o.Labels == labelsOfFolders
	if l.files, err = b.done(labelled); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			l.files.close()
		}
	}()
	if len(l.files.records) == 0 {
		return o.nothing(root, outside)
	}
	if err := l.files.sort(); err != nil {
		return err
	}
	if local {
		if err := l.files.stat(ctx, root); err != nil {
			return err
		}
	}
	if labelled {
		numbers := all.sort()
		if err := l.files.each(ctx, func(_ int, _ []byte, r *record) error {
			r.label = numbers[r.label]
			return nil
		}); err != nil {
			return err
		}
		l.Classes = all.names
		l.noteClasses(all, outside)
	}
	return l.files.measure(ctx)
}

// noteClasses adds notes: how many files lie outside folders, and which classes are odd.
func (l *listing) noteClasses(all *classes, outside int) {
	if outside > 0 {
		l.Notes = append(l.Notes, source.Note{Name: "without a class", Data: true,
			Text: fmt.Sprintf("%d files outside folders were left out", outside)})
	}
	l.Notes = append(l.Notes, all.notes(true)...)
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
	root     string
	hidden   bool
	labelled bool
	flat     bool // only the root and what lies in it
	keep     func(name string) bool

	mu      sync.Mutex // protects the fields below
	files   *builder
	outside int // files that lie in no class
	folders []folder
	links   map[string]bool // to folders
	classes classes
	skips   skips
}

func (w *walk) run(ctx context.Context) error {
	if err := isFolder(w.root); err != nil {
		return err
	}
	w.links = map[string]bool{}
	return fastwalk.Walk(&fastwalk.Config{NumWorkers: lookups}, w.root, func(full string, e fs.DirEntry, err error) error {
		if err := cmp.Or(err, context.Cause(ctx)); err != nil {
			return err
		}
		return w.see(full, strings.TrimPrefix(strings.TrimPrefix(full, w.root), "/"), e)
	})
}

// see adds what has a name below the root.
func (w *walk) see(full, name string, e fs.DirEntry) error {
	mode, top := e.Type(), !strings.Contains(name, "/")
	hidden := name != "" && !w.hidden && e.Name()[0] == '.'
	if hidden && !top {
		if mode.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	kept, linked := !hidden && w.keep(name), mode&fs.ModeSymlink != 0
	if linked || mode.IsDir() {
		info, err := os.Stat(full) // before the listing of a folder, so that a later change gives another time
		switch {
		case err == nil && info.IsDir():
			return w.enter(name, info, linked, hidden)
		case err == nil:
			mode = info.Mode().Type()
		case linked && !kept:
			return nil
		case linked:
			return fmt.Errorf("%w: a symbolic link to a missing or unreadable file; remove it, or exclude it by glob", err)
		default:
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !kept:
	case mode.IsRegular():
		return w.add(name)
	default:
		w.skips.skip(name, special(mode))
	}
	return nil
}

// enter adds a folder, and says with an error of fastwalk whether to list it.
func (w *walk) enter(name string, info fs.FileInfo, linked, hidden bool) error {
	repeats, err := w.repeats(name, info, linked)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if name != "" && !strings.Contains(name, "/") {
		w.classes.add(name) // also a hidden folder
	}
	if hidden || w.flat && name != "" {
		return fs.SkipDir
	}
	if repeats {
		w.skips.skip(name, "a link back to a folder above it")
		return fs.SkipDir
	}
	if w.folders = append(w.folders, folder{name, info.ModTime().UnixNano()}); linked {
		w.links[name] = true
		return fastwalk.ErrTraverseLink
	}
	return nil
}

// above returns the folder of a name below the root; "" is the root.
func above(name string) string { return name[:max(strings.LastIndexByte(name, '/'), 0)] }

// repeats says whether a folder is one of those above it. This needs a link: the folder, or one above it.
func (w *walk) repeats(name string, info fs.FileInfo, linked bool) (bool, error) {
	w.mu.Lock()
	for at := name; at != "" && len(w.links) > 0 && !linked; at = above(at) {
		linked = w.links[at]
	}
	w.mu.Unlock()
	for at := name; at != "" && linked; {
		at = above(at)
		other, err := os.Stat(filepath.Join(w.root, at))
		if err != nil || os.SameFile(info, other) {
			return err == nil, err
		}
	}
	return false, nil
}

// add adds a file. The caller holds mu.
func (w *walk) add(name string) error {
	var label int64
	if w.labelled {
		class, inside := classOf(name)
		if !inside {
			w.outside++
			return nil
		}
		label = w.classes.add(class)
		w.classes.used[label] = true
	}
	return w.files.add(name, source.Stamp{}, label)
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

// skips counts names that are no samples.
type skips struct {
	n     int
	first string // the least, with the reason
}

func (s *skips) skip(name, why string) { s.add(skips{1, name + " (" + why + ")"}) }

func (s *skips) add(more skips) {
	if s.n == 0 || more.n > 0 && more.first < s.first {
		s.first = more.first
	}
	s.n += more.n
}

func (s *skips) notes() []source.Note {
	if s.n == 0 {
		return nil
	}
	return []source.Note{{Name: "skipped", Text: fmt.Sprintf("%d, the first is %s", s.n, s.first)}}
}
