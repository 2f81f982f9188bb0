package decode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// version is part of the fingerprint. Raise it when the same file gives other pixels.
const version = 1

// Names of notes.
const (
	DecoderNote = "decoder" // what decodes: the helper, or "clients"
	StoreNote   = "store"   // what a cache keeps: "decoded" or "encoded"
	ReasonNote  = "because" // why the store auto chose that one
)

// Notes are those that a server logs.
var Notes = []string{DecoderNote, StoreNote, ReasonNote}

// pictures is a source of decoded images.
type pictures struct {
	inner   source.Source
	o       options
	encoded shm.Schema // schema of the inner source
	image   int        // the field that has the file
	kept    []int      // numbers of the other fields that are kept
	dropped []string   // names of those that are not
	fields  []shm.Field
	info    source.Info
	closed  atomic.Bool
	pool    sync.Pool           // holds *buffers
	read    *semaphore.Weighted // bytes of encoded files
	large   *semaphore.Weighted // bytes for pictures that take more than their process has
	helpers *helpers            // nil in the encoded form
	files   *files              // the encoded form
}

// buffers are those of one read. A pool keeps them for other reads.
type buffers struct {
	encoded []byte // the file
	decoded []byte // a sample, when whole blocks are read
}

// mostKept is the most bytes that the pool keeps for the next read. They count for no memory limit,
// so they must be few. Reads of larger pictures allocate again.
const mostKept = 4 << 20

// grow returns n bytes of a buffer, with any content.
func grow(buffer *[]byte, n int) []byte {
	if cap(*buffer) < n {
		*buffer = make([]byte, n)
	}
	*buffer = (*buffer)[:n]
	return *buffer
}

// New returns a source of the decoded images of s. Its Close closes s. Settings are the keys resize
// ([height, width], required), layout (chw, the default, or hwc), field (the field of s with the
// image; default: the one with a usual name, or the only possible one), fit (stretch, the default,
// crop or pad), max_pixels, memory, bad_samples (error, the default, or skip: a damaged file is
// a source.BadError) and store (decoded, the default; encoded: samples have the files, and Info.Decode says
// how clients decode them; auto: a *Both). For other settings, and for a source without a field of files,
// it returns ErrInvalid and leaves s open.
//
// The helper program decodes (docs/spec/decode.md). The store encoded needs none. For other stores, New returns an
// ErrInvalid that says how to get the program, if there is none, and the error of a program that does not work.
//
// Reads return ErrCorrupt for a file that is too large or damaged, and a KindError for one that is no JPEG, PNG or WebP. A
// Read with source.WantFile gives the file, as a client decodes it. If s is a source.Blocks, the result is one too.
func New(s source.Source, settings map[string]any) (source.Source, error) {
	o, err := parse(settings)
	if err != nil {
		return nil, err
	}
	inner := s.Info()
	p := &pictures{inner: s, o: o, encoded: inner.Schema, read: semaphore.NewWeighted(o.forFiles()),
		large: semaphore.NewWeighted(o.forLarge())}
	p.pool.New = func() any { return new(buffers) }
	if p.image, err = imageField(inner.Schema, o.Field); err != nil {
		return nil, err
	}
	h, w := uint64(o.Resize[0]), uint64(o.Resize[1])
	p.fields = []shm.Field{{Name: "image", DType: shm.Uint8, Dims: []uint64{3, h, w}}}
	if o.Layout == "hwc" {
		p.fields[0].Dims = []uint64{h, w, 3}
	}
	for k, f := range inner.Schema.Fields {
		switch {
		case k == p.image:
		case slices.Contains(f.Dims, shm.VariableDim) || f.Name == "image":
			p.dropped = append(p.dropped, f.Name)
		default:
			p.kept = append(p.kept, k)
			p.fields = append(p.fields, shm.Field{Name: f.Name, DType: f.DType, Dims: f.Dims})
		}
	}
	p.files, err = p.encodedForm()
	switch {
	case err != nil:
		return nil, err
	case o.Store == "encoded":
		return p.files.source(), nil
	}
	decoded, err := p.decodedForm()
	if err != nil || o.Store == "decoded" {
		return decoded, err
	}
	return &Both{decoded, p}, nil
}

