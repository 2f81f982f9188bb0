package dir

import (
	"encoding/binary"
	"strings"

	"github.com/stocached/stocached/source"
)

// files are the files of a tree, in the order of the samples. They are flat arrays in the format of
// an index. So an index of ten million files is ready when its bytes are read and checked, and the
// garbage collector has no pointers to scan. Integers are little-endian.
type files struct {
	stamps []byte // 16 each: size, time of modification in ns
	ends   []byte // 8 each: where the name ends in names
	labels []byte // 8 each; nil: none
	names  []byte // slash-separated, below the root, one after the other
}

const (
	stampBytes = 16
	wordBytes  = 8
)

// newFiles copies its arguments. labels may be nil.
func newFiles(names []string, stamps []source.Stamp, labels []int64) (f files) {
	word := binary.LittleEndian.AppendUint64
	f.stamps, f.ends = make([]byte, 0, len(names)*stampBytes), make([]byte, 0, len(names)*wordBytes)
	end := 0
	for i, name := range names {
		end += len(name)
		f.stamps = word(word(f.stamps, uint64(stamps[i].Bytes)), uint64(stamps[i].ModifiedNs))
		f.ends = word(f.ends, uint64(end))
	}
	f.names = make([]byte, 0, end)
	for _, name := range names {
		f.names = append(f.names, name...)
	}
	if labels != nil {
		f.labels = make([]byte, 0, len(names)*wordBytes)
	}
	for _, label := range labels {
		f.labels = word(f.labels, uint64(label))
	}
	return f
}

// builder makes files from a listing. It keeps their arrays in pieces, because a slice that grows is
// copied, and then takes more than twice its memory.
type builder struct {
	stamps, ends, labels, names pieces
	end                         uint64
}

// add adds a file. It keeps nothing of name.
func (b *builder) add(name string, stamp source.Stamp, label int64) {
	b.end += uint64(len(name))
	b.stamps.word(uint64(stamp.Bytes))
	b.stamps.word(uint64(stamp.ModifiedNs))
	b.ends.word(b.end)
	b.labels.word(uint64(label))
	copy(b.names.grow(len(name)), name)
}

// files returns the files. The builder is empty then.
func (b *builder) files(labelled bool) (f files) {
	if !labelled {
		b.labels = nil
	}
	f = files{stamps: b.stamps.join(), ends: b.ends.join(), names: b.names.join()}
	if labelled {
		f.labels = b.labels.join()
	}
	return f
}

// pieces are parts of a byte array.
type pieces [][]byte

const pieceBytes = 1 << 20

// grow returns the next n bytes.
func (p *pieces) grow(n int) []byte {
	last := len(*p) - 1
	if last < 0 || cap((*p)[last])-len((*p)[last]) < n {
		*p = append(*p, make([]byte, 0, max(pieceBytes, n)))
		last++
	}
	piece := (*p)[last]
	(*p)[last] = piece[:len(piece)+n]
	return (*p)[last][len(piece):]
}

func (p *pieces) word(v uint64) { binary.LittleEndian.PutUint64(p.grow(wordBytes), v) }

// join returns the array, and frees each part when it is copied.
func (p *pieces) join() []byte {
	n := 0
	for _, piece := range *p {
		n += len(piece)
	}
	all := make([]byte, 0, n)
	for k, piece := range *p {
		all = append(all, piece...)
		(*p)[k] = nil
	}
	*p = nil
	return all
}

func (f *files) len() int { return len(f.ends) / wordBytes }

func (f *files) labelled() bool { return f.labels != nil }

func (f *files) stamp(i int) source.Stamp {
	return source.Stamp{Bytes: f.bytes(i),
		ModifiedNs: int64(binary.LittleEndian.Uint64(f.stamps[i*stampBytes+wordBytes:]))}
}

func (f *files) bytes(i int) int64 { return int64(binary.LittleEndian.Uint64(f.stamps[i*stampBytes:])) }

func (f *files) label(i int) int64 { return int64(binary.LittleEndian.Uint64(f.labels[i*wordBytes:])) }

func (f *files) name(i int) string {
	start, end := f.span(i)
	return string(f.names[start:end])
}

// span returns where the name of file i lies in names.
func (f *files) span(i int) (start, end uint64) {
	if i > 0 {
		start = binary.LittleEndian.Uint64(f.ends[(i-1)*wordBytes:])
	}
	return start, binary.LittleEndian.Uint64(f.ends[i*wordBytes:])
}

// largest returns the index of the largest file.
func (f *files) largest() (i int) {
	for k := range f.len() {
		if f.bytes(k) > f.bytes(i) {
			i = k
		}
	}
	return i
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
