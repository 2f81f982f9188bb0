package source

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Rows are samples of one size, one after the other in a file. Kinds that read such files embed it.
// Rows owns the file.
type Rows struct {
	File   *File
	From   *Place // place of the file
	About  Info
	Offset int64 // offset of the first sample
}

// OpenRows opens the file of a path. read says what rows it has. Errors: ErrInvalid, and those of read and the system.
func (r Remote) OpenRows(ctx context.Context, at *string, read func(ctx context.Context, f *File) (Rows, error)) (Rows, error) {
	place, err := r.Place(at)
	if err != nil {
		return Rows{}, err
	}
	f, err := place.Open(ctx, *at)
	if err != nil {
		place.Close()
		return Rows{}, err
	}
	rows, err := read(ctx, f)
	if err != nil {
		f.Close()
		place.Close()
		return Rows{}, err
	}
	rows.File, rows.From, rows.About.Traffic, rows.About.Notes = f, place, place.Traffic(), place.Notes()
	return rows, nil
}

// Info is part of Source.
func (r *Rows) Info() Info { return r.About }

// Size is part of Source.
func (r *Rows) Size(i int) (int, error) {
	if !r.Has(i) {
		return 0, BadIndex(i, r.About.Samples)
	}
	return r.bytes(), r.File.Alive()
}

// Read is part of Source.
func (r *Rows) Read(ctx context.Context, i int, dst []byte) (int, error) {
	n := r.bytes()
	if err := CheckRead(ctx, i, r.About.Samples, n, dst); err != nil {
		return 0, err
	}
	return n, r.File.ReadAt(ctx, dst[:n], r.At(i))
}

// Close is part of Source.
func (r *Rows) Close() error {
	defer r.From.Close()
	return r.File.Close()
}

// Has says whether sample i exists.
func (r *Rows) Has(i int) bool { return i >= 0 && i < r.About.Samples }

// At returns the offset of sample i in the file.
func (r *Rows) At(i int) int64 { return r.Offset + int64(i)*int64(r.bytes()) }

func (r *Rows) bytes() int { return int(r.About.Schema.SampleBytes) }

func (r *Rows) joined() *Rows { return r }

// rowBlocks is a source of Rows whose neighbours are read together.
type rowBlocks struct {
	Source
	rows *Rows
	each int // samples of a block
}

var rowBuffers = sync.Pool{New: func() any { return new([]byte) }}

// ByBlock makes a source of rows in an object one of blocks of up to MostBlock bytes, so that a request reads many
// samples that lie side by side. It is false for other sources; files on a local disk gain nothing.
func ByBlock(s Source) (Blocks, bool) {
	of, ok := s.(interface{ joined() *Rows })
	if !ok || of.joined().File.objects == nil {
		return nil, false
	}
	r := of.joined()
	return &rowBlocks{s, r, max(1, MostBlock/r.bytes())}, true
}

// Blocks is part of Blocks.
func (r *rowBlocks) Blocks() int { return (r.rows.About.Samples + r.each - 1) / r.each }

// BlockOf is part of Blocks.
func (r *rowBlocks) BlockOf(i int) int {
	if !r.rows.Has(i) {
		return -1
	}
	return i / r.each
}

// Block is part of Blocks.
func (r *rowBlocks) Block(b int) (first, n int) {
	if b < 0 || b >= r.Blocks() {
		return 0, 0
	}
	first = b * r.each
	return first, min(r.each, r.rows.About.Samples-first)
}

// ReadBlock is part of Blocks.
func (r *rowBlocks) ReadBlock(ctx context.Context, b int, each func(i int, sample []byte) error) error {
	first, n := r.Block(b)
	if n == 0 {
		return fmt.Errorf("%w: block %d is not in 0..%d", ErrIndex, b, r.Blocks()-1)
	}
	bytes := r.rows.bytes()
	buffer := rowBuffers.Get().(*[]byte)
	defer rowBuffers.Put(buffer)
	*buffer = slices.Grow((*buffer)[:0], n*bytes)
	all := (*buffer)[:n*bytes]
	if err := r.rows.File.ReadAt(ctx, all, r.rows.At(first)); err != nil {
		return err
	}
	for k := range n {
		if err := each(first+k, all[k*bytes:(k+1)*bytes:(k+1)*bytes]); err != nil {
			return err
		}
	}
	return nil
}
