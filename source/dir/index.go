package dir

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"

	"golang.org/x/sys/unix"
)

// An index is a listing in a file. With it a tree of millions of files opens without an inspection
// of each. All integers are little-endian:
//
//	offset  width       what
//	0       8           the bytes "STOCTREE"
//	8       4           version, 4
//	12      4           CRC-32C of everything from 80 on, then of 16 to 80
//	16      32          SHA-256 of the folder's path and of the settings that determine files and labels
//	48      8           n, files
//	56      8           bytes of the groups
//	64      8           bytes of the rest
//	72      8           1 with labels, else 0
//	80                  the groups: 16 files each, the last one what is left
//	        8 x groups  where each group ends, from the first one on
//	                    the rest in JSON: fingerprint, state, classes, the folders with their times, notes
//
// A file in a group, with numbers of 7 bits a byte, the least first (LEB128):
//
//	how many bytes of its name are those of the file before in the group; 0 for the first
//	how many bytes follow, and these bytes
//	size
//	time of modification in ns, or a number made of the tag of an object: 8 bytes
//	0 if the time of creation is unknown; else 1 + 2 x d, or -2 x d if it is negative: it was d ns later
//	label, if any: 2 x label, or -2 x label - 1 if it is negative
//
// An index is valid when all of that is correct and no folder has changed: a file that was created,
// removed or renamed changes the time of its folder. A file that was rewritten in place is detected
// when it is read. Objects have no folders: their index is valid until somebody removes it, so that
// ten million objects are listed once.
const (
	indexMagic   = "STOCTREE"
	indexVersion = 4
	indexHeader  = 80
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// index is the index file of a tree.
type index struct {
	path string
	root string
	key  [32]byte
}

// newIndex returns ErrInvalid for an index inside the tree, because each save would change the
// tree.
func (o *settings) newIndex(from *source.Place, root string) (*index, error) {
	real := root
	if from.Objects() == nil {
		if err := isFolder(root); err != nil {
			return nil, err
		}
		var err error
		if real, err = filepath.EvalSymlinks(root); err != nil {
			return nil, err
		}
	}
	path, err := filepath.Abs(o.Index)
	if err != nil {
		return nil, err
	}
	if linked, err := filepath.EvalSymlinks(path); err == nil { // save replaces the file, not the link
		path = linked
	}
	place, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	if from.Objects() == nil && inside(place, real) {
		return nil, fmt.Errorf("%w: the index %s lies inside its own folder %s; put it outside",
			source.ErrInvalid, path, root)
	}
	x := &index{path: path, root: root}
	var manifest any
	if o.Manifest != "" {
		at, err := filepath.Abs(o.Manifest)
		if err != nil {
			return nil, err
		}
		stamp, err := source.StampOf(at)
		if err != nil {
			return nil, fmt.Errorf("manifest: %w", err)
		}
		manifest = source.Named{Name: at, Stamp: stamp}
	}
	x.key = sha256.Sum256(fmt.Appendf(nil, "%q %q %q %v %q %v", real, root, o.Glob, o.Hidden, o.Labels, manifest))
	return x, nil
}

// load returns the listing of the index, or the reason why it is invalid.
func (x *index) load(ctx context.Context) (*listing, error) {
	f, err := source.OpenFile(x.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there was none")
	}
	if err != nil {
		return nil, err
	}
	l, err := readIndex(ctx, f, f.Stamp.Bytes, x.key)
	if err != nil {
		f.Close()
		return nil, err
	}
	if l.files.file == nil { // memory has the list
		f.Close()
	}
	err = each(ctx, len(l.Folders), func(i int) error {
		path := filepath.Join(x.root, l.Folders[i].Name)
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return fmt.Errorf("the folder %s: %w", path, err)
		}
		if st.Mtim.Nano() != l.Folders[i].ModifiedNs {
			return fmt.Errorf("the folder %s had changed", path)
		}
		return nil
	})
	if err != nil {
		l.files.close()
	}
	return l, err
}

