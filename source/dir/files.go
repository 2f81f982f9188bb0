package dir

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// files are the files of a tree, in the order of the samples: a record for each, and their names in any order. At most
// keptBytes of them are in memory. Longer lists are mapped: from files without a name, or from an index. The kernel can
// drop the pages, and the garbage collector has no pointers to scan.
type files struct {
	records  []record
	names    []byte
	labelled bool
	survey   survey
	index    *source.File // whose bytes these are; nil: no other program has the file
	unmap    []func() error
}

// record is a file. An index has the same bytes, so all programs that read it are of little-endian machines.
type record struct {
	at, bytes  uint64 // place of its name: slash-separated, below the root
	size       int64
	modifiedNs int64
	bornNs     int64
	label      int64
}

func (r *record) stamp() source.Stamp {
	return source.Stamp{Bytes: r.size, ModifiedNs: r.modifiedNs, BornNs: r.bornNs}
}

func (r *record) setStamp(s source.Stamp) {
	r.size, r.modifiedNs, r.bornNs = s.Bytes, s.ModifiedNs, s.BornNs
}

const recordBytes = int(unsafe.Sizeof(record{}))

// keptBytes is how much of a list is in memory: about 200,000 files. Tests lower it.
var keptBytes = 16 << 20

// recordsOf returns the records in bytes, which begin at a multiple of 8.
func recordsOf(b []byte) []record {
	return unsafe.Slice((*record)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/recordBytes)
}

func bytesOf(r []record) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(r))), len(r)*recordBytes)
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

// name returns the name of a record; nil: it was damaged. Another program may write to an index that is mapped.
func (f *files) name(r *record) []byte {
	if r.at > uint64(len(f.names)) || r.bytes > uint64(len(f.names))-r.at {
		return nil
	}
	return f.names[r.at : r.at+r.bytes]
}

// access runs work, which reads or changes mapped bytes. It returns ErrChanged if they are gone.
func (f *files) access(work func()) error {
	if f.unmap == nil {
		work()
		return nil
	}
	if f.index == nil {
		return source.Access("the list of files", work)
	}
	return cmp.Or(f.index.Look(work), f.index.ReadAt(context.Background(), nil, 0)) // which compares its stamp
}

// look returns the name and the record of file i. Errors: ErrChanged, if the list lies in a file that does not have it any
// more.
func (f *files) look(i int) (name string, r record, err error) {
	err = f.access(func() {
		r = f.records[i]
		name = string(f.name(&r))
	})
	if err == nil && !below(name) {
		err = fmt.Errorf("%w: file %d has the name %q", source.ErrChanged, i, name)
	}
	if err != nil {
		err = fmt.Errorf("the list of files: %w", err)
	}
	return name, r, err
}

// each calls do with all files, until it fails or ctx ends. do may change the record.
func (f *files) each(ctx context.Context, do func(i int, name []byte, r *record) error) (err error) {
	gone := f.access(func() {
		for i := range f.records {
			if err = cmp.Or(context.Cause(ctx), do(i, f.name(&f.records[i]), &f.records[i])); err != nil {
				return
			}
		}
	})
	return cmp.Or(gone, err)
}

// sort sorts the files by their names. Of files with one name the first one stays.
func (f *files) sort() error {
	return f.access(func() {
		slices.SortFunc(f.records, func(a, b record) int {
			return cmp.Or(bytes.Compare(f.name(&a), f.name(&b)), cmp.Compare(a.at, b.at))
		})
		f.records = slices.CompactFunc(f.records, func(a, b record) bool { return bytes.Equal(f.name(&a), f.name(&b)) })
	})
}

// stat sets sizes and times of the files below a folder.
func (f *files) stat(ctx context.Context, root string) error {
	return source.Each(ctx, len(f.records), lookups, share, func(_ context.Context, i int) error {
		name, _, err := f.look(i)
		if err != nil {
			return err
		}
		stamp, err := source.StampOf(root + "/" + name)
		if err != nil {
			return err
		}
		return f.access(func() { f.records[i].setStamp(stamp) })
	})
}

// measure makes the survey.
func (f *files) measure(ctx context.Context) error {
	return f.each(ctx, func(_ int, name []byte, r *record) error {
		f.survey.count(name, r.size)
		return nil
	})
}

func (f *files) close() {
	for _, unmap := range f.unmap {
		_ = unmap()
	}
	f.records, f.names, f.unmap = nil, nil, nil
	if f.index != nil {
		f.index.Close()
	}
}

// builder makes files. A list of more than keptBytes goes to two files without a name in a folder, or in TMPDIR.
type builder struct {
	folder  string
	limit   int // limit of names and records
	names   []byte
	records []record
	bytes   uint64      // bytes of all names
	n       int         // all files
	spilled [2]*os.File // names and records; nil: there are none
}

const writeBytes = 1 << 20

func newBuilder(folder string) *builder { return &builder{folder: folder, limit: keptBytes} }

// add adds a file, and keeps no name. It returns errors of the system when the list does not fit into its files.
func (b *builder) add(name string, stamp source.Stamp, label int64) error {
	r := record{at: b.bytes, bytes: uint64(len(name)), label: label}
	r.setStamp(stamp)
	b.records = append(b.records, r)
	b.names = append(b.names, name...)
	b.bytes += uint64(len(name))
	b.n++
	if len(b.names)+recordBytes*len(b.records) < b.limit {
		return nil
	}
	return b.spill()
}

// spill moves names and records from memory to the files.
func (b *builder) spill() error {
	for k, part := range [][]byte{b.names, bytesOf(b.records)} {
		var err error
		if b.spilled[k] == nil {
			b.spilled[k], err = unnamed(b.folder)
		}
		if err == nil {
			_, err = b.spilled[k].Write(part)
		}
		if err != nil {
			return fmt.Errorf("a list of more than %d files is kept in a file: %w; set TMPDIR to a folder with free space, or "+
				"index to a file in one", b.n-1, err)
		}
	}
	if b.names, b.records = b.names[:0], b.records[:0]; b.limit > writeBytes {
		b.limit, b.names, b.records = writeBytes, nil, nil
	}
	return nil
}

// unnamed makes a file that this process alone has.
func unnamed(folder string) (f *os.File, err error) {
	for _, folder := range []string{folder, os.TempDir()} {
		if f, err = os.CreateTemp(folder, "stocached-list-*"); err == nil {
			return f, os.Remove(f.Name())
		}
	}
	return nil, err
}

// done returns the files. Only close is called after it.
func (b *builder) done(labelled bool) (files, error) {
	f := files{labelled: labelled}
	if b.spilled[1] == nil {
		f.names, f.records = bytes.Clone(b.names), slices.Clone(b.records) // without the room to grow
		return f, nil
	}
	if err := b.spill(); err != nil {
		return f, err
	}
	var parts [2][]byte
	for k, length := range []int{int(b.bytes), b.n * recordBytes} {
		if length == 0 {
			continue
		}
		part, err := unix.Mmap(int(b.spilled[k].Fd()), 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			f.close()
			return files{}, &os.PathError{Op: fmt.Sprintf("map %d bytes of", length), Path: b.spilled[k].Name(), Err: err}
		}
		f.unmap = append(f.unmap, func() error { return unix.Munmap(part) })
		parts[k] = part
	}
	f.names, f.records = parts[0], recordsOf(parts[1])
	return f, nil
}

// close frees the files: what is mapped stays.
func (b *builder) close() {
	for _, f := range b.spilled {
		if f != nil {
			f.Close()
		}
	}
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
