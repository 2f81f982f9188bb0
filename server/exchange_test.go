package server

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	folders "github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"
)

// closing is a source that counts its closes.
type closing struct {
	source.Source
	closed atomic.Int32
}

func (c *closing) Close() error {
	c.closed.Add(1)
	return c.Source.Close()
}

// Ensure that a cache that the end of the server has shut takes no other source, which would stay
// open.
func TestExchangeWhileTheServerEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	fatal.If(t, os.WriteFile(path, make([]byte, 1000), 0o600))
	dir := folders.Folder(t)
	var opened []*closing
	o := Options{SocketsDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Caches: []CacheOptions{{Name: "pets", Dir: dir,
			Source: source.Settings{"kind": "raw", "path": path, "sample_bytes": 10}}}}
	kind := o.opener()
	o.open = func(ctx context.Context, settings source.Settings) (source.Source, error) {
		s, err := kind(ctx, settings)
		opened = append(opened, &closing{Source: s})
		return opened[len(opened)-1], err
	}
	s, err := New(context.Background(), o)
	fatal.If(t, err)
	h := s.cache("pets")
	p, err := served.Prepare(context.Background(), o.Caches[0], o.open, wrap.NewFailures(slog.New(slog.DiscardHandler)))
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	expect.NoError(t, s.Serve(ctx))
	s.changes.Lock()
	err = s.exchange(h, p, nil)
	s.changes.Unlock()
	expect.Error(t, err, ErrEnding)
	served.CloseAll(s.log, p) // as the caller of exchange does
	for k, c := range opened {
		expect.Equal(t, c.closed.Load(), 1, "times that source %d was closed", k)
	}
	expect.Equal(t, len(opened), 2, "sources")
}
