package dir

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stocached/stocached/source"
)

// files are the files of a tree, in the order of the samples. They lie in groups, in the format of an
// index. A name has only the bytes by which it differs from the one before it in its group. So a file
// takes about 20 bytes, and the garbage collector has no pointers to scan. At most keptBytes of groups are in
// memory. Larger lists lie in a file, and memory has only where each group ends: half a byte for each file.
type files struct {
	id       uint64 // of the groups
	n        int
	labelled bool
	ends     []uint64 // where each group ends
	data     []byte   // the groups; nil: they are in file
	file     reader
	begin    int64   // of the groups in file
	numbers  []int64 // the label of each number in the groups; nil: the numbers are the labels
	survey   survey
}

const (
	groupFiles = 16
	wordBytes  = 8
	// A file takes at least so many bytes: a prefix, a length, a character, a size and two times.
	leastBytes = 13
)

// keptBytes is how much of a list is in memory: about 1.2 million local files. Tests lower it.
var keptBytes = 32 << 20

// reader reads a file that does not change. It is safe for concurrent use.
type reader interface {
	ReadAt(ctx context.Context, dst []byte, offset int64) error
	Close() error
}

// survey is what the notes say about all files.
type survey struct {
	total, most         int64
	largest, firstEmpty string
	empty               int
}

func (s *survey) count(name []byte, size int64) {
	s.total += size
	if s.largest == "" || size > s.most {
		s.largest, s.most = string(name), size
	}
	if size == 0 {
		if s.empty++; s.empty == 1 {
			s.firstEmpty = string(name)
		}
	}
}

// entry is a file in a group. The next call of decode changes it.
type entry struct {
	name  []byte // slash-separated, below the root
	stamp source.Stamp
	label int64
}

// append adds a file to a group. before is the name before it in the group.
func (e *entry) append(b []byte, before []byte, labelled bool) []byte {
	shared := 0
	for shared < min(len(before), len(e.name)) && before[shared] == e.name[shared] {
		shared++
	}
	b = binary.AppendUvarint(b, uint64(shared))
	b = binary.AppendUvarint(b, uint64(len(e.name)-shared))
	b = append(b, e.name[shared:]...)
	b = binary.AppendUvarint(b, uint64(e.stamp.Bytes))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.stamp.ModifiedNs))
	later := uint64(0)
	if d := e.stamp.BornNs - e.stamp.ModifiedNs; e.stamp.BornNs != 0 {
		later = 1 + uint64(d<<1^d>>63)
	}
	b = binary.AppendUvarint(b, later)
	if labelled {
		b = binary.AppendVarint(b, e.label)
	}
	return b
}

var errDamaged = errors.New("it was damaged: a group of files ends too early or too late")

// decode reads the next file of a group, and returns what follows it. e is the file before, or has no name.
func (e *entry) decode(b []byte, labelled bool) (rest []byte, err error) {
	number := func() (v uint64) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err = errDamaged
			return 0
		}
		b = b[n:]
		return v
	}
	shared, more := number(), number()
	if err != nil || shared > uint64(len(e.name)) || more > uint64(len(b)) {
		return nil, errDamaged
	}
	e.name = append(e.name[:shared], b[:more]...)
	b = b[more:]
	size := number()
	if err != nil || size > math.MaxInt64 || len(b) < wordBytes {
		return nil, errDamaged
	}
	e.stamp = source.Stamp{Bytes: int64(size), ModifiedNs: int64(binary.LittleEndian.Uint64(b))}
	b = b[wordBytes:]
	if later := number(); later > 0 {
		later--
		e.stamp.BornNs = e.stamp.ModifiedNs + int64(later>>1^-(later&1))
	}
	if err != nil {
		return nil, err
	}
	if labelled {
		label, n := binary.Varint(b)
		if n <= 0 {
			return nil, errDamaged
		}
		e.label, b = label, b[n:]
	}
	return b, nil
}

// scratch is the memory of one look at a list. Looks at samples side by side read one group from a file.
type scratch struct {
	group []byte
	entry entry
	of    uint64 // the list of the group that was read last
	g     int
}

