package source_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
)

// randomFile opens a file of random bytes.
func randomFile(t testing.TB, size int) (*source.File, []byte) {
	t.Helper()
	data := make([]byte, size)
	random := rand.New(rand.NewPCG(1, 2))
	for k := range data {
		data[k] = byte(random.Uint32())
	}
	path := filepath.Join(t.TempDir(), "data")
	fatal.If(t, os.WriteFile(path, data, 0o600))
	f := fatal.Value(source.OpenFile(path))(t)
	t.Cleanup(func() { f.Close() })
	return f, data
}

// Ensure that extents at any distance, and empty ones, get their bytes, and that no other bytes are
// written.
func TestReadExtents(t *testing.T) {
	f, data := randomFile(t, 1<<20)
	for round := range 300 {
		var extents []source.Extent
		var buffers [][]byte
		for at := rand.IntN(2000); at < len(data) && len(extents) < 100; {
			n := min(rand.IntN(1<<rand.IntN(14)), len(data)-at)
			buffer := bytes.Repeat([]byte{0xA5}, n+2)
			buffers = append(buffers, buffer)
			extents = append(extents, source.Extent{Offset: int64(at), Dst: buffer[1 : n+1]})
			at += n + rand.IntN(3)*rand.IntN(1<<rand.IntN(15))
		}
		fatal.If(t, f.ReadExtents(context.Background(), extents))
		for k, e := range extents {
			want := append(append([]byte{0xA5}, data[e.Offset:e.Offset+int64(len(e.Dst))]...), 0xA5)
			if !bytes.Equal(buffers[k], want) {
				t.Fatalf("round %d, extent %d of %d: %d bytes at %d differ", round, k, len(extents), len(e.Dst), e.Offset)
			}
		}
	}
}

func TestReadExtentsFails(t *testing.T) {
	f, data := randomFile(t, 10_000)
	three := func(last int64) []source.Extent {
		return []source.Extent{{Offset: 0, Dst: make([]byte, 10)}, {Offset: 100, Dst: make([]byte, 10)},
			{Offset: last, Dst: make([]byte, 10)}}
	}
	for _, last := range []int64{9_995, 10_000, 20_000} { // after the end, near and far
		if err := f.ReadExtents(context.Background(), three(last)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d: %v", last, err)
		}
	}
	near := []source.Extent{{Offset: 9_900, Dst: make([]byte, 50)}, {Offset: 9_960, Dst: make([]byte, 50)}}
	if err := f.ReadExtents(context.Background(), near); !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Equal(near[0].Dst, data[9_900:9_950]) {
		t.Errorf("%v", err)
	}
	expect.NoError(t, f.ReadExtents(context.Background(), nil))
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	expect.Error(t, f.ReadExtents(ctx, three(200)), cause)
	fatal.If(t, os.Chtimes(f.Path, time.Time{}, time.Now().Add(time.Hour)))
	expect.Error(t, f.ReadExtents(context.Background(), three(200)), source.ErrChanged)
	f.Close()
	expect.Error(t, f.ReadExtents(context.Background(), three(200)), source.ErrClosed)
}
