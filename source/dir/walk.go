package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	w := newWalk(root, o.Hidden, o.Labels == labelsOfFolders, keep)
	w.files = newBuilder(o.listFolder())
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
		l.Notes = append(l.Notes, source.Note{Name: "without a class",
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
	keep     func(name string) bool

	mu      sync.Mutex // protects the fields below
	wake    sync.Cond
	todo    []*inTree
	busy    int // number of places that are being listed
	err     error
	files   *builder
	outside int // files that lie in no class
	folders []folder
	classes classes
	skips   skips
}

// inTree is a folder below the root.
type inTree struct {
	name     string
	above    *inTree
	dev, ino uint64
}

func newWalk(root string, hidden, labelled bool, keep func(name string) bool) *walk {
	w := &walk{root: root, hidden: hidden, labelled: labelled, keep: keep, todo: []*inTree{{}}}
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
		w.take(got, err)
		w.wake.Broadcast()
	}
}

// take keeps what a part of a place has. The caller holds mu.
func (w *walk) take(got seen, err error) {
	for _, class := range got.classes {
		w.classes.add(class)
	}
	for k := 0; err == nil && k < len(got.names); k++ {
		err = w.add(got.names[k])
	}
	if err != nil && w.err == nil {
		w.err = err
	}
	w.todo = append(w.todo, got.todo...)
	w.folders = append(w.folders, got.folders...)
	w.skips.add(got.skips)
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

func (w *walk) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.wake.Broadcast()
}

// seen is the content of one place, or a part of it.
type seen struct {
	todo    []*inTree
	names   []string
	folders []folder
	classes []string
	skips   skips
}

// readNames is how many entries of a folder are read at a time: one folder may have millions.
const readNames = 4096

// list reads one folder. It gives parts of a large one to take, and returns the last part.
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
			got.skips.skip(p.name, "a link back to a folder above it")
			return got, nil
		}
	}
	got.folders = append(got.folders, folder{p.name, st.Mtim.Nano()})
	for {
		entries, err := f.ReadDir(readNames)
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if err := w.sort(p, entries, &got); err != nil {
			return got, err
		}
		if len(got.names) >= readNames {
			w.mu.Lock()
			w.take(got, nil)
			err := w.err
			w.mu.Unlock()
			if got = (seen{}); err != nil {
				return got, err
			}
		}
	}
}

// sort adds entries of a place to got.
func (w *walk) sort(p *inTree, entries []fs.DirEntry, got *seen) error {
	for _, e := range entries {
		hidden := !w.hidden && e.Name()[0] == '.'
		if hidden && p.above != nil {
			continue
		}
		name := path.Join(p.name, e.Name())
		mode := e.Type()
		if mode&fs.ModeSymlink != 0 {
			info, err := os.Stat(filepath.Join(w.root, name))
			switch {
			case err == nil:
				mode = info.Mode().Type()
			case hidden || !w.keep(name):
				continue
			default:
				return fmt.Errorf("%w: a symbolic link to a missing or unreadable file; remove it, or exclude it by glob", err)
			}
		}
		if mode.IsDir() && p.above == nil {
			got.classes = append(got.classes, e.Name()) // also a hidden folder
		}
		switch {
		case hidden:
		case mode.IsDir():
			got.todo = append(got.todo, &inTree{name: name, above: p})
		case !w.keep(name):
		case mode.IsRegular():
			got.names = append(got.names, name)
		default:
			got.skips.skip(name, special(mode))
		}
	}
	return nil
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