var (
	scratches = sync.Pool{New: func() any { return new(scratch) }}
	lists     atomic.Uint64 // the last id
)

// read reads a group. It is valid until the next call.
func (s *scratch) read(ctx context.Context, f *files, g int) ([]byte, error) {
	start, end := uint64(0), f.ends[g]
	if g > 0 {
		start = f.ends[g-1]
	}
	if f.file == nil {
		return f.data[start:end], nil
	}
	n := int(end - start)
	if s.of == f.id && s.g == g {
		return s.group[:n], nil
	}
	s.of, s.group = 0, slices.Grow(s.group[:0], n)[:n]
	if err := f.file.ReadAt(ctx, s.group, f.begin+int64(start)); err != nil {
		return nil, err
	}
	s.of, s.g = f.id, g
	return s.group, nil
}

// look calls do with file i. do keeps nothing of it. It returns ErrChanged or errors of the system if the
// list lies in a file that does not have it any more.
func (f *files) look(i int, do func(e *entry)) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	b, err := s.read(context.Background(), f, i/groupFiles)
	s.entry.name = s.entry.name[:0]
	for k := 0; k <= i%groupFiles && err == nil; k++ {
		b, err = s.entry.decode(b, f.labelled)
	}
	if err == nil {
		err = f.relabel(&s.entry)
	}
	if err != nil {
		return fmt.Errorf("the list of files: %w", err)
	}
	do(&s.entry)
	return nil
}

// relabel replaces the number in the groups by the label.
func (f *files) relabel(e *entry) error {
	if f.numbers == nil {
		return nil
	}
	if e.label < 0 || e.label >= int64(len(f.numbers)) {
		return fmt.Errorf("it was damaged: a file has the class %d of %d", e.label, len(f.numbers))
	}
	e.label = f.numbers[e.label]
	return nil
}

// cursor reads files in their order.
type cursor struct {
	files *files // nil: those of held
	held  []heldFile
	at    int // the file that next reads
	rest  []byte
	scratch
}

// next reads the next file into entry. more is false after the last one.
func (c *cursor) next(ctx context.Context) (more bool, err error) {
	if c.files == nil {
		if len(c.held) == 0 {
			return false, nil
		}
		f := &c.held[0]
		c.entry, c.held = entry{append(c.entry.name[:0], f.name...), f.stamp, f.label}, c.held[1:]
		return true, nil
	}
	if c.at%groupFiles == 0 || c.at == c.files.n {
		if len(c.rest) > 0 {
			return false, errDamaged
		}
		if c.at == c.files.n {
			return false, nil
		}
		c.entry.name = c.entry.name[:0]
		if c.rest, err = c.read(ctx, c.files, c.at/groupFiles); err != nil {
			return false, err
		}
	}
	c.at++
	if c.rest, err = c.entry.decode(c.rest, c.files.labelled); err == nil {
		err = c.files.relabel(&c.entry)
	}
	return err == nil, err
}

// each calls do with all files, until it fails. do keeps nothing of its argument.
func (f *files) each(ctx context.Context, do func(i int, e *entry) error) error {
	for c := (cursor{files: f}); ; {
		more, err := c.next(ctx)
		if err == nil && more {
			err = do(c.at-1, &c.entry)
		}
		if err != nil || !more {
			return err
		}
	}
}

// pieces calls do with the groups, a piece at a time, until it fails. do keeps nothing of its argument.
func (f *files) pieces(ctx context.Context, do func(part []byte) error) error {
	if f.file == nil {
		return do(f.data)
	}
	buffer := make([]byte, min(writeBytes, f.bytes()))
	for at := uint64(0); at < f.bytes(); at += uint64(len(buffer)) {
		part := buffer[:min(uint64(len(buffer)), f.bytes()-at)]
		if err := f.file.ReadAt(ctx, part, f.begin+int64(at)); err != nil {
			return err
		}
		if err := do(part); err != nil {
			return err
		}
	}
	return nil
}

