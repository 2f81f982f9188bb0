package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
)

// Options of a server.
type Options struct {
	Caches     []CacheOptions
	SocketsDir string       // "": control.SocketsDir()
	Log        *slog.Logger // nil: slog.Default()
	// Total bounds the bytes of all segments together. 0: only what tmpfs and memory can hold does.
	Total uint64
	// ClientBytes bounds the memory of all connections together: a half is for samples and answers that wait to be taken, a half for requests under way. 0: 512 MiB.
	ClientBytes uint64
	// MetricsListen is host:port for metrics on TCP, without a host on the loopback. "": only on the admin socket.
	MetricsListen string
	Admin         AdminOptions
	// ParseCache makes options of the JSON that operators send for a cache. What it complains about is their error. nil: no caches are made or replaced at run time by them.
	ParseCache func(body []byte) (CacheOptions, error)
	// DataSocket and AdminSocket are listeners that were opened by whoever started this process, and are the server's from New on. nil: it opens its own, in the folder of the other one, else in SocketsDir.
	DataSocket, AdminSocket *net.UnixListener

	open openFunc // nil: kinds.Open. For tests
}

// AdminOptions say who may ask the admin socket, and for what.
type AdminOptions struct {
	// Group opens it to the members of a group, by name or number; its folder as well, as far as they need that to reach it. "": to the server's own user, and root.
	Group string
	Pprof bool // profiles of the running server, under /debug/pprof/
}

type openFunc = func(ctx context.Context, s source.Settings) (source.Source, error)

func (o *Options) opener() openFunc {
	if o.open == nil {
		return kinds.Open
	}
	return o.open
}

// clientShare is a half of the memory of all connections.
func (o *Options) clientShare() int { return int(cmp.Or(o.ClientBytes, defaultClientBytes) / 2) }

// socketsDir is where clients look for the sockets.
func (o *Options) socketsDir() string {
	for _, given := range []*net.UnixListener{o.DataSocket, o.AdminSocket} {
		if given != nil {
			return filepath.Dir(given.Addr().String())
		}
	}
	return cmp.Or(o.SocketsDir, control.SocketsDir())
}

// CacheOptions are one cache of a server.
type CacheOptions struct {
	Name     string          // by which clients attach
	Source   source.Settings // what it is filled from: kind and the kind's own keys, and limits, retry and read_ahead as package wrap takes them
	Decode   map[string]any  // how images are decoded, as package decode takes it; nil: they are not
	Size     uint64          // bytes that the segment never exceeds. 0: room for every sample
	Assign   shm.Assign      // which samples get a slot; fixed-size samples only
	Parallel int             // reads at a time, at most 32. 0: 4
	Dir      string          // an existing folder on a tmpfs. "": that of all caches
	// Unnamed makes a segment without a name in any folder, which goes with its last process and so is cold after a restart. Clients get it from the server; nobody can truncate it.
	Unnamed bool
	// ReadTimeout is how long a read of a sample may take, its retries, its waiting for limits and its decoding included, at least a second. It is kept to the second. 0: a minute.
	ReadTimeout time.Duration
	// RemoveUnused is how long nobody but this server may have the cache attached before it is emptied: its segment is removed, and a cold one takes its place. 0: it is kept.
	RemoveUnused time.Duration
}

// maxParallel: the server is one client of the segment, and a client can claim so many samples at a time.
const maxParallel = shm.ClaimsPerClient

const (
	defaultParallel    = 4
	defaultReadTimeout = time.Minute
)

// check fills in defaults. ErrInvalid.
func (o *CacheOptions) check() error {
	if err := shm.CheckName(o.Name); err != nil {
		return err
	}
	o.Parallel = cmp.Or(o.Parallel, defaultParallel)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, defaultReadTimeout)
	switch {
	case o.Unnamed && o.Dir != "":
		return fmt.Errorf("%w: cache %s: an unnamed segment is in no folder; leave out dir, or unnamed", shm.ErrInvalid, o.Name)
	case o.Parallel < 1 || o.Parallel > maxParallel:
		return fmt.Errorf("%w: cache %s: parallel is %d, not in 1..%d", shm.ErrInvalid, o.Name, o.Parallel, maxParallel)
	case o.ReadTimeout < time.Second:
		return fmt.Errorf("%w: cache %s: read_timeout is %v, less than 1s", shm.ErrInvalid, o.Name, o.ReadTimeout)
	case o.RemoveUnused != 0 && o.RemoveUnused < time.Second:
		return fmt.Errorf("%w: cache %s: remove_unused is %v, less than 1s; leave it out to keep the cache", shm.ErrInvalid, o.Name, o.RemoveUnused)
	}
	return nil
}

// sameData says whether two differ in nothing that has to do with samples or the segment.
func (o CacheOptions) sameData(other CacheOptions) bool {
	other.Parallel, other.ReadTimeout, other.RemoveUnused = o.Parallel, o.ReadTimeout, o.RemoveUnused
	return reflect.DeepEqual(o, other)
}

// segment says what segment the cache wants for a source.
func (o *CacheOptions) segment(s source.Source) (shm.Options, error) {
	info := s.Info()
	want := shm.Options{Name: o.Name, Dir: o.Dir, Samples: uint64(info.Samples), Limit: o.Size, Fields: info.Schema.Fields, Variable: info.Schema.Variable, Assign: o.Assign,
		Fingerprint: info.Fingerprint}
	if o.Unnamed {
		want.Name = ""
	}
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
