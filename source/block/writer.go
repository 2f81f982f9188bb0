package block

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// Defaults of Options.
const (
	DefaultBlockBytes = 8 << 20
	DefaultFileBytes  = 256 << 20
)

// Options describe the dataset of a Writer.
type Options struct {
	Schema      shm.Schema    // of the samples; its SampleBytes is ignored if sizes differ
	Compression Compression   // "": none
	BlockBytes  int           // a multiple of 4096, at most 1 GiB; 0: DefaultBlockBytes
	FileBytes   int64         // 0: DefaultFileBytes
	Source      Origin        // of the samples. Without a fingerprint a Writer does not continue an interrupted one
	Notes       []source.Note // further notes. A Writer that continues does not compare them
	// Restart removes the files of an interrupted writer of another dataset. Otherwise they are an
	// error.
	Restart bool
	// Kept may be nil. It is called with the number of complete samples of an interrupted writer,
	// while they are verified.
	Kept func(samples int)
}

// Errors of Create, for errors.Is.
var (
	// ErrWhole: the folder has the same dataset, complete.
	ErrWhole = errors.New("the dataset is there already, and whole")
	// ErrInTheWay: the folder holds other files, or files of an interrupted writer of another
	// dataset. It matches fs.ErrExist.
	ErrInTheWay error = inTheWay{}
	// ErrBusy: another process is writing to the folder.
	ErrBusy = errors.New("another writer is at work there")
)

type inTheWay struct{}

func (inTheWay) Error() string        { return "something else is in the way" }
func (inTheWay) Is(target error) bool { return target == fs.ErrExist }

// Writer writes a dataset in block files: samples in the order of their indices, then Finish.
// Before Finish the files lie in a folder with ".part" after the name of the dataset's folder,
// which does not exist yet. The next Writer of the same source continues there. Only Pack is safe
// for concurrent use.
type Writer struct {
	folder      string // of the complete dataset
	part        string // of the incomplete dataset
	lock        *os.File
	description Description
	text        json.RawMessage // of the description
	id          identity
	files       []fileRecord
	next        int
	largest     uint64

	// The current block file.
	file    *os.File // nil: not begun
	spans   []span
	entries []entry
	end     int64 // of the blocks that are written to it

	// The current block: the bytes of its samples, and its first sample in entries.
	block []byte
	first int

	err error // of the first failed write; the Writer writes nothing after it
}

// Create begins to write the dataset in a folder, or continues an interrupted Writer of the same
// source: Next says where. The parent folder must exist. Errors: ErrWhole, ErrInTheWay, ErrBusy,
// ErrInvalid for invalid options, the cause of ctx, errors of the system.
func Create(ctx context.Context, folder string, o Options) (*Writer, error) {
	w, err := newWriter(folder, o)
	if err != nil {
		return nil, err
	}
	if err := w.checkTarget(); err != nil {
		return nil, err
	}
	if err := w.lockPart(ctx); err != nil {
		return nil, err
	}
	if err := w.goOn(ctx, o); err != nil {
		w.lock.Close()
		return nil, err
	}
	fault.At("pack.begin")
	return w, nil
}

func newWriter(folder string, o Options) (*Writer, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	schema, err := shm.NewSchema(o.Schema.Fields, o.Schema.Variable)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", source.ErrInvalid, err)
	}
	d := Description{Schema: schema, Compression: cmp.Or(o.Compression, None),
		BlockBytes: cmp.Or(o.BlockBytes, DefaultBlockBytes), FileBytes: cmp.Or(o.FileBytes, DefaultFileBytes),
		Source: o.Source, Notes: o.Notes}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", source.ErrInvalid, err)
	}
	w := &Writer{folder: folder, part: folder + partSuffix, description: d}
	w.text, w.id, err = d.encode()
	return w, err
}

// checkTarget returns nil if the folder does not exist or is empty, else ErrWhole or ErrInTheWay.
func (w *Writer) checkTarget() error {
	entries, err := os.ReadDir(w.folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %s is not a folder", ErrInTheWay, w.folder)
	case err != nil:
		return err
	case len(entries) == 0:
		return w.checkEmpty()
	}
	_, _, id, err := readDocument(context.Background(), &source.Place{}, w.folder)
	switch {
	case err == nil && id == w.id && w.description.Source.Fingerprint != "":
		return fmt.Errorf("%w: %s", ErrWhole, w.folder)
	case err == nil:
		return fmt.Errorf("%w: %s is a dataset in block files made from other data or otherwise; "+
			"remove it, or write elsewhere",
			ErrInTheWay, w.folder)
	}
	return fmt.Errorf("%w: %s is a folder with something in it; write elsewhere", ErrInTheWay, w.folder)
}