// bytes returns how many bytes the groups have.
func (f *files) bytes() uint64 {
	if len(f.ends) == 0 {
		return 0
	}
	return f.ends[len(f.ends)-1]
}

// close closes the file of a list.
func (f *files) close() {
	if f.file != nil {
		f.file.Close()
	}
}

// builder makes files. A list of more than keptBytes goes to a file without a name in a folder, or in TMPDIR.
type builder struct {
	files  files
	folder string
	limit  int // of data
	data   []byte
	before []byte
	file   *os.File
	bytes  uint64 // written to file
}

const writeBytes = 1 << 20

func newBuilder(folder string, labelled bool) *builder {
	return &builder{folder: folder, limit: keptBytes, files: files{id: lists.Add(1), labelled: labelled}}
}

// add adds a file. It keeps nothing of its argument. It returns errors of the system when the list does not
// fit into its file.
func (b *builder) add(e *entry) error {
	if b.files.n%groupFiles == 0 {
		if err := b.endGroup(); err != nil {
			return err
		}
	}
	b.files.survey.count(e.name, e.stamp.Bytes)
	b.data = e.append(b.data, b.before, b.files.labelled)
	b.before = append(b.before[:0], e.name...)
	b.files.n++
	return nil
}

// addAll adds files. labels may be nil.
func (b *builder) addAll(names []string, stamps []source.Stamp, labels []int64) error {
	for i, name := range names {
		e := entry{name: []byte(name), stamp: stamps[i]}
		if labels != nil {
			e.label = labels[i]
		}
		if err := b.add(&e); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) endGroup() error {
	b.before = b.before[:0]
	if b.files.n > 0 {
		b.files.ends = append(b.files.ends, b.bytes+uint64(len(b.data)))
	}
	if len(b.data) < b.limit {
		return nil
	}
	return b.write()
}

// write moves the groups from memory to the file.
func (b *builder) write() (err error) {
	if b.file == nil {
		for _, folder := range []string{b.folder, os.TempDir()} {
			if b.file, err = os.CreateTemp(folder, "stocached-list-*"); err == nil {
				err = os.Remove(b.file.Name())
				break
			}
		}
		b.limit = writeBytes
	}
	if err == nil {
		_, err = b.file.Write(b.data)
	}
	if err != nil {
		return fmt.Errorf("a list of more than %d files is kept in a file: %w; set TMPDIR to a folder with free space, or "+
			"index to a file in one", b.files.n, err)
	}
	b.bytes += uint64(len(b.data))
	b.data = b.data[:0]
	if cap(b.data) > 2*writeBytes {
		b.data = nil
	}
	return nil
}

// done returns the files. The builder is of no use then.
func (b *builder) done() (files, error) {
	err := b.endGroup()
	if b.file == nil {
		b.files.data = bytes.Clone(b.data) // without the room to grow
		return b.files, err
	}
	if err == nil && len(b.data) > 0 {
		err = b.write()
	}
	if err != nil {
		b.file.Close()
		return files{}, err
	}
	b.files.file = unnamed{b.file}
	return b.files, nil
}

// close ends a list that has failed.
func (b *builder) close() {
	if b.file != nil {
		b.file.Close()
	}
}

// unnamed is a file that this process alone has.
type unnamed struct{ *os.File }

func (u unnamed) ReadAt(_ context.Context, dst []byte, offset int64) error {
	return source.ReadFull(int(u.Fd()), u.Name(), dst, offset)
}

// below says whether a name is a path below the root in its shortest form. Such a path leads
// outside only through a link.
func below[text string | []byte](name text) bool {
	start := 0
	for k := 0; k <= len(name); k++ {
		if k < len(name) && name[k] != '/' {
			if name[k] == 0 {
				return false
			}
			continue
		}
		if n := k - start; n == 0 || n == 1 && name[start] == '.' || n == 2 && name[start] == '.' && name[start+1] == '.' {
			return false
		}
		start = k + 1
	}
	return true
}

// inside says whether path is folder or lies in it. Both are absolute and in their shortest form.
func inside(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}
