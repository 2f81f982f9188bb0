package loader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"

	"go.uber.org/goleak"
)

// serve starts a server of a cache with a policy and slots for the samples of a dataset. It returns how to find it, its
// files, and how to end it.
func serve(t *testing.T, d *dataset, slots int, policy client.Policy) (o client.DialOptions, data string, stop func()) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	data = filepath.Join(t.TempDir(), "data")
	settings := source.Settings{"kind": "dir", "path": data}
	options := server.CacheOptions{Name: "pets", Dir: tmpfs.Folder(t), Parallel: 4, Source: settings, Policy: policy}
	if d.bytes > 0 {
		settings["kind"], settings["sample_bytes"] = "raw", d.bytes
		var all []byte
		for i := range d.samples {
			all = append(all, d.want(i)...)
		}
		write(t, data, all)
		if slots < d.samples {
			options.Size = 4<<20 + uint64(slots*d.bytes)
		}
	} else {
		options.Size = 16 << 20
		if slots < d.samples {
			options.Size = 6 << 20
		}
		for i := range d.samples {
			write(t, filepath.Join(data, fmt.Sprintf("%06d.bin", i)), d.want(i))
		}
	}
	sockets := t.TempDir()
	s, err := server.New(t.Context(),
		server.Options{Caches: []server.CacheOptions{options}, SocketsDir: sockets,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		expect.NoError(t, <-done)
		goleak.VerifyNone(t, leaks)
	}
	t.Cleanup(stop)
	return client.DialOptions{SocketsDir: sockets, Timeout: 200 * time.Millisecond}, data, stop
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)))
}

func dial(t *testing.T, o client.DialOptions) *client.Served {
	t.Helper()
	c := fatal.Value(client.Dial(t.Context(), "pets", o))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// Through a server batches are the same, each sample counts once, and the second epoch has only
// hits. Without the server hits still work.
func TestServed(t *testing.T) {
	for _, bytes := range []int{500, 0} {
		d := newDataset(120, bytes)
		o, _, stop := serve(t, d, 120, client.PolicyFirstCome)
		c := dial(t, o)
		shuffledOrder := shuffled(120)
		l := fatal.Value(loader.New(loader.FromServer(c), loader.Options{BatchSize: 9, Order: shuffledOrder, Ahead: 4}))(t)
		for e := range uint64(2) {
			if got := readEpoch(t, d, l); !slices.Equal(got, wanted(t, shuffledOrder, e, order.Shard{})) {
				t.Fatalf("epoch %d: %v", e, got)
			}
		}
		if s, err := c.Stats(); err != nil || s.Misses != 120 || s.Hits != 120 || l.Stats().Hits != 120 ||
			l.Stats().Misses != 120 {
			t.Errorf("%+v, %v; %+v", s, err, l.Stats())
		}
		stop()
		if got := readEpoch(t, d, l); len(got) != 120 || l.Stats().Hits != 240 {
			t.Errorf("without a server: %d samples, %+v", len(got), l.Stats())
		}
		expect.NoError(t, c.Close())
	}
}

// A sample that the server cannot read is an error with its index and the server's reason. Without
// a server it is ErrNoServer, and the loader continues when a server is there.
func TestServedFailures(t *testing.T) {
	d := newDataset(30, 0)
	o, data, stop := serve(t, d, 30, client.PolicyFirstCome)
	fatal.If(t, os.Remove(filepath.Join(data, "000013.bin")))
	c := dial(t, o)
	l := fatal.Value(loader.New(loader.FromServer(c), loader.Options{BatchSize: 5}))(t)
	n := 0
	var last error
	for b, err := range l.Batches(t.Context()) {
		if last = err; err == nil {
			n += b.Len()
		}
		b.Release()
	}
	var failed *client.FetchError
	if !errors.As(last, &failed) || failed.Failures[0].Index != 13 || n != 10 || l.State().Position != 10 {
		t.Error(last, n, l.State())
	}
	stop()
	fatal.If(t, l.SetEpoch(0))
	n = 0
	for b, err := range l.Batches(t.Context()) {
		if last = err; err == nil {
			n += b.Len()
		}
		b.Release()
	}
	if !errors.Is(last, client.ErrNoServer) || n < 10 {
		t.Error(last, n)
	}
	expect.NoError(t, c.Close())
}