// decodedForm completes p, which may be used before for no read. It starts the helper.
func (p *pictures) decodedForm() (source.Source, error) {
	inner, o := p.inner.Info(), &p.o
	schema, err := shm.NewSchema(p.fields, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", source.ErrInvalid, err)
	}
	field := inner.Schema.Fields[p.image].Name
	pixels, how := fmt.Sprint(version, inner.Fingerprint, o.Resize, o.Layout,
		field), fmt.Sprintf("images of field %s, to %d x %d, %s", field, o.Resize[0], o.Resize[1], o.Layout)
	switch o.Fit {
	case "crop":
		pixels, how = pixels+" crop 2", how+", cropped"
	case "pad":
		pixels, how = pixels+" pad", how+", padded"
	}
	path, err := Helper()
	switch {
	case err != nil:
		return nil, err
	case path == "":
		return nil, noHelper()
	}
	if p.helpers, err = openHelpers(path); err != nil {
		return nil, err
	}
	pixels = fmt.Sprint(pixels, " frames ", frames, " ", p.helpers.pixels)
	decoder := fmt.Sprintf("%s (%s)", path, p.helpers.decoder)
	p.info = p.infoOf(schema, pixels, source.Note{Name: "decoded", Text: how},
		source.Note{Name: DecoderNote, Text: decoder}, source.Note{Name: StoreNote, Text: "decoded"})
	p.info.Formats = true
	if blocks, ok := p.inner.(source.Blocks); ok {
		return pictureBlocks{p, blocks}, nil
	}
	return p, nil
}

// infoOf is the Info of one of both forms. what names it with all that changes its samples.
func (p *pictures) infoOf(schema shm.Schema, what string, notes ...source.Note) source.Info {
	inner := p.inner.Info()
	if len(p.dropped) > 0 {
		notes = append(notes,
			source.Note{Name: "left out", Text: strings.Join(p.dropped, ", ") + ": their sizes differ between samples"})
	}
	return source.Info{Kind: inner.Kind, Samples: inner.Samples, Schema: schema,
		Traffic: inner.Traffic, State: inner.State, Notes: append(slices.Clone(inner.Notes), notes...), Fingerprint: source.Fingerprint("decode", what)}
}

// usual holds the usual names of fields with image files.
var usual = []string{"image", "img", "data", "jpg", "jpeg", "png", "webp", "gif"}

// imageField returns the number of the field with image files. It returns ErrInvalid when there is
// none, or when several are possible.
func imageField(s shm.Schema, name string) (int, error) {
	var can, named []int
	var names []string
	for k, f := range s.Fields {
		names = append(names, f.Name)
		if s.Variable && (f.DType == shm.Bytes || f.DType == shm.Uint8) && len(f.Dims) == 1 && f.Dims[0] == shm.VariableDim {
			if can = append(can, k); slices.Contains(usual, strings.ToLower(f.Name)) {
				named = append(named, k)
			}
			if f.Name == name {
				return k, nil
			}
		}
	}
	all := strings.Join(names, ", ")
	switch {
	case name != "":
		return 0, fmt.Errorf("%w: no field %q with files to decode; the fields are: %s", source.ErrInvalid, name, all)
	case len(can) == 0:
		return 0, fmt.Errorf("%w: nothing to decode: this source has no field whose bytes vary in number, like files; "+
			"leave decode out",
			source.ErrInvalid)
	case len(named) == 1:
		return named[0], nil
	case len(can) == 1:
		return can[0], nil
	}
	return 0, fmt.Errorf("%w: several fields may have the images; name one with decode: {field: NAME}: %s",
		source.ErrInvalid, all)
}

func (p *pictures) Info() source.Info { return p.info }

func (p *pictures) Where(i int) string { return p.inner.Where(i) }

func (p *pictures) bytes() int { return int(p.info.Schema.SampleBytes) }

func (p *pictures) Size(i int) (int, error) {
	switch {
	case i < 0 || i >= p.info.Samples:
		return 0, source.BadIndex(i, p.info.Samples)
	case p.closed.Load():
		return 0, source.ErrClosed
	}
	return p.bytes(), nil
}

func (p *pictures) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if err := source.CheckRead(ctx, i, p.info.Samples, p.bytes(), dst); err != nil {
		return 0, err
	}
	n, err := p.inner.Size(i)
	if err != nil {
		return 0, err
	}
	if n > mostEncoded {
		return 0, p.corrupt(i, fmt.Errorf("%d bytes are no image: more than %d", n, mostEncoded))
	}
	if int64(n) > p.o.forFiles() {
		return 0, p.corrupt(i, &memoryError{
			fmt.Errorf("the file has %s, more than the %s that memory, %s, has for files; raise it (decode: {memory: ...})",
				size.Text(uint64(n)),
				size.Text(uint64(p.o.forFiles())), size.Text(uint64(p.o.Memory)))})
	}
	if p.read.Acquire(ctx, int64(n)) != nil {
		return 0, context.Cause(ctx)
	}
	defer p.read.Release(int64(n))
	b := p.pool.Get().(*buffers)
	defer p.put(b)
	sample := grow(&b.encoded, n)
	if n, err = p.inner.Read(ctx, i, sample); err != nil {
		return 0, err
	}
	if file := source.WantedFile(ctx); file != nil {
		*file, err = p.files.forDecoder(i, sample[:n])
		return 0, err
	}
	return p.bytes(), p.decode(ctx, i, sample[:n], dst[:p.bytes()])
}

