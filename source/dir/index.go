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
//	8       4           version, 1
//	12      4           CRC-32C of everything from 16 on
//	16      32          SHA-256 of the folder's path and of the settings that determine files and labels
//	48      8           n, files
//	56      8           bytes of their names
//	64      8           bytes of the rest
//	72      8           1 with labels, else 0
//	80      16 x n      size and time of modification in ns
//	        8 x n       where each name ends
//	        8 x n       labels, if any
//	                    names, one after the other
//	                    the rest in JSON: fingerprint, classes, the folders with their times, notes
//
// An index is valid when all of that is correct and no folder has changed: a file that was created,
// removed or renamed changes the time of its folder. A file that was rewritten in place is detected
// when it is read. Objects have no folders: their index is valid until somebody removes it, so that
// ten million objects are listed once.
const (
	indexMagic   = "STOCTREE"
	indexVersion = 1
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
func (o *settings) newIndex(ctx context.Context, from *source.Place, root string) (*index, error) {
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
	defer f.Close()
	head := make([]byte, min(indexHeader, f.Stamp.Bytes))
	if err := f.ReadAt(ctx, head, 0); err != nil {
		return nil, err
	}
	if err := checkHeader(head, f.Stamp.Bytes); err != nil {
		return nil, err
	}
	b := make([]byte, f.Stamp.Bytes)
	if err := f.ReadAt(ctx, b, 0); err != nil {
		return nil, err
	}
	l, err := decodeIndex(ctx, b, x.key)
	if err != nil {
		return nil, err
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
	n, names, rest, labels := counts(head)
	per := uint64(24)
	if labels == 1 {
		per += 8
	}
	left := uint64(size) - indexHeader
	if labels > 1 || n > left/per || names > left-n*per || rest != left-n*per-names {
		return fmt.Errorf("it was damaged: %d files with %d bytes of names and %d of others do not make %d bytes", n,
			names, rest, size)
	}
	return nil
}

func counts(head []byte) (n, names, rest, labels uint64) {
	u := func(at int) uint64 { return binary.LittleEndian.Uint64(head[at:]) }
	return u(48), u(56), u(64), u(72)
}

// encodeIndex returns the parts of an index, one after the other in the file.
func encodeIndex(l *listing, key [32]byte) ([][]byte, error) {
	rest, err := json.Marshal(l.rest)
	if err != nil {
		return nil, err
	}
	labelled := uint64(0)
	if l.files.labelled() {
		labelled = 1
	}
	head := make([]byte, indexHeader)
	copy(head, indexMagic)
	binary.LittleEndian.PutUint32(head[8:], indexVersion)
	copy(head[16:], key[:])
	for k, v := range []uint64{uint64(l.files.len()), uint64(len(l.files.names)), uint64(len(rest)), labelled} {
		binary.LittleEndian.PutUint64(head[48+8*k:], v)
	}
	parts := [][]byte{head, l.files.stamps, l.files.ends, l.files.labels, l.files.names, rest}
	sum := crc32.Checksum(head[16:], castagnoli)
	for _, part := range parts[1:] {
		sum = crc32.Update(sum, castagnoli, part)
	}
	binary.LittleEndian.PutUint32(head[12:], sum)
	return parts, nil
}

// decodeIndex decodes an index and checks all of it. The listing keeps b.
func decodeIndex(ctx context.Context, b []byte, key [32]byte) (*listing, error) {
	if err := checkHeader(b[:min(indexHeader, len(b))], int64(len(b))); err != nil {
		return nil, err
	}
	if sum := crc32.Checksum(b[16:], castagnoli); sum != binary.LittleEndian.Uint32(b[12:]) {
		return nil, fmt.Errorf("it was damaged: its checksum is %08x, it says %08x", sum, binary.LittleEndian.Uint32(b[12:]))
	}
	if !bytes.Equal(b[16:48], key[:]) {
		return nil, errors.New("it was of another folder or of other settings")
	}
	n, nameBytes, restBytes, labelled := counts(b)
	b = b[indexHeader:]
	take := func(bytes uint64) []byte {
		part := b[:bytes:bytes]
		b = b[bytes:]
		return part
	}
	l := &listing{files: files{stamps: take(n * stampBytes), ends: take(n * wordBytes)}}
	if labelled == 1 {
		l.files.labels = take(n * wordBytes)
	}
	l.files.names = take(nameBytes)
	if err := json.Unmarshal(take(restBytes), &l.rest); err != nil {
		return nil, fmt.Errorf("it was damaged: %w", err)
	}
	return l, l.check(ctx)
}

// check returns an error unless the parts of a decoded listing fit together.
func (l *listing) check(ctx context.Context) error {
	f := &l.files
	ok := f.len() > 0 && strings.HasPrefix(l.Fingerprint, kind+"-") && len(l.Fingerprint) <= 64 &&
		!slices.ContainsFunc(l.Folders, func(f folder) bool { return f.Name != "" && !below(f.Name) })
	if ok {
		_, end := f.span(f.len() - 1)
		ok = end == uint64(len(f.names))
	}
	if !ok {
		return errors.New("it was damaged: its parts do not fit together")
	}
	// One search over all names is faster than one for each. If it finds none of these, only the
	// ends of each name need a check.
	plain := !bytes.Contains(f.names, []byte("//")) && !bytes.Contains(f.names, []byte("/.")) &&
		bytes.IndexByte(f.names, 0) < 0
	good := func(name []byte) bool {
		if plain && len(name) > 0 && name[0] != '.' && name[0] != '/' && name[len(name)-1] != '/' {
			return true
		}
		return below(name)
	}
	return each(ctx, f.len(), func(i int) error {
		start, end := f.span(i)
		switch {
		case start > end || end > uint64(len(f.names)) || !good(f.names[start:end]):
			return fmt.Errorf("it was damaged: the name of file %d lies at %d..%d of %d", i, start, end, len(f.names))
		case f.bytes(i) < 0 || f.bytes(i) > shm.MaxSampleBytes:
			return fmt.Errorf("it was damaged: file %d has %d bytes", i, f.bytes(i))
		case l.Classes != nil && f.labelled() && (f.label(i) < 0 || f.label(i) >= int64(len(l.Classes))):
			return fmt.Errorf("it was damaged: file %d has the label %d of %d", i, f.label(i), len(l.Classes))
		}
		return nil
	})
}

// save writes the index. At any moment, also after a kill, its path has a complete index: the old
// or the new one.
func (x *index) save(l *listing) error {
	if err := x.mayReplace(); err != nil {
		return err
	}
	parts, err := encodeIndex(l, x.key)
	if err != nil {
		return err
	}
	x.sweep()
	f, err := os.CreateTemp(filepath.Dir(x.path), filepath.Base(x.path)+temporary)
	if err != nil {
		return err
	}
	fault.At("index.created")
	for _, part := range parts {
		if err == nil {
			_, err = f.Write(part)
		}
	}
	fault.At("index.written")
	err = errors.Join(err, f.Sync(), f.Close())
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
