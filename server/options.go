package server

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
)

// Options of a server.
type Options struct {
	Caches     []CacheOptions
	SocketsDir string       // "": control.SocketsDir()
	Log        *slog.Logger // nil: slog.Default()
	// MetricsListen is host:port for metrics on TCP, without a host on the loopback. "": only on the admin socket.
	MetricsListen string

	open openFunc // nil: kinds.Open. For tests
}

type openFunc = func(ctx context.Context, s source.Settings) (source.Source, error)

func (o *Options) opener() openFunc {
	if o.open == nil {
		return kinds.Open
	}
	return o.open
}

// CacheOptions are one cache of a server.
type CacheOptions struct {
	Name     string          // by which clients attach
	Source   source.Settings // what it is filled from: kind and the kind's own keys, and limits and retry as package wrap takes them
	Decode   map[string]any  // how images are decoded, as package decode takes it; nil: they are not
	Size     uint64          // bytes that the segment never exceeds. 0: room for every sample
	Assign   shm.Assign      // which samples get a slot; fixed-size samples only
	Parallel int             // reads at a time, at most 32. 0: 4
	Dir      string          // an existing folder on a tmpfs. "": that of all caches
}

// maxParallel: the server is one client of the segment, and a client can claim so many samples at a time.
const maxParallel = shm.ClaimsPerClient

const defaultParallel = 4

// segment says what segment the cache wants for a source.
func (o *CacheOptions) segment(s source.Source) (shm.Options, error) {
	info := s.Info()
	want := shm.Options{Name: o.Name, Dir: o.Dir, Samples: uint64(info.Samples), Limit: o.Size, Fields: info.Schema.Fields, Variable: info.Schema.Variable, Assign: o.Assign,
		Fingerprint: info.Fingerprint}
	if !info.Schema.Variable {
		return want, nil
	}
	want.Assign = shm.AssignFirstCome
	want.SampleBytes = info.Schema.SampleBytes
	if o.Size == 0 {
		units := uint64(0)
		for i := range info.Samples {
			n, err := s.Size(i)
			if err != nil {
				return want, fmt.Errorf("size of all: %w", err)
			}
			units += shm.UnitsFor(uint64(n))
		}
		var err error
		if want.Limit, err = shm.ArenaLimit(want.Samples, 0, units); err != nil {
			return want, err
		}
	}
	return want, nil
}
