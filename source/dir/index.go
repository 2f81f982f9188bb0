package dir

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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
//	12      4           CRC-32C of everything from 16 on
//	16      32          SHA-256 of the folder's path and of the settings that determine files and labels
//	48      8           n, files
//	56      8           bytes of the names
//	64      8           bytes of the rest
//	72      8           1 with labels, else 0
//	80      48 x n      a record for each file: offset and length of its name among the names, size, time of
//	                    modification in ns or a number made of the tag of an object, time of creation in ns
//	                    or 0, label
//	                    the names
//	                    the rest in JSON: fingerprint, state, classes, the folders with their times, notes
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
	l, err := readIndex(ctx, x.path, x.key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there was none")
	}
	if err != nil {
		return nil, err
	}
	err = source.Each(ctx, len(l.Folders), lookups, share, func(_ context.Context, i int) error {
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

// readIndex reads an index and checks all of it. A list that is too long for memory stays mapped.
func readIndex(ctx context.Context, path string, key [32]byte) (*listing, error) {
	f, err := source.OpenFile(path)
	if err != nil {
		return nil, err
	}
	if f.Stamp.Bytes <= int64(keptBytes) {
		defer f.Close()
		b := make([]byte, f.Stamp.Bytes)
		if err := f.ReadAt(ctx, b, 0); err != nil {
			return nil, err
		}
		return parseIndex(ctx, b, key)
	}
	m, err := f.Map(ctx, 0, int(f.Stamp.Bytes))
	var l *listing
	if err == nil {
		if gone := f.Look(func() { l, err = parseIndex(ctx, m.Bytes, key) }); gone != nil {
			err = gone
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.Close(), f.Close())
	}
	l.files.index, l.files.unmap = f, []func() error{m.Close}
	return l, nil
}

// parseIndex returns the listing in the bytes of an index. It keeps them.
func parseIndex(ctx context.Context, b []byte, key [32]byte) (*listing, error) {
	switch {
	case len(b) == 0:
		return nil, errors.New("it was empty")
	case !bytes.HasPrefix(b, []byte(indexMagic)):
		return nil, errors.New("it was none")
	case len(b) < indexHeader:
		return nil, errors.New("it was cut off")
	case binary.LittleEndian.Uint32(b[8:]) != indexVersion:
		return nil, fmt.Errorf("it had version %d, this program writes %d", binary.LittleEndian.Uint32(b[8:]), indexVersion)
	}
	if sum := crc32.Checksum(b[16:], shm.Castagnoli); sum != binary.LittleEndian.Uint32(b[12:]) {
		return nil, fmt.Errorf("it was damaged: its checksum is %08x, it says %08x", sum, binary.LittleEndian.Uint32(b[12:]))
	}
	if !bytes.Equal(b[16:48], key[:]) {
		return nil, errors.New("it was of another folder or of other settings")
	}
	u := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	n, names, labelled, parts := u(48), u(56), u(72), b[indexHeader:]
	left := uint64(len(parts))
	if n > left/uint64(recordBytes) || names > left-n*uint64(recordBytes) || u(64) != left-n*uint64(recordBytes)-names || labelled > 1 {
		return nil, fmt.Errorf("it was damaged: %d files with %d bytes of names and %d others do not make %d bytes", n, names, u(64), len(b))
	}
	end := n * uint64(recordBytes)
	l := &listing{files: files{records: recordsOf(parts[:end]), names: parts[end : end+names], labelled: labelled == 1}}
	if err := json.Unmarshal(parts[end+names:], &l.rest); err != nil {
		return nil, fmt.Errorf("it was damaged: %w", err)
	}
	return l, l.check(ctx)
}

// writeIndex writes an index, with the names in the order of the files.
func writeIndex(ctx context.Context, f *os.File, l *listing, key [32]byte) error {
	rest, err := json.Marshal(l.rest)
	if err != nil {
		return err
	}
	head := make([]byte, indexHeader)
	copy(head, indexMagic)
	binary.LittleEndian.PutUint32(head[8:], indexVersion)
	copy(head[16:], key[:])
	names := uint64(0)
	if err := l.files.each(ctx, func(_ int, name []byte, _ *record) error { names += uint64(len(name)); return nil }); err != nil {
		return err
	}
	for k, v := range []uint64{uint64(len(l.files.records)), names, uint64(len(rest))} {
		binary.LittleEndian.PutUint64(head[48+8*k:], v)
	}
	if l.files.labelled {
		head[72] = 1
	}
	sum := crc32.New(shm.Castagnoli)
	sum.Write(head[16:]) // never fails
	if _, err := f.Write(head); err != nil {
		return err
	}
	w, at := bufio.NewWriterSize(io.MultiWriter(f, sum), writeBytes), uint64(0)
	if err := l.files.each(ctx, func(_ int, _ []byte, r *record) error {
		moved := []record{*r}
		moved[0].at, at = at, at+r.bytes
		_, err := w.Write(bytesOf(moved))
		return err
	}); err != nil {
		return err
	}
	err = l.files.each(ctx, func(_ int, name []byte, _ *record) error { _, err := w.Write(name); return err })
	if err == nil {
		_, err = w.Write(rest)
	}
	if err = cmp.Or(err, w.Flush()); err != nil {
		return err
	}
	_, err = f.WriteAt(binary.LittleEndian.AppendUint32(nil, sum.Sum32()), 12)
	return err
}

// check returns an error unless the parts of a listing that was read fit together. It makes the survey.
func (l *listing) check(ctx context.Context) error {
	if len(l.files.records) == 0 || !strings.HasPrefix(l.Fingerprint, kind+"-") || len(l.Fingerprint) > 64 ||
		slices.ContainsFunc(l.Folders, func(f folder) bool { return f.Name != "" && !below(f.Name) }) {
		return errors.New("it was damaged: its parts do not fit together")
	}
	return l.files.each(ctx, func(i int, name []byte, r *record) error {
		switch {
		case !below(name):
			return fmt.Errorf("it was damaged: file %d has the name %q", i, name)
		case r.size < 0 || r.size > shm.MaxSampleBytes:
			return fmt.Errorf("it was damaged: file %d has %d bytes", i, r.size)
		case l.Classes != nil && l.files.labelled && (r.label < 0 || r.label >= int64(len(l.Classes))):
			return fmt.Errorf("it was damaged: file %d has the label %d of %d", i, r.label, len(l.Classes))
		}
		l.files.survey.count(name, r.size)
		return nil
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
	if err == nil && l.files.unmap != nil {
		err = x.use(ctx, f.Name(), &l.files)
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
func (x *index) use(ctx context.Context, path string, list *files) error {
	l, err := readIndex(ctx, path, x.key)
	if err != nil {
		return err
	}
	if l.files.index != nil {
		l.files.index.Path = x.path // its name from now on
	}
	list.close()
	*list = l.files
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