// checkHeader returns an error unless a file of size bytes may have this header.
func checkHeader(head []byte, size int64) error {
	switch {
	case size == 0:
		return errors.New("it was empty")
	case len(head) < len(indexMagic) || string(head[:len(indexMagic)]) != indexMagic:
		return errors.New("it was none")
	case len(head) < indexHeader:
		return errors.New("it was cut off")
	case binary.LittleEndian.Uint32(head[8:]) != indexVersion:
		return fmt.Errorf("it had version %d, this program writes %d", binary.LittleEndian.Uint32(head[8:]), indexVersion)
	}
	n, groups, rest, labels := counts(head)
	left := uint64(size) - indexHeader
	if labels > 1 || groups > left || n > groups/leastBytes || wordBytes*countGroups(n) > left-groups ||
		rest != left-groups-wordBytes*countGroups(n) {
		return fmt.Errorf("it was damaged: %d files with %d bytes and %d others do not make %d bytes", n, groups, rest, size)
	}
	return nil
}

func counts(head []byte) (n, groups, rest, labels uint64) {
	u := func(at int) uint64 { return binary.LittleEndian.Uint64(head[at:]) }
	return u(48), u(56), u(64), u(72)
}

// countGroups returns how many groups n files make.
func countGroups(n uint64) uint64 { return (n + groupFiles - 1) / groupFiles }

// writeIndex writes an index.
func writeIndex(ctx context.Context, f *os.File, l *listing, key [32]byte) error {
	rest, err := json.Marshal(l.rest)
	if err != nil {
		return err
	}
	head := make([]byte, indexHeader)
	copy(head, indexMagic)
	binary.LittleEndian.PutUint32(head[8:], indexVersion)
	copy(head[16:], key[:])
	for k, v := range []uint64{uint64(l.files.n), l.files.bytes(), uint64(len(rest))} {
		binary.LittleEndian.PutUint64(head[48+8*k:], v)
	}
	if l.files.labelled {
		head[72] = 1
	}
	if _, err := f.Write(head); err != nil {
		return err
	}
	sum := uint32(0)
	write := func(part []byte) error {
		sum = crc32.Update(sum, castagnoli, part)
		_, err := f.Write(part)
		return err
	}
	if err := l.files.pieces(ctx, write); err != nil {
		return err
	}
	ends := make([]byte, 0, wordBytes*len(l.files.ends))
	for _, end := range l.files.ends {
		ends = binary.LittleEndian.AppendUint64(ends, end)
	}
	if err := errors.Join(write(ends), write(rest)); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(head[12:], crc32.Update(sum, castagnoli, head[16:]))
	_, err = f.WriteAt(head, 0)
	return err
}

// readIndex reads an index of some bytes, and checks all of it. The list keeps in if it is too long for memory.
func readIndex(ctx context.Context, in reader, size int64, key [32]byte) (*listing, error) {
	head := make([]byte, min(indexHeader, size))
	if err := in.ReadAt(ctx, head, 0); err != nil {
		return nil, err
	}
	if err := checkHeader(head, size); err != nil {
		return nil, err
	}
	n, groups, restBytes, labelled := counts(head)
	l := &listing{files: files{id: lists.Add(1), n: int(n), labelled: labelled == 1}}
	l.files.file, l.files.begin = in, indexHeader
	if groups <= uint64(keptBytes) {
		l.files.file, l.files.data = nil, make([]byte, groups)
		if err := in.ReadAt(ctx, l.files.data, indexHeader); err != nil {
			return nil, err
		}
	}
	tail := make([]byte, wordBytes*countGroups(n)+restBytes)
	if err := in.ReadAt(ctx, tail, indexHeader+int64(groups)); err != nil {
		return nil, err
	}
	l.files.ends = make([]uint64, countGroups(n))
	for g := range l.files.ends {
		l.files.ends[g] = binary.LittleEndian.Uint64(tail[g*wordBytes:])
		if g > 0 && l.files.ends[g] < l.files.ends[g-1] || l.files.ends[g] > groups {
			return nil, fmt.Errorf("it was damaged: group %d ends at %d of %d", g, l.files.ends[g], groups)
		}
	}
	if l.files.bytes() != groups {
		return nil, fmt.Errorf("it was damaged: the groups end at %d of %d", l.files.bytes(), groups)
	}
	sum := uint32(0)
	if err := l.files.pieces(ctx, func(part []byte) error {
		sum = crc32.Update(sum, castagnoli, part)
		return nil
	}); err != nil {
		return nil, err
	}
	sum = crc32.Update(crc32.Update(sum, castagnoli, tail), castagnoli, head[16:])
	if sum != binary.LittleEndian.Uint32(head[12:]) {
		return nil, fmt.Errorf("it was damaged: its checksum is %08x, it says %08x", sum, binary.LittleEndian.Uint32(head[12:]))
	}
	if !bytes.Equal(head[16:48], key[:]) {
		return nil, errors.New("it was of another folder or of other settings")
	}
	if err := json.Unmarshal(tail[wordBytes*len(l.files.ends):], &l.rest); err != nil {
		return nil, fmt.Errorf("it was damaged: %w", err)
	}
	l.files.numbers = l.Numbers
	return l, l.check(ctx)
}

