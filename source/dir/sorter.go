package dir

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"
)

// sorter brings files into the byte order of their names, each name once, in bounded memory. Files that come in
// this order go into one list. Others wait in memory. When they take keptBytes, they become a run: sorted, in a
// file without a name. At the end the list, the runs and the files that still wait are merged.
type sorter struct {
	folder   string // of the files
	labelled bool
	list     *builder // nil: it has no file yet
	last     string   // the name of its last file
	held     []heldFile
	bytes    int // of held
	runs     []files
}

// heldFile is a file that waits for its run.
type heldFile struct {
	name  string
	stamp source.Stamp
	label int64
}

// heldBytes is what a file takes beside its name.
const heldBytes = 40

// add adds a file, and may keep its name. It returns errors of the system when the files do not fit into a file.
func (s *sorter) add(f heldFile) error {
	if s.list == nil {
		s.list = newBuilder(s.folder, s.labelled)
	} else if f.name <= s.last {
		if f.name < s.last {
			s.held, s.bytes = append(s.held, f), s.bytes+len(f.name)+heldBytes
		}
		if s.bytes < keptBytes {
			return nil
		}
		return s.endRun()
	}
	s.last = f.name
	return s.list.add(&entry{name: []byte(f.name), stamp: f.stamp, label: f.label})
}

// sort sorts the files that wait.
func (s *sorter) sort() {
	slices.SortStableFunc(s.held, func(a, b heldFile) int { return strings.Compare(a.name, b.name) })
}

// endRun makes a run of the files that wait.
func (s *sorter) endRun() error {
	s.sort()
	b := newBuilder(s.folder, s.labelled)
	b.limit = 0 // all of it goes to the file
	for _, f := range s.held {
		if err := b.add(&entry{name: []byte(f.name), stamp: f.stamp, label: f.label}); err != nil {
			b.close()
			return err
		}
	}
	run, err := b.done()
	if err != nil {
		return err
	}
	clear(s.held)
	s.runs, s.held, s.bytes = append(s.runs, run), s.held[:0], 0
	return nil
}

// done returns all files. The sorter takes no more of them.
func (s *sorter) done(ctx context.Context) (files, error) {
	if len(s.held) == 0 && len(s.runs) == 0 && s.list != nil { // they came in order
		list := s.list
		s.list = nil
		return list.done()
	}
	b := newBuilder(s.folder, s.labelled)
	if err := s.each(ctx, b.add); err != nil {
		b.close()
		return files{}, err
	}
	return b.done()
}

// each calls do with all files in their order, until it fails. do keeps nothing of its argument. The sorter takes
// no more files.
func (s *sorter) each(ctx context.Context, do func(e *entry) error) error {
	s.sort()
	if s.list != nil {
		list, err := s.list.done()
		s.list = nil
		if err != nil {
			return err
		}
		s.runs = append(s.runs, list)
	}
	return s.merge(ctx, do)
}

// merge is each for runs and sorted files that wait.
func (s *sorter) merge(ctx context.Context, do func(e *entry) error) error {
	var heads []*cursor // of the runs that have files left
	advance := func(c *cursor) error {
		more, err := c.next(ctx)
		if err == nil && !more {
			heads = slices.DeleteFunc(heads, func(other *cursor) bool { return other == c })
		}
		return err
	}
	for k := range s.runs {
		heads = append(heads, &cursor{files: &s.runs[k]})
	}
	heads = append(heads, &cursor{held: s.held})
	s.held = nil
	for _, c := range slices.Clone(heads) {
		if err := advance(c); err != nil {
			return err
		}
	}
	var last []byte
	for len(heads) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		least := heads[0]
		for _, c := range heads[1:] {
			if bytes.Compare(c.entry.name, least.entry.name) < 0 {
				least = c
			}
		}
		if !bytes.Equal(least.entry.name, last) { // no name is empty
			last = append(last[:0], least.entry.name...)
			if err := do(&least.entry); err != nil {
				return err
			}
		}
		if err := advance(least); err != nil {
			return err
		}
	}
	return nil
}

// close frees the files of runs.
func (s *sorter) close() {
	if s.list != nil {
		s.list.close()
	}
	for k := range s.runs {
		s.runs[k].close()
	}
}