func (p *pictures) put(b *buffers) {
	if cap(b.encoded)+cap(b.decoded) <= mostKept {
		p.pool.Put(b)
	}
}

// decode makes a decoded sample from a sample of the inner source.
func (p *pictures) decode(ctx context.Context, i int, sample, dst []byte) error {
	file := sample
	if len(p.encoded.Fields) > 1 {
		parts, err := p.encoded.Split(sample)
		if err != nil {
			return p.corrupt(i, err)
		}
		file = parts[p.image].Data
		end := p.info.Schema.Fields[0].Bytes
		for k, from := range p.kept {
			to := p.info.Schema.Fields[k+1]
			clear(dst[end:to.Offset])
			copy(dst[to.Offset:to.Offset+to.Bytes], parts[from].Data)
			end = to.Offset + to.Bytes
		}
	}
	if kind, ok := ctx.Value(wantKind{}).(*string); ok {
		*kind = kindOf(file)
	}
	err := p.picture(ctx, file, dst[:p.info.Schema.Fields[0].Bytes])
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if lost := new(lostError); errors.As(err, &lost) || errors.Is(err, source.ErrClosed) {
		return fmt.Errorf("%s was not decoded: %w", p.Where(i), err)
	}
	if kind := new(kindError); errors.As(err, &kind) {
		reason := kind.Error()
		return &source.KindError{Where: p.Where(i), Reason: reason, Unknown: strings.HasPrefix(reason, "not "),
			MayLeaveOut: p.o.BadSamples == "skip"}
	}
	return p.corrupt(i, err)
}

// picture makes the pixels of dst from a file. A process may take its part of the memory. A picture for which that is
// too little gets four times as much each time it is tried again, when so much is free. Decoders ask for their memory
// before they decode, so a try in vain costs little.
func (p *pictures) picture(ctx context.Context, file, dst []byte) error {
	r := p.o.request()
	most, all := p.o.forProcess(), p.o.forLarge()
	err := p.helpers.picture(ctx, r, file, most, dst)
	for errors.Is(err, errShortMemory) && most < all {
		most = min(4*most, all)
		if p.large.Acquire(ctx, most) != nil {
			return context.Cause(ctx)
		}
		err = p.helpers.picture(ctx, r, file, most, dst)
		p.large.Release(most)
	}
	if errors.Is(err, errShortMemory) {
		return &memoryError{fmt.Errorf("to decode it takes more than %s, the half of memory, %s, that one picture may take; "+
			"raise it (decode: {memory: ...})", size.Text(uint64(all)), size.Text(uint64(p.o.Memory)))}
	}
	return err
}

// memoryError: the key memory is too small for a picture, which may be good.
type memoryError struct{ error }

func (p *pictures) corrupt(i int, err error) error {
	if small := new(memoryError); p.o.BadSamples == "skip" && !errors.As(err, &small) {
		return &source.BadError{Where: p.Where(i), Reason: err.Error()}
	}
	return fmt.Errorf("%w: %s does not decode: %w", source.ErrDecode, p.Where(i), err)
}

func (p *pictures) Close() error {
	defer p.closeHelpers() // reads have ended then
	return p.inner.Close()
}

func (p *pictures) closeHelpers() {
	if !p.closed.Swap(true) && p.helpers != nil {
		p.helpers.close()
	}
}

// pictureBlocks is pictures for an inner source that has blocks.
type pictureBlocks struct {
	*pictures
	source.Layout
}

// ReadBlock decodes the samples one after the other in the caller's goroutine.
func (p pictureBlocks) ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error {
	buffer := p.pool.Get().(*buffers)
	defer p.put(buffer)
	return p.inner.(source.Blocks).ReadBlock(ctx, b, func(i int, sample []byte) error {
		dst := grow(&buffer.decoded, p.bytes())
		if err := p.decode(ctx, i, sample, dst); err != nil {
			return err
		}
		return each(i, dst)
	})
}
