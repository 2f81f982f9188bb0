package block

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

const (
	datasetName = "dataset.json"
	formatName  = "stocached-block"
	// maxDatasetBytes bounds dataset.json. A file takes 150 bytes in it, so the bound allows 100 TB
	// in files of the default size.
	maxDatasetBytes = 64 << 20
)

// Compression is how samples are compressed.
type Compression string

// The compressions.
const (
	None Compression = "none"
	Zstd Compression = "zstd" // each sample by itself, if that makes it smaller
)

// Origin says what a dataset was made from. The zero value means unknown.
type Origin struct {
	Kind        string `json:"kind"`
	Fingerprint string `json:"fingerprint"`
}

// Description is what a Writer knows about a dataset before its first sample.
type Description struct {
	Schema      shm.Schema // SampleBytes: of the largest sample if sizes differ
	Compression Compression
	BlockBytes  int
	FileBytes   int64
	Source      Origin
	Notes       []source.Note
}

// document is the content of dataset.json.
type document struct {
	Format      string          `json:"format"`
	Version     int             `json:"version"`
	ID          string          `json:"id"`
	Description json.RawMessage `json:"description"`
	Samples     int             `json:"samples"`
	SampleBytes uint64          `json:"sample_bytes"`
	Notes       []noteRecord    `json:"notes"`
	Files       []fileRecord    `json:"files"`
	CRC         string          `json:"crc32c"` // checksum of the text before it; the last key
}

// fileRecord is a block file in dataset.json.
type fileRecord struct {
	Name    string `json:"name"`
	Bytes   int64  `json:"bytes"`
	Samples int    `json:"samples"`
	Blocks  int    `json:"blocks"`
	CRC     string `json:"footer_crc32c"`
}

// description is the JSON of a Description.
type description struct {
	Variable    bool          `json:"variable"`
	Fields      []fieldRecord `json:"fields"`
	Compression Compression   `json:"compression"`
	BlockBytes  int           `json:"block_bytes"`
	FileBytes   int64         `json:"file_bytes"`
	Source      Origin        `json:"source"`
}

type fieldRecord struct {
	Name  string    `json:"name"`
	DType string    `json:"dtype"`
	Dims  []*uint64 `json:"dims"` // nil: the dimension differs between samples
}

type noteRecord struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// fileName is the name of the k-th block file.
func fileName(k int) string { return fmt.Sprintf("%05d.stocblk", k) }

// encode returns the JSON of a description, and the id that follows from it.
func (d *Description) encode() (json.RawMessage, identity, error) {
	j := description{Variable: d.Schema.Variable, Fields: []fieldRecord{}, Compression: d.Compression,
		BlockBytes: d.BlockBytes, FileBytes: d.FileBytes, Source: d.Source}
	for _, f := range d.Schema.Fields {
		r := fieldRecord{Name: f.Name, DType: f.DType.String(), Dims: make([]*uint64, len(f.Dims))}
		for k := range f.Dims {
			if f.Dims[k] != shm.VariableDim {
				r.Dims[k] = &f.Dims[k]
			}
		}
		j.Fields = append(j.Fields, r)
	}
	text, err := json.Marshal(j)
	return text, identify(text), err
}

// identify makes an id from the JSON of a description without whitespace.
func identify(compact []byte) identity {
	sum := sha256.Sum256(compact)
	return identity(sum[:])
}

// decodeDescription is the inverse of encode. It checks the description.
func decodeDescription(text []byte) (Description, identity, error) {
	var j description
	var compact bytes.Buffer
	if err := errors.Join(strictly(text, &j), json.Compact(&compact, text)); err != nil {
		return Description{}, identity{}, damaged("its description: %v", err)
	}
	d := Description{Compression: j.Compression, BlockBytes: j.BlockBytes, FileBytes: j.FileBytes, Source: j.Source}
	var fields []shm.Field
	for _, r := range j.Fields {
		dtype, err := shm.ParseDType(r.DType)
		if err != nil {
			return d, identity{}, damaged("its field %q: %v", r.Name, err)
		}
		f := shm.Field{Name: r.Name, DType: dtype, Dims: make([]uint64, len(r.Dims))}
		for k, n := range r.Dims {
			switch {
			case n == nil:
				f.Dims[k] = shm.VariableDim
			case *n == shm.VariableDim:
				return d, identity{}, damaged("its field %q has a dimension of %d", r.Name, *n)
			default:
				f.Dims[k] = *n
			}
		}
		fields = append(fields, f)
	}
	schema, err := shm.NewSchema(fields, j.Variable)
	if err != nil {
		return d, identity{}, damaged("its fields: %v", err)
	}
	d.Schema = schema
	if err := d.check(); err != nil {
		return d, identity{}, damaged("its description: %v", err)
	}
	return d, identify(compact.Bytes()), nil
}

