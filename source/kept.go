package source

import "context"

// keptElsewhere is the key of a context of a read whose sample another node keeps.
type keptElsewhere struct{}

// KeptElsewhere returns the context of a read whose sample another node keeps. So what lies between this source and the
// cache does not keep it on this machine.
func KeptElsewhere(ctx context.Context) context.Context {
	return context.WithValue(ctx, keptElsewhere{}, true)
}

// IsKeptElsewhere says whether another node keeps the sample of a read.
func IsKeptElsewhere(ctx context.Context) bool { return ctx.Value(keptElsewhere{}) != nil }

// tiersOnly and wantedFile are keys of contexts of reads.
type (
	tiersOnly  struct{}
	wantedFile struct{}
)

// TiersOnly returns the context of a read of a sample that the source does not give. What lies between gives it, or ErrLoad.
func TiersOnly(ctx context.Context) context.Context { return context.WithValue(ctx, tiersOnly{}, true) }

// IsTiersOnly says whether the source does not give the sample of a read.
func IsTiersOnly(ctx context.Context) bool { return ctx.Value(tiersOnly{}) != nil }

// WantFile returns the context of a read that a source of pictures answers with the file: it writes it to file, and returns
// 0 bytes. Nothing keeps it.
func WantFile(ctx context.Context, file *[]byte) context.Context {
	return context.WithValue(ctx, wantedFile{}, file)
}

// WantedFile returns where a read puts the file; nil: it makes a picture.
func WantedFile(ctx context.Context) *[]byte {
	file, _ := ctx.Value(wantedFile{}).(*[]byte)
	return file
}
