package dir

import (
	"context"
	"slices"
)

// names sorts the names of files in bounded memory. When those in memory have keptBytes, they become a run:
// sorted, in a file without a name. At the end the runs are merged.
type names struct {
	folder string // of the files
	held   []string
	bytes  int // of held
	runs   []files
}

// stringBytes is what a string takes beside its bytes.
const stringBytes = 16

// add keeps names. It returns errors of the system when they do not fit into a file.
func (s *names) add(some []string) error {
	s.held = append(s.held, some...)
	for _, name := range some {
		s.bytes += len(name) + stringBytes
	}
	if s.bytes < keptBytes {
		return nil
	}
	return s.endRun()
}

func (s *names) endRun() error {
	slices.Sort(s.held)
	b := newBuilder(s.folder, false)
	b.limit = 0 // all of it goes to the file
	for _, name := range s.held {
		if err := b.add(&entry{name: []byte(name)}); err != nil {
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

// batchNames is how many names each gives at a time.
const batchNames = 4096

// each calls do with all names in their order, some at a time, until it fails. do may change its argument.
func (s *names) each(ctx context.Context, do func(some []string) error) error {
	slices.Sort(s.held)
	if len(s.runs) == 0 {
		for some := range slices.Chunk(s.held, batchNames) {
			if err := do(some); err != nil {
				return err
			}
		}
		return nil
	}
	if err := s.endRun(); err != nil {
		return err
	}
	s.held = nil
	return s.merge(ctx, do)
}

// merge is each for runs.
func (s *names) merge(ctx context.Context, do func(some []string) error) error {
	var heads []*cursor // of the runs that have names left
	for k := range s.runs {
		c := &cursor{files: &s.runs[k]}
		more, err := c.next(ctx)
		if err != nil {
			return err
		}
		if more {
			heads = append(heads, c)
		}
	}
	some := make([]string, 0, batchNames)
	for len(heads) > 0 {
		least := 0
		for k := range heads {
			if string(heads[k].entry.name) < string(heads[least].entry.name) {
				least = k
			}
		}
		some = append(some, string(heads[least].entry.name))
		more, err := heads[least].next(ctx)
		if err != nil {
			return err
		}
		if !more {
			heads = slices.Delete(heads, least, least+1)
		}
		if len(some) == batchNames || len(heads) == 0 {
			if err := do(some); err != nil {
				return err
			}
			some = some[:0]
		}
	}
	return nil
}

func (s *names) close() {
	for k := range s.runs {
		s.runs[k].close()
	}
}