// check says what is wrong with a description.
func (d *Description) check() error {
	switch {
	case d.Compression != None && d.Compression != Zstd:
		return fmt.Errorf("compression %q is neither none nor zstd", d.Compression)
	case d.BlockBytes < align || d.BlockBytes > maxBlockBytes || d.BlockBytes%align != 0:
		return fmt.Errorf("blocks of %d bytes; want a multiple of %d, at most %d", d.BlockBytes,
			align, maxBlockBytes)
	case d.FileBytes < align || d.FileBytes > maxFileBytes:
		return fmt.Errorf("files of %d bytes; want %d to %d", d.FileBytes, align, int64(maxFileBytes))
	}
	return nil
}

// readDocument reads dataset.json in a folder, and checks all but what depends on the block files.
// Errors: ErrCorrupt, ErrInvalid for another format or version, errors of the system.
func readDocument(ctx context.Context, place *source.Place, folder string) (*document, Description, identity, error) {
	path := folder + "/" + datasetName
	f, err := place.Open(ctx, path)
	if err != nil {
		return nil, Description{}, identity{}, err
	}
	defer f.Close()
	if f.Stamp.Bytes > maxDatasetBytes {
		return nil, Description{}, identity{}, damaged("%s has %d bytes, more than %d", path, f.Stamp.Bytes, maxDatasetBytes)
	}
	text := make([]byte, f.Stamp.Bytes)
	if err := f.ReadAt(ctx, text, 0); err != nil {
		return nil, Description{}, identity{}, err
	}
	doc, d, id, err := decodeDocument(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return doc, d, id, err
}

func decodeDocument(text []byte) (*document, Description, identity, error) {
	var doc document
	fail := func(err error) (*document, Description, identity, error) { return nil, Description{}, identity{}, err }
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return fail(damaged("it is no JSON of the expected form: %v", err))
	}
	if head.Format != formatName {
		return fail(fmt.Errorf("%w: format %q, want %q", source.ErrInvalid, head.Format, formatName))
	}
	if head.Version != version {
		return fail(fmt.Errorf("%w: it has version %d of the block format, this program knows %d",
			source.ErrInvalid, head.Version, version))
	}
	if err := checkSeal(text); err != nil {
		return fail(err)
	}
	if err := strictly(text, &doc); err != nil {
		return fail(damaged("%v", err))
	}
	d, id, err := decodeDescription(doc.Description)
	if err != nil {
		return fail(err)
	}
	if said := hex.EncodeToString(id[:]); said != doc.ID {
		return fail(damaged("its id is %q, and its description gives %q", doc.ID, said))
	}
	for _, n := range doc.Notes {
		d.Notes = append(d.Notes, source.Note{Name: n.Name, Text: n.Text})
	}
	if d.Schema.Variable {
		if doc.SampleBytes > shm.MaxSampleBytes {
			return fail(damaged("sample_bytes is %d, at most %d can be", doc.SampleBytes, uint64(shm.MaxSampleBytes)))
		}
		d.Schema.SampleBytes = doc.SampleBytes
	} else if doc.SampleBytes != d.Schema.SampleBytes {
		return fail(damaged("sample_bytes is %d, and its fields take %d", doc.SampleBytes, d.Schema.SampleBytes))
	}
	samples := 0
	for k, f := range doc.Files {
		if f.Name != fileName(k) || f.Samples < 1 || f.Blocks < 1 || f.Bytes < trailerBytes {
			return fail(damaged("its file %d is %+v; want the name %s and at least one sample and one block", k,
				f, fileName(k)))
		}
		if samples += f.Samples; samples < 1 || samples > doc.Samples {
			break
		}
	}
	if samples != doc.Samples || samples < 1 {
		return fail(damaged("it has %d samples, and its files %d or more", doc.Samples, samples))
	}
	return &doc, d, id, nil
}

// sealed returns the text of dataset.json with its checksum.
func (doc *document) sealed() ([]byte, error) {
	doc.CRC = fmt.Sprintf("%08x", 0)
	compact, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	doc.CRC = fmt.Sprintf("%08x", checksum(compact[:len(compact)-len(seal(0))]))
	text, err := json.MarshalIndent(doc, "", "  ")
	return append(text, '\n'), err
}

// seal returns the end of dataset.json without whitespace.
func seal(crc uint32) string { return fmt.Sprintf(`,"crc32c":"%08x"}`, crc) }

// checkSeal returns ErrCorrupt unless the text of dataset.json has its checksum.
func checkSeal(text []byte) error {
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return damaged("it is no JSON: %v", err)
	}
	b := compact.Bytes()
	rest := b[:max(0, len(b)-len(seal(0)))]
	if want := seal(checksum(rest)); string(b[len(rest):]) != want {
		return damaged("it was changed after it was written: it ends in %s, and its text gives %s", b[len(rest):], want)
	}
	return nil
}

// strictly decodes one JSON value. Unknown keys, and text after the value, are errors.
func strictly(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("text follows the JSON value")
	}
	return nil
}
