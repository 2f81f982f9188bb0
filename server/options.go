package server

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
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
	Version    string       // version of the program, for metrics
	// Total bounds the bytes of all segments together. 0: tmpfs and memory are the only bounds.
	Total uint64
	// ClientBytes bounds the memory of all connections together. Half is for samples and answers
	// that wait to be sent, half for requests under way. 0: 512 MiB.
	ClientBytes uint64
	// MetricsListen is host:port for metrics on TCP. Without a host it is the loopback. "": metrics
	// are on the admin socket only.
	MetricsListen string
	Admin         AdminOptions
	// Page answers for a page for people on the admin socket, under /, /page/, /v1/live and /v1/timeline. nil:
	// nothing is there.
	Page http.Handler
	// Configuration answers on the admin socket for the program that reads the configuration: POST /v1/reload and GET
	// /v1/config. nil: nothing is there.
	Configuration http.Handler
	// DataSocket and AdminSocket are listeners that the service manager opened. The server owns
	// them from New on. nil: the server opens its own, in the folder of the other one, or else in
	// SocketsDir.
	DataSocket, AdminSocket *net.UnixListener

	// OnDemand makes a server for the addresses that programs open, which ends when none uses it. nil: it serves Caches
	// until its context ends.
	OnDemand *OnDemand

	open served.OpenFunc // nil: kinds.Open; tests set it
}

// AdminOptions say who may use the admin socket, and for what.
type AdminOptions struct {
	// Group names a group whose members may use the admin socket, by name or number. The server
	// also lets them reach its folder. "": only the server's own user and root.
	Group string
	Pprof bool // profiles of the running server, under /debug/pprof/
}

func (o *Options) opener() served.OpenFunc {
	if o.open == nil {
		return kinds.Open
	}
	return o.open
}

// clientShare is half of the memory of all connections.
func (o *Options) clientShare() int { return int(cmp.Or(o.ClientBytes, defaultClientBytes) / 2) }

// socketsDir is the folder where clients find the sockets.
func (o *Options) socketsDir() string {
	for _, given := range []*net.UnixListener{o.DataSocket, o.AdminSocket} {
		if given != nil {
			return filepath.Dir(given.Addr().String())
		}
	}
	return cmp.Or(o.SocketsDir, control.SocketsDir())
}

// Limits on the memory of all connections together (limits.clients).
const (
	MinClientBytes     = 16 << 20
	defaultClientBytes = 512 << 20
)

// Shorter names for types of the packages below.
type (
	// CacheOptions are one cache of a server.
	CacheOptions = served.Options
	// PlanOptions say in which order a job will read the samples of a cache.
	PlanOptions = prefetch.Options
)

// Errors of the packages below.
var (
	// ErrServed: another server has the cache or the sockets.
	ErrServed = served.ErrServed
	// ErrNoCache: this server has no cache of that name.
	ErrNoCache = served.ErrNoCache
	// ErrEnding: the server is ending and accepts no changes.
	ErrEnding = fill.ErrEnding
	// ErrNoPlan: the cache has no plan of that name.
	ErrNoPlan = prefetch.ErrNoPlan
	// ErrManyPlans: the cache has reached its limit of plans.
	ErrManyPlans = prefetch.ErrManyPlans
)
