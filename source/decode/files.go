package decode

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// files is the encoded form of pictures: the same samples, with the bytes of the file in the first field.
type files struct {
	*pictures // its info and its helpers are those of the decoded form, which may not exist
	info      source.Info
	same      bool      // samples of the inner source have this form
	buffers   sync.Pool // holds *[]byte, for samples of the inner source
}

// encodedForm returns the encoded form.
func (p *pictures) encodedForm() (*files, error) {
	fields := slices.Clone(p.fields)
	fields[0].Dims = []uint64{shm.VariableDim}
	schema, err := shm.NewSchema(fields, true)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", source.ErrInvalid, err)
	}
	inner := p.inner.Info()
	schema.SampleBytes = inner.Schema.SampleBytes // bytes of the largest sample; those of this form are not larger
	field := inner.Schema.Fields[p.image].Name
	how := p.o.forClients()
	f := &files{pictures: p, same: p.image == 0 && len(p.dropped) == 0}
	f.buffers.New = func() any { return new([]byte) }
	// Clients have a decoder of their own. So the one of the server does not matter.
	f.info = p.infoOf(schema, fmt.Sprint(version, inner.Fingerprint, field, "encoded", how),
		source.Note{Name: "decoded", Text: fmt.Sprintf("by clients: images of field %s, %s", field, how)},
		source.Note{Name: DecoderNote, Text: "clients"}, source.Note{Name: StoreNote, Text: "encoded"})
	f.info.Decode = how
	return f, nil
}

// source returns f with its blocks, if it has some.
func (f *files) source() source.Source {
	if blocks, ok := f.inner.(source.Blocks); ok {
		return fileBlocks{f, blocks}
	}
	return f
}

func (f *files) Info() source.Info { return f.info }

// Size returns the bytes of the sample in the inner source. If fields of it are left out, that is a bound.
func (f *files) Size(i int) (int, error) { return f.inner.Size(i) }

func (f *files) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if f.same {
		return f.inner.Read(ctx, i, dst)
	}
	n, err := f.inner.Size(i)
	if err != nil {
		return 0, err
	}
	if err := source.CheckRead(ctx, i, f.info.Samples, n, dst); err != nil {
		return 0, err
	}
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	sample := grow(buffer, n)
	if n, err = f.inner.Read(ctx, i, sample); err != nil {
		return 0, err
	}
	return f.form(i, sample[:n], dst)
}

// form makes a sample of this form from one of the inner source, which is as long at least.
func (f *files) form(i int, sample, dst []byte) (int, error) {
	parts, err := f.encoded.Split(sample)
	if err != nil {
		return 0, f.corrupt(i, err)
	}
	wanted, dims := []shm.Part{parts[f.image]}, make([][]uint64, 1+len(f.kept))
	dims[0] = []uint64{uint64(len(wanted[0].Data))}
	for _, k := range f.kept {
		wanted = append(wanted, parts[k])
	}
	spans, total, err := f.info.Schema.Begin(dst, dims)
	if err != nil {
		return 0, f.corrupt(i, err)
	}
	for k, span := range spans {
		copy(dst[span.Start:span.End], wanted[k].Data)
	}
	return total, nil
}

// forDecoder makes what a client decodes of a sample of the inner source (docs/spec/control.md, Files of other formats).
func (f *files) forDecoder(i int, sample []byte) ([]byte, error) {
	made := make([]byte, shm.DecodeBytes+len(sample))
	copy(made, f.info.Decode)
	if f.same {
		return append(made[:shm.DecodeBytes], sample...), nil
	}
	n, err := f.form(i, sample, made[shm.DecodeBytes:])
	return made[:shm.DecodeBytes+n], err
}

// fileBlocks is files for an inner source that has blocks.
type fileBlocks struct {
	*files
	source.Layout
}

func (f fileBlocks) ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error {
	if f.same {
		return f.inner.(source.Blocks).ReadBlock(ctx, b, each)
	}
	buffer := f.buffers.Get().(*[]byte)
	defer f.buffers.Put(buffer)
	return f.inner.(source.Blocks).ReadBlock(ctx, b, func(i int, sample []byte) error {
		dst := grow(buffer, len(sample))
		n, err := f.form(i, sample, dst)
		if err != nil {
			return err
		}
		return each(i, dst[:n])
	})
}