// checkEmpty returns ErrInTheWay for an empty folder that a rename cannot replace. Finish would
// find that only after all the work.
func (w *Writer) checkEmpty() error {
	var own, above unix.Stat_t
	if err := errors.Join(unix.Lstat(w.folder, &own), unix.Stat(filepath.Dir(w.folder), &above)); err != nil {
		return err
	}
	switch {
	case own.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%w: %s is a symbolic link; write to where it leads", ErrInTheWay, w.folder)
	case own.Dev != above.Dev:
		return fmt.Errorf("%w: %s is a mount point; write to a folder in it", ErrInTheWay, w.folder)
	}
	return nil
}

// lockDeadline bounds the wait for another writer: a killed writer keeps its lock until its last
// write has ended.
const lockDeadline = time.Second

// lockPart makes the folder of the incomplete dataset, and takes the lock of its only writer.
func (w *Writer) lockPart(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < lockDeadline; time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := os.Mkdir(w.part, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		fd, err := unix.Open(w.part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		switch err {
		case nil:
		case unix.ENOENT, unix.EINTR:
			continue
		case unix.ENOTDIR, unix.ELOOP:
			return fmt.Errorf("%w: %s is not a folder", ErrInTheWay, w.part)
		default:
			return &os.PathError{Op: "open", Path: w.part, Err: err}
		}
		w.lock = os.NewFile(uintptr(fd), w.part)
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		mine, statErr := w.lock.Stat()
		there, thereErr := os.Stat(w.part)
		// the folder may have been renamed before the lock
		if err == nil && errors.Join(statErr, thereErr) == nil && os.SameFile(mine, there) {
			return w.locked()
		}
		w.lock.Close()
		if err != nil && err != unix.EINTR && err != unix.EWOULDBLOCK {
			return &os.PathError{Op: "lock", Path: w.part, Err: err}
		}
	}
	return fmt.Errorf("%w: %s", ErrBusy, w.part)
}

// locked checks the target again under the lock: the previous writer may have finished.
func (w *Writer) locked() error {
	err := w.checkTarget()
	if err != nil {
		os.Remove(w.part) // fails if it is not empty
		w.lock.Close()
	}
	return err
}

// goOn keeps the complete files of an interrupted writer and removes its other files.
func (w *Writer) goOn(ctx context.Context, o Options) error {
	left, err := os.ReadDir(w.part)
	if err != nil {
		return err
	}
	for _, e := range left {
		if !ours(e.Name()) || !e.Type().IsRegular() {
			return fmt.Errorf("%w: %s is not of an interrupted writer; write elsewhere, or remove %s",
				ErrInTheWay, filepath.Join(w.part, e.Name()), w.part)
		}
	}
	for k := 0; ; k++ {
		kept, err := w.keep(ctx, k, o)
		if err != nil {
			return err
		}
		if !kept {
			break
		}
		if o.Kept != nil {
			o.Kept(w.next)
		}
	}
	keep := map[string]bool{}
	for _, f := range w.files {
		keep[f.Name] = true
	}
	for _, e := range left {
		if !keep[e.Name()] {
			if err := os.Remove(filepath.Join(w.part, e.Name())); err != nil {
				return err
			}
		}
	}
	return w.lock.Sync()
}

// ours says whether a name is that of a writer's file.
func ours(name string) bool {
	if base := filepath.Ext(name); base == partSuffix {
		name = name[:len(name)-len(base)]
	}
	var k int
	_, err := fmt.Sscanf(name, "%d.stocblk", &k)
	return name == datasetName || err == nil && k >= 0 && name == fileName(k)
}

// keep keeps the k-th block file if it is valid and continues the previous one.
func (w *Writer) keep(ctx context.Context, k int, o Options) (bool, error) {
	path := filepath.Join(w.part, fileName(k))
	l := limitsOf(&w.description.Schema, w.description.Compression)
	if w.description.Schema.Variable {
		l.most = shm.MaxSampleBytes
	}
	f, largest, err := openFile(ctx, &source.Place{}, path, l)
	switch {
	case errors.Is(err, source.ErrCorrupt), errors.Is(err, source.ErrInvalid), errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	defer f.Close()
	if f.id != w.id && k == 0 && !o.Restart && w.description.Source.Fingerprint != "" {
		return false, fmt.Errorf("%w: %s was left by an interrupted writer of other data, or with other options; "+
			"start again with --restart, or remove it",
			ErrInTheWay, w.part)
	}
	if f.id != w.id || f.first != w.next || f.number != k || w.description.Source.Fingerprint == "" {
		return false, nil
	}
	for b := range f.blocks {
		h, err := f.read(ctx, b)
		if err == nil {
			err = f.each(h, true, func(int, []byte) error { return nil })
		}
		if errors.Is(err, source.ErrCorrupt) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	w.files = append(w.files, fileRecord{fileName(k), f.Stamp.Bytes, f.samples, f.blocks, fmt.Sprintf("%08x", f.crc)})
	w.next, w.largest = w.next+f.samples, max(w.largest, uint64(largest))
	return true, nil
}

// Next returns the index of the next sample to write.
func (w *Writer) Next() int { return w.next }

// Whole returns how many written samples are in finished block files. They remain if the Writer is
// closed or dies now.
func (w *Writer) Whole() int {
	whole := 0
	for _, f := range w.files {
		whole += f.Samples
	}
	return whole
}

// Folder returns the folder of the incomplete dataset.
func (w *Writer) Folder() string { return w.part }

// Packed is a sample in its stored form.
type Packed struct {
	stored []byte
	length uint32
	crc    uint32
}

// Pack checks a sample and compresses it if the options say so. This is most of the work; any
// number of goroutines may do it concurrently. The result may point into sample. It returns
// ErrInvalid for a sample that does not fit the schema.
func (w *Writer) Pack(sample []byte) (Packed, error) {
	if _, err := w.description.Schema.Split(sample); err != nil {
		return Packed{}, fmt.Errorf("%w: %w", source.ErrInvalid, err)
	}
	if len(sample) > shm.MaxSampleBytes {
		return Packed{}, fmt.Errorf("%w: a sample of %d bytes, none has more than %d", source.ErrInvalid, len(sample),
			uint64(shm.MaxSampleBytes))
	}
	p := Packed{sample, uint32(len(sample)), checksum(sample)}
	if w.description.Compression == Zstd {
		if frame := encoder().EncodeAll(sample, nil); len(frame) < len(sample) {
			p.stored = frame
		}
	}
	return p, nil
}

// Write writes the next sample. It returns the errors of Pack and Append.
func (w *Writer) Write(sample []byte) error {
	p, err := w.Pack(sample)
	if err != nil {
		return err
	}
	return w.Append(p)
}

// Append writes the next sample, packed by this Writer. It returns errors of the system, with the
// path. After an error all calls fail.
func (w *Writer) Append(p Packed) error {
	if w.err != nil {
		return w.err
	}
	n := len(w.entries) - w.first
	if n > 0 && (len(w.block)+len(p.stored) > w.description.BlockBytes || n >= maxBlockSamples) {
		if w.err = w.endBlock(); w.err != nil {
			return w.err
		}
		if w.end >= w.description.FileBytes || len(w.entries) >= maxFileSamples {
			if w.err = w.endFile(); w.err != nil {
				return w.err
			}
		}
	}
	w.entries = append(w.entries, entry{w.end + int64(len(w.block)), uint32(len(p.stored)), p.length, p.crc})
	w.block = append(w.block, p.stored...)
	w.next++
	w.largest = max(w.largest, uint64(p.length))
	return nil
}

// endBlock writes the current block.
func (w *Writer) endBlock() error {
	if w.file == nil {
		f, err := os.OpenFile(filepath.Join(w.part, fileName(len(w.files))+partSuffix),
			os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			return err
		}
		w.file = f
	}
	w.spans = append(w.spans, span{w.end, int64(len(w.block)), w.next - (len(w.entries) - w.first)})
	w.block = append(w.block, make([]byte, aligned(int64(len(w.block)))-int64(len(w.block)))...)
	if _, err := w.file.Write(w.block); err != nil {
		return err
	}
	fault.At("pack.block")
	w.end += int64(len(w.block))
	w.first = len(w.entries)
	if w.block = w.block[:0]; cap(w.block) > 2*w.description.BlockBytes { // the block had one large sample
		w.block = nil
	}
	return nil
}

// endFile writes the footer of the current file and renames it to its final name.
func (w *Writer) endFile() error {
	t := trailer{first: w.next - len(w.entries), samples: len(w.entries), blocks: len(w.spans), id: w.id,
		number: len(w.files)}
	footer := encodeFooter(&t, w.spans, w.entries)
	if _, err := w.file.Write(footer); err != nil {
		return err
	}
	fault.At("pack.footer")
	if err := w.file.Sync(); err != nil {
		return err
	}
	fault.At("pack.synced")
	err := w.file.Close()
	w.file = nil
	if err != nil {
		return err
	}
	name := fileName(len(w.files))
	if err := w.rename(name); err != nil {
		return err
	}
	fault.At("pack.file")
	w.files = append(w.files, fileRecord{name, w.end + int64(len(footer)), t.samples, t.blocks,
		fmt.Sprintf("%08x", t.crc)})
	w.spans, w.entries, w.first, w.end = w.spans[:0], w.entries[:0], 0, 0
	return nil
}

// rename renames a file to its final name and syncs the folder.
func (w *Writer) rename(name string) error {
	path := filepath.Join(w.part, name)
	if err := os.Rename(path+partSuffix, path); err != nil {
		return err
	}
	return w.lock.Sync()
}

// Finish completes the dataset: its folder appears. Errors: ErrInvalid when no sample was written,
// ErrInTheWay when another process has created the folder, errors of the system. Finish closes the
// Writer unless it fails.
func (w *Writer) Finish() error {
	if w.err != nil {
		return w.err
	}
	if w.next == 0 {
		return fmt.Errorf("%w: a dataset without samples", source.ErrInvalid)
	}
	w.err = w.finish()
	if w.err != nil {
		return w.err
	}
	w.err = fmt.Errorf("%w: %s", source.ErrClosed, w.folder)
	return w.lock.Close()
}

func (w *Writer) finish() error {
	if len(w.entries) > 0 {
		if err := w.endBlock(); err != nil {
			return err
		}
		if err := w.endFile(); err != nil {
			return err
		}
	}
	if err := w.writeDocument(); err != nil {
		return err
	}
	if err := unix.Rename(w.part, w.folder); err != nil { // this may replace an empty folder, and nothing else
		if err == unix.ENOTEMPTY || err == unix.EEXIST || err == unix.ENOTDIR {
			return fmt.Errorf("%w: another program made %s; the dataset is whole in %s, and can be renamed",
				ErrInTheWay, w.folder, w.part)
		}
		return fmt.Errorf("the dataset is whole in %s, but: %w", w.part,
			&os.LinkError{Op: "rename", Old: w.part, New: w.folder, Err: err})
	}
	above, err := os.Open(filepath.Dir(w.folder))
	if err != nil {
		return err
	}
	defer above.Close()
	if err := above.Sync(); err != nil {
		return err
	}
	fault.At("pack.whole")
	return nil
}

func (w *Writer) writeDocument() error {
	bytes := w.largest
	if !w.description.Schema.Variable {
		bytes = w.description.Schema.SampleBytes
	}
	doc := document{Format: formatName, Version: version, ID: hex.EncodeToString(w.id[:]), Description: w.text,
		Samples: w.next, SampleBytes: bytes, Notes: []noteRecord{}, Files: w.files}
	for _, n := range w.description.Notes {
		doc.Notes = append(doc.Notes, noteRecord(n))
	}
	text, err := doc.sealed()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(w.part, datasetName+partSuffix), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	fault.At("pack.described")
	if err := w.rename(datasetName); err != nil {
		return err
	}
	fault.At("pack.dataset")
	return nil
}

// Close ends the Writer. The complete files stay for the next Writer. It does nothing after Finish.
func (w *Writer) Close() error {
	var err error
	if w.file != nil {
		err = w.file.Close()
		w.file = nil
		os.Remove(filepath.Join(w.part, fileName(len(w.files))+partSuffix)) // otherwise the next Writer removes it
	}
	if w.lock.Fd() != ^uintptr(0) {
		os.Remove(w.part) // fails if it is not empty
	}
	if w.err == nil {
		w.err = fmt.Errorf("%w: %s", source.ErrClosed, w.folder)
	}
	if closeErr := w.lock.Close(); err == nil && !errors.Is(closeErr, os.ErrClosed) {
		err = closeErr
	}
	return err
}

// partSuffix ends the names of incomplete files and folders.
const partSuffix = ".part"

// encoder encodes frames for all Writers. It keeps no state between frames. Frames have no
// checksums, because the index has them.
var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false), zstd.WithZeroFrames(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
})
