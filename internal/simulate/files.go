package simulate

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"

	"github.com/stocached/stocached/internal/timeline"
)

// ReadFile reads a trace: a timeline of a loader, or one index a line; compressed by gzip or not. The file itself says
// which it is.
//
// epochs is the number of epochs: a timeline has its own, and further ones are shuffled by the seed;
// other traces are divided into equal parts. 0: those of the timeline, or 1.
func ReadFile(path string, epochs int, seed uint64) (*Trace, error) {
	return timeline.ReadWith(path, ErrTrace, func(r io.Reader) (*Trace, error) { return Read(r, epochs, seed) })
}

// Read is ReadFile of what a reader gives.
func Read(r io.Reader, epochs int, seed uint64) (*Trace, error) {
	in, err := timeline.Gunzip(bufio.NewReaderSize(r, 1<<20), ErrTrace)
	if err != nil {
		return nil, err
	}
	begin, err := in.Peek(4096)
	if len(begin) == 0 {
		if err != io.EOF {
			return nil, fmt.Errorf("%w: %v", ErrTrace, err)
		}
		return nil, fmt.Errorf("%w: it is empty", ErrTrace)
	}
	if first := bytes.TrimLeft(begin, " \t\r\n"); len(first) > 0 && first[0] == '{' {
		t, err := timeline.Read(in)
		if err != nil {
			return nil, err
		}
		return Timeline(t, epochs, seed)
	}
	t := &Trace{}
	if err := t.lines(in); err != nil {
		return nil, err
	}
	return t, t.cut(max(epochs, 1))
}

func (t *Trace) add(sample uint32) error {
	if len(t.Accesses) == MaxAccesses {
		return fmt.Errorf("%w: more than %d reads; simulate a part", ErrTrace, MaxAccesses)
	}
	t.Accesses = append(t.Accesses, sample)
	return nil
}

// lines reads one index a line. Empty lines and those that begin with # do not count.
func (t *Trace) lines(in io.Reader) error {
	numbers := dense{}
	s := bufio.NewScanner(in)
	for number := 1; s.Scan(); number++ {
		text := bytes.TrimSpace(s.Bytes())
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		index, err := strconv.ParseUint(string(text), 10, 64)
		if err != nil {
			return fmt.Errorf("%w: line %d is %.40q; a trace has one index a line, or is a timeline of a loader "+
				"(trace=\"run.json\")", ErrTrace, number, text)
		}
		if err := t.add(numbers.number(index)); err != nil {
			return err
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("%w: %v", ErrTrace, err)
	}
	if len(t.Accesses) == 0 {
		return fmt.Errorf("%w: it has no index", ErrTrace)
	}
	t.Samples = len(numbers)
	return nil
}
