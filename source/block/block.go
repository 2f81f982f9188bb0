// Package block reads and writes datasets in block files: samples one after the other in blocks of
// some MB, with an index and checksums (docs/spec/block.md). To read a sample takes one pread, to
// read a block one large pread. A Writer, or the command stocached pack, makes such a dataset.
package block

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/source"
)

const kind = "block"

// Kind is this kind for the list in package kinds.
var Kind = source.Kind{Name: kind,
	Doc: "a dataset in block files, made by stocached pack: path of its folder; verify: " +
		"false leaves out the checksums", Open: open}

// settings are the keys of this kind.
type settings struct {
	source.Remote `key:",squash"`

	Path   string `key:"path"`
	Verify *bool  `key:"verify"` // compare each sample read with its checksum; default true
}

func open(ctx context.Context, s source.Settings) (source.Source, error) {
	var o settings
	if err := s.Decode(&o); err != nil {
		return nil, err
	}
	place, err := o.Place(&o.Path)
	if err != nil {
		return nil, err
	}
	return openAt(ctx, place, o.Path, o.Verify == nil || *o.Verify)
}

// Dataset is a source of samples in block files. It is a source.Blocks.
type Dataset struct {
	folder      string
	place       *source.Place
	info        source.Info
	description Description
	files       []*file
	blocks      int
	verify      bool

	mu     sync.RWMutex // locked for reading by each access to the files: Close waits for them
	closed bool
}

var _ source.Blocks = (*Dataset)(nil)

// Open opens the dataset in a folder. With verify each Read compares the sample with its checksum.
// Errors: ErrCorrupt, ErrInvalid, the cause of ctx, errors of the system.
func Open(ctx context.Context, folder string, verify bool) (*Dataset, error) {
	return openAt(ctx, &source.Place{}, folder, verify)
}

// openAt is Open for a folder of a place, which the dataset closes.
func openAt(ctx context.Context, place *source.Place, folder string, verify bool) (*Dataset, error) {
	if place.Objects() != nil {
		folder = strings.TrimRight(folder, "/")
	}
	doc, description, id, err := readDocument(ctx, place, folder)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = missing(ctx, place, folder, err)
		}
		place.Close()
		return nil, err
	}
	d := &Dataset{folder: folder, place: place, description: description, verify: verify}
	if err := d.openFiles(ctx, doc, id); err != nil {
		d.Close()
		return nil, err
	}
	named, settings := make([]source.Named, len(d.files)), hex.EncodeToString(id[:])
	for k, f := range d.files {
		named[k] = source.Named{Name: filepath.Base(f.Path), Stamp: f.Stamp}
		settings += fmt.Sprintf(" %08x", f.crc)
	}
	d.info = source.Info{Kind: kind, Samples: doc.Samples, Schema: description.Schema, Traffic: place.Traffic(),
		Notes: slices.Concat(description.Notes, place.Notes())}
	d.info.Fingerprint, d.info.State = source.FingerprintOf(kind, settings, slices.Values(named))
	return d, nil
}

// missing says why dataset.json is missing.
func missing(ctx context.Context, place *source.Place, folder string, err error) error {
	_, gone := source.StampOf(filepath.Join(folder+partSuffix, fileName(0)))
	if place.Objects() != nil {
		_, gone = place.Stamp(ctx, folder+"/"+fileName(0))
	}
	if gone == nil || filepath.Ext(folder) == partSuffix {
		return fmt.Errorf("%w: the dataset is not whole: run again what was writing it, and it goes on where it stopped", err)
	}
	return fmt.Errorf("%w: no dataset in block files, such as stocached pack makes", err)
}

func (d *Dataset) openFiles(ctx context.Context, doc *document, id identity) error {
	l := limitsOf(&d.description.Schema, d.description.Compression)
	samples, largest := 0, uint32(0)
	for k, r := range doc.Files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f, bytes, err := openFile(ctx, d.place, d.folder+"/"+r.Name, l)
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return fmt.Errorf("%w: a reader keeps all %d block files open: allow more open files (ulimit -n), "+
				"or pack with a larger --file-size",
				err, len(doc.Files))
		}
		if err != nil {
			return err
		}
		f.block = d.blocks
		d.files = append(d.files, f)
		said := fileRecord{r.Name, f.Stamp.Bytes, f.samples, f.blocks, fmt.Sprintf("%08x", f.crc)}
		switch {
		case f.id != id:
			return damaged("%s belongs to another dataset: its id is %x, that of this one %x", f.Path, f.id, id)
		case said != r || f.first != samples || f.number != k:
			return damaged("%s is %+v, number %d, from sample %d; %s says %+v, number %d, from sample %d",
				f.Path, said, f.number, f.first, datasetName, r, k, samples)
		}
		samples, d.blocks, largest = samples+f.samples, d.blocks+f.blocks, max(largest, bytes)
	}
	if uint64(largest) != doc.SampleBytes {
		return damaged("%s says %d bytes for the largest sample, and it has %d",
			d.folder+"/"+datasetName, doc.SampleBytes, largest)
	}
	return nil
}

