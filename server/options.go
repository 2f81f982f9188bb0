package server

import (
	"cmp"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/server/fill"
	"github.com/stocached/stocached/server/prefetch"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/source/kinds"
)

// Options of a server.
type Options struct {
	Caches     []CacheOptions
	SocketsDir string       // "": control.SocketsDir()
	Log        *slog.Logger // nil: slog.Default()
	// Total bounds the bytes of all segments together. 0: only what tmpfs and memory can hold does.
	Total uint64
	// ClientBytes bounds the memory of all connections together: a half is for samples and answers
	// that wait to be taken, a half for requests under way. 0: 512 MiB.
	ClientBytes uint64
	// MetricsListen is host:port for metrics on TCP, without a host on the loopback. "": only on
	// the admin socket.
	MetricsListen string
	Admin         AdminOptions
	// ParseCache makes options of the JSON that operators send for a cache. What it complains about
	// is their error. nil: no caches are made or replaced at run time by them.
	ParseCache func(body []byte) (CacheOptions, error)
	// DataSocket and AdminSocket are listeners that the service manager opened, and belong to the
	// server from New on. nil: the server opens its own, in the folder of the other one, else in
	// SocketsDir.
	DataSocket, AdminSocket *net.UnixListener

	open served.OpenFunc // nil: kinds.Open. For tests
}

// AdminOptions say who may use the admin socket, and for what.
type AdminOptions struct {
	// Group opens it to the members of a group, by name or number; its folder as well, as far as
	// they need that to reach it. "": to the server's own user, and root.
	Group string
	Pprof bool // profiles of the running server, under /debug/pprof/
}

func (o *Options) opener() served.OpenFunc {
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

// What connections take together: half of limits.clients for samples and answers that wait to be
// taken, half for requests under way.
const (
	MinClientBytes     = 16 << 20
	defaultClientBytes = 512 << 20
)

// What packages below this one call by shorter names.
type (
	// CacheOptions are one cache of a server.
	CacheOptions = served.Options
	// PlanOptions say in which order a job will read the samples of a cache.
	PlanOptions = prefetch.Options
)

// Errors of packages below this one.
var (
	// ErrServed is the error of a second server for a cache, or for the sockets.
	ErrServed = served.ErrServed
	// ErrNoCache: this server has no cache of that name.
	ErrNoCache = served.ErrNoCache
	// ErrHasCache: this server has a cache of that name already.
	ErrHasCache = served.ErrHasCache
	// ErrEnding: the server is ending, and changes nothing any more.
	ErrEnding = fill.ErrEnding
	// ErrNoPlan: the cache has no plan of that name.
	ErrNoPlan = prefetch.ErrNoPlan
	// ErrManyPlans: the cache has as many plans as it may have.
	ErrManyPlans = prefetch.ErrManyPlans
)
