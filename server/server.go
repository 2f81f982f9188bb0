package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/fewlines"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/server/session"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/wrap"

	"golang.org/x/sync/semaphore"
)

// Server serves caches and answers on the data socket. New makes it. Serve runs it until its
// context ends.
type Server struct {
	log    *slog.Logger
	dir    string
	socket *net.UnixListener
	admin  *adminSockets
	opener served.OpenFunc

	metrics    net.Listener // on TCP; nil: none
	sessions   *session.Host
	refusals   fewlines.Limit // limits lines about clients in the log
	onDemand   *OnDemand      // nil: it has a configuration
	background sync.WaitGroup // the handlers of operators, and the janitor
	stop       chan struct{}  // closed to end the janitor

	changes sync.Mutex // held to add, remove and replace caches; protects the field below
	total   uint64     // bound on the bytes of all segments; 0: none

	mu          sync.Mutex // protects the fields below
	caches      map[string]*served.Cache
	opening     map[*wrap.Failures]*opening
	leftOut     map[string]error // caches of the configuration that are not in caches, and why
	connections map[*session.Connection]bool
	reloaded    lastReload
	serving     bool
	closed      bool
}

// New opens the sources, makes or adopts the segments, and listens. It makes nothing if the caches
// do not fit together (ErrMemory), or if another server has a cache or the sockets (ErrServed). New
// leaves out a cache whose source does not open or whose segment is damaged. If that is all of
// them, New returns their errors, of sources and of package shm, with the caches' names. After an
// error nothing stays open; segments stay.
func New(ctx context.Context, o Options) (s *Server, err error) {
	s = &Server{log: cmp.Or(o.Log, slog.Default()), dir: o.socketsDir(), opener: o.opener(),
		opening:  map[*wrap.Failures]*opening{},
		onDemand: o.OnDemand, total: o.Total, stop: make(chan struct{}), caches: map[string]*served.Cache{},
		leftOut: map[string]error{}, connections: map[*session.Connection]bool{},
		reloaded: lastReload{at: time.Now()}}
	s.sessions = &session.Host{Log: s.log, Replies: session.NewBudget(o.clientShare(), s.drained),
		Requests: session.NewBudget(o.clientShare(), nil), Enter: s.enter, Absent: s.absent,
		Ending: s.ending, Drained: s.drained}
	if s.onDemand != nil {
		s.onDemand.last, s.onDemand.soon = time.Now(), newSoonParts()
		s.onDemand.failures = wrap.NewFailures(s.log.With("of", "files of programs"))
		s.onDemand.failures.AllPass = true
		s.onDemand.failures.Count(&s.onDemand.counts)
		s.onDemand.room = semaphore.NewWeighted(mostPartBytes)
	}
	if _, err := rand.Read(s.sessions.Boot[:]); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if _, err := groupID(o.Admin.Group); err != nil {
		return s, err
	}
	if s.socket, err = o.listen(o.DataSocket, control.DataSocket, nil); err != nil {
		return s, err
	}
	if o.MetricsListen != "" { // before it makes segments, which would stay if this fails
		if s.metrics, err = sockets.ListenTCP(ctx, "metrics.listen", o.MetricsListen); err != nil {
			return s, err
		}
	}
	fault.At("serve.listening")
	coming, err := s.prepare(ctx, &o)
	if err != nil {
		return s, err
	}
	others := new(shm.Others)
	for k, p := range coming {
		h, err := p.Serve(s.log, others)
		if err != nil && mayLeaveOut(ctx, err) {
			s.leaveOut(p.Options.Name, err)
			served.CloseAll(s.log, p)
			continue
		}
		if err != nil {
			served.CloseAll(s.log, coming[k:]...)
			return s, err
		}
		s.caches[h.Name] = h
	}
	if len(s.caches) == 0 && len(s.leftOut) > 0 {
		return s, errors.Join(slices.Collect(maps.Values(s.leftOut))...)
	}
	if s.admin, err = newAdminSockets(s, &o); err != nil {
		return s, err
	}
	s.background.Go(func() { s.clean(s.stop) })
	fault.At("serve.ready")
	return s, nil
}

// prepare opens all sources, and checks that the segments fit. After an error none stays open.
func (s *Server) prepare(ctx context.Context, o *Options) (coming []*served.Prepared, err error) {
	defer func() {
		if err != nil {
			served.CloseAll(s.log, coming...)
		}
	}()
	names := map[string]bool{}
	for _, c := range o.Caches {
		if names[c.Name] {
			return coming, fmt.Errorf("%w: two caches are named %s", shm.ErrInvalid, c.Name)
		}
		names[c.Name] = true
		p, err := s.open(ctx, c)
		if err != nil && mayLeaveOut(ctx, err) {
			s.leaveOut(c.Name, err)
			continue
		}
		if err != nil {
			return coming, err
		}
		coming = append(coming, p)
	}
	return coming, checkCapacity(o.Total, nil, coming)
}

