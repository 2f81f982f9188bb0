package client_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/hostile"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// script is what a hostile server says.
type script struct {
	welcome, attached, answer []byte
	announced                 []byte                                            // answers the ANNOUNCE of a greeting; then the server hangs up at any other request
	descriptor                int                                               // it comes with ATTACHED
	hangUp                    bool                                              // after the answer, else it is silent
	call                      func(ctx context.Context, c *client.Served) error // a call of the client; nil: it only dials
}

// greetingRequest is the number of the ANNOUNCE of a greeting. firstRequest is that of the first call on a connection.
const greetingRequest, firstRequest = 3, 4

// Ensure that no byte of a frame from a server, whatever its value, and no frame that is cut, ends a process, keeps a
// call longer than its limit, costs memory, or leaves a descriptor.
func TestHostileServer(t *testing.T) {
	var now atomic.Pointer[script]
	say := func(socket *net.UnixConn, frame []byte, descriptors ...int) {
		var rights []byte
		if len(descriptors) > 0 {
			rights = unix.UnixRights(descriptors...)
		}
		if len(frame) > 0 {
			_, _, _ = socket.WriteMsgUnix(frame, rights, nil) // the client may have hung up
		}
	}
	dir := tmpfs.Folder(t)
	seg, err := shm.Create(shm.Options{Name: "test", Dir: dir, Samples: 100, SampleBytes: peerBytes, Programs: true})
	fatal.If(t, err)
	p := &peer{seg: seg, greet: func(_ *peer, socket *net.UnixConn, _ int) bool {
		s := now.Load()
		say(socket, s.welcome)
		say(socket, s.attached, s.descriptor)
		return !s.hangUp || s.answer != nil || s.announced != nil
	}, fetch: func(_ *peer, socket *net.UnixConn, request uint64, _ int) bool {
		s := now.Load()
		if s.announced != nil && request != greetingRequest {
			return false
		}
		say(socket, append(bytes.Clone(s.answer), s.announced...)) // it has one of the two
		return !s.hangUp
	}}
	startPeer(t, p)
	good := script{descriptor: p.seg.FD(),
		welcome:  control.AppendWelcome(nil, 1, control.WelcomeBody{Version: control.Version, MaxIndices: 40}),
		attached: control.AppendAttached(nil, 2, control.AttachedBody{Cache: 7, UUID: p.seg.Header.UUID})}
	fetch := func(indices ...int) func(ctx context.Context, c *client.Served) error {
		return func(ctx context.Context, c *client.Served) error {
			return c.Fetch(ctx, indices, make([]byte, len(indices)*peerBytes), peerBytes)
		}
	}
	announce := func(ctx context.Context, c *client.Served) error {
		_, err := c.Announce(ctx, client.Plan{Order: order.Order{Samples: 100}})
		return err
	}
	sample := append(control.AppendSampleHeader(nil, firstRequest, 0, peerBytes), make([]byte, peerBytes)...)
	answers := []struct {
		answer []byte
		call   func(ctx context.Context, c *client.Served) error
	}{
		{control.AppendFetched(sample, firstRequest, nil), fetch(1)},
		{control.AppendFetched(nil, firstRequest, []control.Failure{{Position: 0, Code: control.CodeInternal, Text: "no"},
			{Position: 1, Code: control.CodeDamaged, Text: "bytes"}}), fetch(1, 2)},
		{control.AppendError(nil, firstRequest, control.CodeInternal, "no"), fetch(1)},
		{control.AppendPrefetched(nil, firstRequest, 1), func(ctx context.Context, c *client.Served) error {
			queued, err := c.Prefetch(ctx, []int{1, 2})
			if queued < 0 {
				t.Errorf("%d samples are queued", queued)
			}
			return err
		}},
		{control.AppendAnnounced(nil, firstRequest, true), announce},
		{control.AppendOffered(nil, firstRequest, true), func(ctx context.Context, c *client.Served) error {
			_, err := c.Offer(ctx, 1, make([]byte, peerBytes))
			return err
		}},
	}
	sweep := hostile.New(t)
	before := fatal.Value(os.ReadDir("/proc/self/fd"))(t)
	limit := 10 * time.Second // the limit of a greeting; a call has twice as long
	try := func(what string, s script) error {
		late := time.AfterFunc(time.Minute, func() { panic(what + ": a call does not come back") })
		defer late.Stop()
		now.Store(&s)
		ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
		defer cancel()
		c, err := client.Dial(ctx, "test", client.DialOptions{SocketsDir: p.dir, Timeout: limit})
		if err == nil {
			if s.call != nil {
				err = s.call(ctx, c)
			}
			_ = c.Close()
		}
		var remote *client.RemoteError
		var failed *client.FetchError
		for _, known := range []error{nil, control.ErrProtocol, client.ErrNoServer, client.ErrTimeout, client.ErrClosed,
			context.DeadlineExceeded, shm.ErrFormat, shm.ErrSchema, shm.ErrInvalid, shm.ErrPermission} {
			if errors.Is(err, known) {
				return err
			}
		}
		if !errors.As(err, &remote) && !errors.As(err, &failed) {
			t.Errorf("%s: %v", what, err)
		}
		return err
	}
	for k, one := range answers { // unchanged
		s := good
		s.answer, s.call = one.answer, one.call
		if err := try("answer", s); errors.Is(err, control.ErrProtocol) || errors.Is(err, client.ErrTimeout) {
			t.Errorf("answer %d: %v", k, err)
		}
	}
	limit = 20 * time.Millisecond
	each := func(frames []byte, with func(changed []byte) script) {
		sweep.Frames(frames, func(what string, changed []byte, cut bool) {
			s := with(changed)
			_ = try(what, s)
			if s.hangUp = true; cut {
				_ = try(what+", and hung up", s)
			}
		})
	}
	each(good.welcome, func(b []byte) script { s := good; s.welcome = b; return s })
	each(good.attached, func(b []byte) script { s := good; s.attached = b; return s })
	for _, one := range answers {
		each(one.answer, func(b []byte) script { s := good; s.answer, s.call = b, one.call; return s })
	}
	each(control.AppendAnnounced(nil, greetingRequest, true), func(b []byte) script {
		s := good
		s.announced, s.call = b, announce
		return s
	})
	sweep.WantAll(t, false)
	wantDescriptors(t, len(before))
	for name, open := range map[string]func() (int, error){
		"a directory":     func() (int, error) { return unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0) },
		"a device":        func() (int, error) { return unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0) },
		"a file of /proc": func() (int, error) { return unix.Open("/proc/self/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0) },
		"O_PATH":          func() (int, error) { return unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0) },
		"an event":        func() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) },
		"a socket":        func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) },
		"an empty file":   func() (int, error) { return unix.MemfdCreate("stoctest", unix.MFD_CLOEXEC) },
		"a pipe": func() (int, error) {
			var both [2]int
			err := unix.Pipe2(both[:], unix.O_CLOEXEC)
			unix.Close(both[1])
			return both[0], err
		},
	} {
		fd := fatal.Value(open())(t)
		s := good
		s.descriptor = fd
		_ = try(name, s)
		now.Store(&s)
		if c, err := p.dial(time.Second); err == nil {
			c.Close()
			t.Errorf("%s is taken for a cache", name)
		} else if errors.Is(err, client.ErrNoServer) {
			t.Errorf("%s: %v", name, err)
		}
		unix.Close(fd)
	}
	wantDescriptors(t, len(before))
}
