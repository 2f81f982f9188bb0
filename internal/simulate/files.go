package simulate

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/klauspost/compress/zstd"

	"github.com/stocached/stocached/internal/timeline"
)

// ReadFile reads a trace: a timeline of a loader, one index a line, or oracleGeneral of libCacheSim;
// compressed by gzip or zstd or not. The file itself says which it is.
//
// epochs is the number of epochs: a timeline has its own, and further ones are shuffled by the seed;
// other traces are divided into equal parts. 0: those of the timeline, or 1.
func ReadFile(path string, epochs int, seed uint64) (*Trace, error) {
	return timeline.ReadWith(path, ErrTrace, func(r io.Reader) (*Trace, error) { return Read(r, epochs, seed) })
}

// Read is ReadFile of what a reader gives.
func Read(r io.Reader, epochs int, seed uint64) (*Trace, error) {
	file := bufio.NewReaderSize(r, 1<<20)
	in, err := timeline.Gunzip(file, ErrTrace)
	if err != nil {
		return nil, err
	}
	if magic, _ := in.Peek(4); in == file && bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		unpacked, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("%w: compressed by zstd, but broken: %v", ErrTrace, err)
		}
		defer unpacked.Close()
		in = bufio.NewReaderSize(unpacked, 1<<20)
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
	if bytes.ContainsFunc(begin, func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' }) {
		err = t.oracleGeneral(in)
	} else {
		err = t.lines(in)
	}
	if err != nil {
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
				"(trace=\"run.json\"), or oracleGeneral of libCacheSim", ErrTrace, number, text)
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

// oracleGeneral reads records of 24 bytes, little-endian: time (4), object (8), size (4), number of
// the next access to this object (8; -1 or the largest number: none).
func (t *Trace) oracleGeneral(in io.Reader) error {
	const bytesOfRecord = 24
	numbers := dense{}
	alike, last := true, uint32(0)
	var record [bytesOfRecord]byte
	for k := int64(0); ; k++ {
		n, err := io.ReadFull(in, record[:])
		if err == io.EOF {
			break
		}
		fail := func(what string) error {
			return fmt.Errorf("%w: it is binary, and record %d (24 bytes, oracleGeneral of libCacheSim) %s", ErrTrace, k,
				what)
		}
		if err == io.ErrUnexpectedEOF {
			return fail(fmt.Sprintf("has only %d bytes", n))
		} else if err != nil {
			return fmt.Errorf("%w: %v", ErrTrace, err)
		}
		time, object := binary.LittleEndian.Uint32(record[:]), binary.LittleEndian.Uint64(record[4:])
		size, next := binary.LittleEndian.Uint32(record[12:]), int64(binary.LittleEndian.Uint64(record[16:]))
		switch {
		case time < last:
			return fail(fmt.Sprintf("has a time of %d after %d", time, last))
		case next < -1 || next != -1 && next != math.MaxInt64 && next > 1<<48:
			return fail(fmt.Sprintf("has a next access of %d", next))
		}
		last = time
		sample := numbers.number(object)
		if int(sample) == len(t.Sizes) {
			t.Sizes = append(t.Sizes, uint64(max(size, 1)))
			alike = alike && t.Sizes[sample] == t.Sizes[0]
		}
		if err := t.add(sample); err != nil {
			return err
		}
	}
	t.Samples = len(numbers)
	if alike {
		t.SampleBytes, t.Sizes = t.Sizes[0], nil
	}
	return nil
}