// Serve answers until ctx ends. Then it fails queued requests, waits for reads under way and for
// answers to be sent, and leaves the caches warm.
func (s *Server) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.socket.Close() })
	defer stop()
	s.mu.Lock()
	s.serving = true
	s.mu.Unlock()
	s.admin.serve(s)
	var clients sync.WaitGroup
	for {
		socket, err := retryingListener{s.socket, s.log}.AcceptUnix()
		if err != nil {
			break
		}
		clients.Go(func() { s.accept(socket) })
	}
	err := s.close()
	clients.Wait()
	s.background.Wait()
	return err
}

// accept serves one client.
func (s *Server) accept(socket *net.UnixConn) {
	defer socket.Close()
	c := session.New(s.sessions, socket)
	if who, err := sockets.PeerOf(socket); err != nil || !isOwner(who) {
		if about := s.refusals.Add("uid", who.UID, "error", err); about != nil {
			s.log.Warn("a client of another user was refused", about...)
		}
		c.Refuse(fmt.Sprintf("this server belongs to user id %d, and you are %d", os.Getuid(), who.UID))
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.connections[c] = true
	s.mu.Unlock()
	c.Serve()
	s.mu.Lock()
	delete(s.connections, c)
	s.mu.Unlock()
}

// cache returns the cache of a name; nil: there is none.
func (s *Server) cache(name string) *served.Cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.caches[name]
}

// enter enters the cache of a name; the caller must leave it. nil: there is none.
func (s *Server) enter(name string) *served.Cache {
	for {
		h := s.cache(name)
		if h == nil || h.Enter() {
			return h
		}
		if s.ending() {
			return nil
		}
		time.Sleep(time.Millisecond) // the cache is being replaced: its successor follows soon
	}
}

func (s *Server) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// noCache returns ErrNoCache, with the caches that there are.
func (s *Server) noCache(name string) error {
	return fmt.Errorf("%w: %s; it has: %s", ErrNoCache, name, s.names())
}

// names lists the caches, for messages.
func (s *Server) names() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.caches) == 0 {
		return "none"
	}
	return fewNames(slices.Sorted(maps.Keys(s.caches)))
}

// drained is called when a client can again take samples without a slot.
func (s *Server) drained() {
	s.mu.Lock()
	caches := slices.Collect(maps.Values(s.caches))
	s.mu.Unlock()
	for _, h := range caches {
		h.Filler().Drained()
	}
}

// Caches returns the number of caches.
func (s *Server) Caches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.caches)
}

// Has says whether the server has a cache of that name.
func (s *Server) Has(name string) bool { return s.cache(name) != nil }

// Dir returns the folder of the sockets.
func (s *Server) Dir() string { return s.dir }

// close ends everything but the segments.
func (s *Server) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	fault.At("drain.begun")
	caches, connections := slices.Collect(maps.Values(s.caches)), slices.Collect(maps.Keys(s.connections))
	s.mu.Unlock()
	var errs []error
	if s.socket != nil {
		if err := s.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	close(s.stop)
	s.sessions.Requests.Close()
	s.sessions.Replies.Close()
	if s.admin != nil {
		errs = append(errs, s.admin.close())
		if s.onDemand != nil {
			s.onDemand.close()
		}
	} else if s.metrics != nil {
		errs = append(errs, s.metrics.Close())
	}
	fault.At("drain.sockets")
	var fillers sync.WaitGroup
	for _, h := range caches {
		fillers.Go(func() { h.Filler().Close(served.DrainTimeout) }) // from here on every fetch has its answer
	}
	fillers.Wait()
	fault.At("drain.fillers")
	for _, c := range connections {
		c.Drain(time.Now().Add(served.DrainTimeout))
	}
	fault.At("drain.clients")
	ended := make([]error, len(caches))
	var sources sync.WaitGroup
	for k, h := range caches {
		sources.Go(func() { ended[k] = h.Shut(false) })
	}
	sources.Wait()
	fault.At("drain.caches")
	return errors.Join(append(errs, ended...)...)
}

// Looked is what Check has seen of the files of a cache of pictures.
type Looked struct {
	Cache string
	decode.Looked
}

// Check opens the source of every cache, checks whether the segments fit, and returns all errors. If there are none, it
// reads some files of each cache of pictures. It makes and changes nothing, and logs advice.
func Check(ctx context.Context, o Options) (looked []Looked, err error) {
	var all []*served.Prepared
	var errs []error
	log := cmp.Or(o.Log, slog.Default())
	if _, err := groupID(o.Admin.Group); err != nil {
		errs = append(errs, err)
	}
	for _, c := range o.Caches {
		p, err := served.Prepare(ctx, c, o.opener(), wrap.NewFailures(log.With("cache", c.Name)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, p)
		if err := p.CheckExisting(); err != nil {
			errs = append(errs, err)
		}
	}
	defer served.CloseAll(log, all...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, p := range all {
		p.Advise(log.With("cache", p.Options.Name))
	}
	if err := checkCapacity(o.Total, nil, all); err != nil {
		return nil, err
	}
	for _, p := range all {
		if l, ok := p.Look(ctx); ok {
			looked = append(looked, Looked{p.Options.Name, l})
		}
	}
	return looked, nil
}

// served returns the caches sorted by name.
func (s *Server) served() []*served.Cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*served.Cache, 0, len(s.caches))
	for _, h := range s.caches {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *served.Cache) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// ready says whether the server answers clients.
func (s *Server) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving && !s.closed
}
