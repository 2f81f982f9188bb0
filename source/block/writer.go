package block

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/klauspost/compress/zstd"

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
	Schema      shm.Schema    // schema of the samples; its SampleBytes is ignored if sizes differ
	Compression Compression   // "": none
	BlockBytes  int           // a multiple of 4096, at most 1 GiB; 0: DefaultBlockBytes
	FileBytes   int64         // 0: DefaultFileBytes
	Source      Origin        // origin of the samples. Without a fingerprint a Writer does not continue an interrupted one
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
	out         *folder
	description Description
	text        json.RawMessage // text of the description
	id          identity
	files       []fileRecord
	next        int
	largest     uint64

	// The current block file.
	file    *partFile // nil: not begun
	spans   []span
	entries []entry
	end     int64 // end of the blocks that are written to it

	// The current block: the bytes of its samples, and its first sample in entries.
	block []byte
	first int

	err error // error of the first failed write; the Writer writes nothing after it
}

// Create begins to write the dataset in a folder, or continues an interrupted Writer of the same
// source: Next says where. The parent folder must exist. Errors: ErrWhole, ErrInTheWay, ErrBusy,
// ErrInvalid for invalid options, the cause of ctx, errors of the system.
func Create(ctx context.Context, folder string, o Options) (*Writer, error) {
	w, err := newWriter(folder, o)
	if err != nil {
		return nil, err
	}
	if err := w.out.begin(ctx); err != nil {
		return nil, errors.Join(err, w.out.release())
	}
	if err := w.goOn(ctx, o); err != nil {
		return nil, errors.Join(err, w.out.release())
	}
	fault.At("pack.begin")
	return w, nil
}

func newWriter(path string, o Options) (*Writer, error) {
	path, err := filepath.Abs(path)
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
	w := &Writer{description: d}
	w.out = &folder{path: path, part: path + partSuffix, check: w.check}
	w.text, w.id, err = d.encode()
	return w, err
}

// check returns ErrWhole if a folder has the same dataset, complete, ErrInTheWay if it has another one, and
// nil if it has none that can be read.
func (w *Writer) check(ctx context.Context, folder string) error {
	_, _, id, err := readDocument(ctx, &source.Place{}, folder)
	switch {
	case err == nil && id == w.id && w.description.Source.Fingerprint != "":
		return fmt.Errorf("%w: %s", ErrWhole, folder)
	case err == nil:
		return fmt.Errorf("%w: %s is a dataset in block files made from other data or otherwise; "+
			"remove it, or write elsewhere",
			ErrInTheWay, folder)
	}
	return nil
}

// goOn keeps the complete files of an interrupted writer and removes its other files.
func (w *Writer) goOn(ctx context.Context, o Options) error {
	left, err := w.out.left()
	if err != nil {
		return err
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
	for _, name := range left {
		if !keep[name] {
			if err := w.out.remove(name); err != nil {
				return err
			}
		}
	}
	return w.out.sync()
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
	l := limitsOf(&w.description.Schema, w.description.Compression)
	if w.description.Schema.Variable {
		l.most = shm.MaxSampleBytes
	}
	f, largest, err := openFile(ctx, &source.Place{}, w.out.part+"/"+fileName(k), l)
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
			ErrInTheWay, w.out.part)
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
func (w *Writer) Folder() string {
	return w.out.part
}

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
		f, err := w.out.create(fileName(len(w.files)))
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
	err := w.file.commit()
	w.file = nil
	if err != nil {
		return err
	}
	fault.At("pack.file")
	w.files = append(w.files, fileRecord{fileName(len(w.files)), w.end + int64(len(footer)), t.samples, t.blocks,
		fmt.Sprintf("%08x", t.crc)})
	w.spans, w.entries, w.first, w.end = w.spans[:0], w.entries[:0], 0, 0
	return nil
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
	w.err = fmt.Errorf("%w: %s", source.ErrClosed, w.out.path)
	return w.out.release()
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
	if err := w.out.finish(); err != nil {
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
		if !n.Advice { // it is about the files that are packed
			doc.Notes = append(doc.Notes, noteRecord{n.Name, n.Text})
		}
	}
	text, err := doc.sealed()
	if err != nil {
		return err
	}
	f, err := w.out.create(datasetName)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, f.abort())
	}
	fault.At("pack.described")
	if err := f.commit(); err != nil {
		return err
	}
	fault.At("pack.dataset")
	return nil
}

// Close ends the Writer. The complete files stay for the next Writer. It does nothing after Finish.
func (w *Writer) Close() error {
	var err error
	if w.file != nil {
		err = w.file.abort()
		w.file = nil
	}
	if w.err == nil {
		w.err = fmt.Errorf("%w: %s", source.ErrClosed, w.out.path)
	}
	return errors.Join(err, w.out.release())
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