// check returns an error unless the parts of a listing that was read fit together. It makes the survey.
func (l *listing) check(ctx context.Context) error {
	if l.files.n == 0 || !strings.HasPrefix(l.Fingerprint, kind+"-") || len(l.Fingerprint) > 64 ||
		slices.ContainsFunc(l.Folders, func(f folder) bool { return f.Name != "" && !below(f.Name) }) {
		return errors.New("it was damaged: its parts do not fit together")
	}
	return l.files.each(ctx, func(i int, e *entry) error {
		switch {
		case !below(e.name):
			return fmt.Errorf("it was damaged: file %d has the name %q", i, e.name)
		case e.stamp.Bytes > shm.MaxSampleBytes:
			return fmt.Errorf("it was damaged: file %d has %d bytes", i, e.stamp.Bytes)
		case l.Classes != nil && l.files.labelled && (e.label < 0 || e.label >= int64(len(l.Classes))):
			return fmt.Errorf("it was damaged: file %d has the label %d of %d", i, e.label, len(l.Classes))
		}
		l.files.survey.count(e.name, e.stamp.Bytes)
		return context.Cause(ctx)
	})
}

// save writes the index. At any moment, also after a kill, its path has a complete index: the old
// or the new one.
//
// A list that lay in a file of its own lies in the index then.
func (x *index) save(ctx context.Context, l *listing) error {
	if err := x.mayReplace(); err != nil {
		return err
	}
	x.sweep()
	f, err := os.CreateTemp(filepath.Dir(x.path), filepath.Base(x.path)+temporary)
	if err != nil {
		return err
	}
	fault.At("index.created")
	err = writeIndex(ctx, f, l, x.key)
	fault.At("index.written")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil && l.files.file != nil {
		err = x.use(f.Name(), &l.files)
	}
	if err == nil {
		err = os.Rename(f.Name(), x.path)
		fault.At("index.renamed")
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncFolder(filepath.Dir(x.path))
}

// mayReplace returns an error when the path holds a file that does not begin like an index: it is
// probably a user's file, and the path a mistake.
func (x *index) mayReplace() error {
	f, err := source.OpenFile(x.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, min(int64(len(indexMagic)), f.Stamp.Bytes))
	if err := f.ReadAt(context.Background(), head, 0); err != nil {
		return err
	}
	if string(head) != indexMagic[:len(head)] {
		return fmt.Errorf("%s is no index and is not replaced: remove it, or name another path", x.path)
	}
	return nil
}

// use makes a list lie in the index that was written to a path.
func (x *index) use(path string, files *files) error {
	f, err := source.OpenFile(path)
	if err != nil {
		return err
	}
	f.Path = x.path // its name from now on
	files.close()
	files.file, files.begin = f, indexHeader
	return nil
}

// temporary is the end of the name of an unfinished index. The star is random.
const temporary = ".unfinished-*"

// sweep removes the unfinished files of killed writers. None takes an hour to write an index.
func (x *index) sweep() {
	left, err := os.ReadDir(filepath.Dir(x.path))
	if err != nil {
		return
	}
	prefix := filepath.Base(x.path) + strings.TrimSuffix(temporary, "*")
	for _, e := range left {
		if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), prefix) &&
			info.Mode().IsRegular() && time.Since(info.ModTime()) > time.Hour {
			os.Remove(filepath.Join(filepath.Dir(x.path), e.Name()))
		}
	}
}

// syncFolder makes renames in a folder durable.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
