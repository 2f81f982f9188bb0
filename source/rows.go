package source

import "context"

// Rows are samples of one size, one after the other in a file. Kinds that read such files embed it.
// Rows owns the file.
type Rows struct {
	File   *File
	From   *Place // of the file
	About  Info
	Offset int64 // of the first sample
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