// Info is part of source.Source. Its notes are those of the source that the dataset was made from.
func (d *Dataset) Info() source.Info { return d.info }

// Description returns how the dataset was made.
func (d *Dataset) Description() Description { return d.description }

// Folder returns the folder of the dataset.
func (d *Dataset) Folder() string { return d.folder }

// Files returns the number of block files and their bytes.
func (d *Dataset) Files() (n int, bytes int64) {
	for _, f := range d.files {
		bytes += f.Stamp.Bytes
	}
	return len(d.files), bytes
}

// fileOf returns the file of an existing sample.
func (d *Dataset) fileOf(i int) *file {
	return d.files[sort.Search(len(d.files), func(k int) bool { return d.files[k].first > i })-1]
}

// find finds a sample. The caller holds d.mu. It returns ErrIndex, ErrClosed or ErrChanged.
func (d *Dataset) find(i int) (*file, entry, error) {
	if i < 0 || i >= d.info.Samples {
		return nil, entry{}, source.BadIndex(i, d.info.Samples)
	}
	if d.closed {
		return nil, entry{}, fmt.Errorf("%w: %s", source.ErrClosed, d.folder)
	}
	f := d.fileOf(i)
	e, err := f.find(i - f.first)
	return f, e, err
}

// Size is part of source.Source.
func (d *Dataset) Size(i int) (int, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, e, err := d.find(i)
	return int(e.length), err
}

// Read is part of source.Source.
func (d *Dataset) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	f, e, err := d.find(i)
	if err != nil {
		return 0, err
	}
	n := int(e.length)
	if err := source.CheckRead(ctx, i, d.info.Samples, n, dst); err != nil {
		return 0, err
	}
	stored := dst[:n:n]
	if e.stored < e.length {
		b := buffer(int(e.stored))
		defer b.free()
		stored = b.bytes
	}
	if err := f.ReadAt(ctx, stored, e.offset); err != nil {
		return 0, err
	}
	_, err = f.unpack(i, e, stored, dst[:n:n], d.verify)
	return n, err
}

// Blocks is part of source.Blocks.
func (d *Dataset) Blocks() int { return d.blocks }

// BlockOf is part of source.Blocks. It returns -1 after Close too.
func (d *Dataset) BlockOf(i int) int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if i < 0 || i >= d.info.Samples || d.closed {
		return -1
	}
	f := d.fileOf(i)
	k := f.blockOf(i)
	if k < 0 {
		return -1
	}
	return f.block + k
}

// fileOfBlock returns the file of an existing block.
func (d *Dataset) fileOfBlock(b int) *file {
	return d.files[sort.Search(len(d.files), func(k int) bool { return d.files[k].block > b })-1]
}

// Block is part of source.Blocks. It returns 0, 0 after Close too.
func (d *Dataset) Block(b int) (first, n int) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if b < 0 || b >= d.blocks || d.closed {
		return 0, 0
	}
	f := d.fileOfBlock(b)
	s, n, err := f.blockSpan(b - f.block)
	if err != nil {
		return 0, 0
	}
	return s.first, n
}

// ReadBlock is part of source.Blocks.
func (d *Dataset) ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error {
	f, h, err := d.hold(ctx, b)
	if err != nil {
		return err
	}
	return f.each(h, d.verify, each) // without the lock: each may call any method
}

func (d *Dataset) hold(ctx context.Context, b int) (*file, held, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	switch {
	case ctx.Err() != nil:
		return nil, held{}, context.Cause(ctx)
	case b < 0 || b >= d.blocks:
		return nil, held{}, fmt.Errorf("%w: block %d is not in 0..%d", source.ErrIndex, b, d.blocks-1)
	case d.closed:
		return nil, held{}, fmt.Errorf("%w: %s", source.ErrClosed, d.folder)
	}
	f := d.fileOfBlock(b)
	h, err := f.read(ctx, b-f.block)
	return f, h, err
}

// Where is part of source.Source.
func (d *Dataset) Where(i int) string {
	if i < 0 || i >= d.info.Samples {
		return ""
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	f, e, err := d.find(i)
	if err != nil {
		return d.fileOf(i).Path
	}
	return fmt.Sprintf("%s, %d bytes at %d", f.Path, e.stored, e.offset)
}

// Close is part of source.Source.
func (d *Dataset) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var all []error
	for _, f := range d.files {
		all = append(all, f.Close())
	}
	d.place.Close()
	return errors.Join(all...)
}
