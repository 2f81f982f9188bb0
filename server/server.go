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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// drainTimeout is how long the end of a server waits for its answers to be taken. A variable for tests.
var drainTimeout = 10 * time.Second

// Server hosts caches and answers on the data socket. New makes it, Serve runs it until its context ends.
type Server struct {
	log    *slog.Logger
	boot   [16]byte
	dir    string
	socket *net.UnixListener
	admin  *admin

	metricsAddress net.Addr       // of metrics on TCP; nil: none
	background     sync.WaitGroup // what answers operators

	mu          sync.Mutex // protects what follows
	caches      map[string]*hosted
	connections map[*connection]bool
	serving     bool
	closed      bool
}

// New opens the sources, makes or adopts the segments, and listens. ErrServed when another server has one of the caches, or the sockets; errors of sources and of package shm,
// with the cache's name. On failure nothing is left open; segments stay.
func New(ctx context.Context, o Options) (s *Server, err error) {
	s = &Server{log: cmp.Or(o.Log, slog.Default()), dir: cmp.Or(o.SocketsDir, control.SocketsDir()), caches: map[string]*hosted{}, connections: map[*connection]bool{}}
	if _, err := rand.Read(s.boot[:]); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.socket, err = listen(s.dir, control.DataSocket); err != nil {
		return s, err
	}
	fault.At("serve.listening")
	for _, c := range o.Caches {
		if err := c.check(); err != nil {
			return s, err
		}
		if s.caches[c.Name] != nil {
			return s, fmt.Errorf("%w: two caches are named %s", shm.ErrInvalid, c.Name)
		}
		h, err := host(ctx, c, o.opener(), s.log)
		if err != nil {
			return s, err
		}
		s.caches[c.Name] = h
	}
	s.admin, err = newAdmin(s, o.MetricsListen)
	fault.At("serve.ready")
	return s, err
}

// check fills in defaults. ErrInvalid.
func (o *CacheOptions) check() error {
	if err := shm.CheckName(o.Name); err != nil {
		return err
	}
	o.Parallel = cmp.Or(o.Parallel, defaultParallel)
	if o.Parallel < 1 || o.Parallel > maxParallel {
		return fmt.Errorf("%w: cache %s: parallel is %d, not in 1..%d", shm.ErrInvalid, o.Name, o.Parallel, maxParallel)
	}
	return nil
}

// listen listens on a socket in a folder, which it makes if need be. A socket that nobody answers on is an earlier server's, and is replaced; ErrServed when somebody does.
func listen(dir, name string) (*net.UnixListener, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the sockets: %w", err)
	}
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case err != nil:
		return nil, fmt.Errorf("folder of the sockets: %s: %w", dir, err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0: // somebody else's in /tmp, perhaps
		return nil, fmt.Errorf("%w: %s must be a folder of user id %d that nobody else may write to; remove it, or set sockets.dir", shm.ErrPermission, dir, os.Geteuid())
	}
	path := filepath.Join(dir, name)
	if len(path) > 107 {
		return nil, fmt.Errorf("%w: the path of a socket has at most 107 bytes, %s has %d; set sockets.dir or %s to a shorter one", shm.ErrInvalid, path, len(path), control.SocketsVariable)
	}
	address := &net.UnixAddr{Name: path, Net: "unix"}
	l, err := net.ListenUnix("unix", address)
	if errors.Is(err, unix.EADDRINUSE) {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("%w: somebody answers on %s; end that server first, or set sockets.dir", ErrServed, path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		l, err = net.ListenUnix("unix", address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// Serve answers until ctx ends or Close is called: then it fails what is queued, waits for reads under way and for answers to be taken, and lets the caches go, warm.
func (s *Server) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.socket.Close() })
	defer stop()
	s.mu.Lock()
	s.serving = true
	s.mu.Unlock()
	s.admin.serve(s)
	var clients sync.WaitGroup
	for {
		socket, err := patient{s.socket, s.log}.AcceptUnix()
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
	c := newConnection(s, socket)
	if uid, ok, err := peer(socket); !ok {
		s.log.Warn("a client of another user was turned away", "uid", uid, "error", err)
		c.out.send(control.AppendError(nil, 0, control.CodeDenied, fmt.Sprintf("this server belongs to user id %d, and you are %d", os.Getuid(), uid)))
		c.out.end()
		if err := c.out.run(); err != nil {
			s.log.Debug("it was not told why", "error", err)
		}
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.connections[c] = true
	s.mu.Unlock()
	c.serve()
	s.mu.Lock()
	delete(s.connections, c)
	s.mu.Unlock()
}

// peer returns the user id of who connected, and whether that one is let in: our own user, and root.
func peer(socket *net.UnixConn) (uid int, ok bool, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return -1, false, err
	}
	uid = -1
	var failed error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
			uid = int(cred.Uid)
		}
	})
	err = errors.Join(err, failed)
	return uid, err == nil && (uid == 0 || uid == os.Getuid()), err
}

// cache returns the cache of a name; nil: there is none.
func (s *Server) cache(name string) *hosted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.caches[name]
}

// names lists the caches, for messages.
func (s *Server) names() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.caches) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(s.caches)), ", ")
}

// drained is called when a client has room again for samples without a slot.
func (s *Server) drained() {
	s.mu.Lock()
	caches := slices.Collect(maps.Values(s.caches))
	s.mu.Unlock()
	for _, h := range caches {
		h.filler.drained()
	}
}

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
	if s.admin != nil {
		errs = append(errs, s.admin.close())
	}
	fault.At("drain.sockets")
	for _, h := range caches {
		h.filler.close(drainTimeout) // every fetch is answered from here on
	}
	fault.At("drain.fillers")
	for _, c := range connections {
		c.out.until(time.Now().Add(drainTimeout))
		if err := c.socket.CloseRead(); err != nil { // ends its reader, after which it writes what is left
			c.socket.Close() // it is gone
		}
	}
	fault.At("drain.clients")
	for _, h := range caches {
		errs = append(errs, h.close())
	}
	fault.At("drain.caches")
	return errors.Join(errs...)
}

// Check opens the source of every cache and says what is wrong, without making or changing anything.
func Check(ctx context.Context, o Options) error {
	var errs []error
	for _, c := range o.Caches {
		errs = append(errs, c.try(ctx, o.opener()))
	}
	return errors.Join(errs...)
}

// try is what host does before it makes a segment.
func (o CacheOptions) try(ctx context.Context, open openFunc) error {
	if err := o.check(); err != nil {
		return err
	}
	s, err := o.open(ctx, open)
	if err != nil {
		return fmt.Errorf("cache %s: %w", o.Name, err)
	}
	defer s.Close()
	if _, err = o.segment(s); err != nil {
		err = fmt.Errorf("cache %s: %w", o.Name, err)
	}
	return err
}
