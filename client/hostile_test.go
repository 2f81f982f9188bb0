package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"

	"golang.org/x/sys/unix"
)

// allHostile asks for all values of each byte. Otherwise each run tries one of about five.
var allHostile = os.Getenv("STOCACHED_TEST_HOSTILE") == "all"

// script is what a hostile server says.
type script struct {
	welcome, attached, answer []byte
	descriptor                int  // that comes with ATTACHED
	hangUp                    bool // after the answer, else it is silent
}

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
	p := &peer{greet: func(_ *peer, socket *net.UnixConn, _ int) bool {
		s := now.Load()
		say(socket, s.welcome)
		say(socket, s.attached, s.descriptor)
		return !s.hangUp || s.answer != nil
	}, fetch: func(_ *peer, socket *net.UnixConn, _ uint64, _ int) bool {
		s := now.Load()
		say(socket, s.answer)
		return !s.hangUp
	}}
	startPeer(t, p)
	good := script{descriptor: p.seg.FD(),
		welcome:  control.AppendWelcome(nil, 1, control.WelcomeBody{Version: control.Version, MaxIndices: 40}),
		attached: control.AppendAttached(nil, 2, control.AttachedBody{Cache: 7, UUID: p.seg.Header.UUID})}
	first := uint64(4) // number of the first request of a connection
	sample := append(control.AppendSampleHeader(nil, first, 0, peerBytes), make([]byte, peerBytes)...)
	answers := map[string][]byte{
		"SAMPLE and FETCHED": control.AppendFetched(sample, first, nil),
		"FETCHED": control.AppendFetched(nil, first, []control.Failure{{Position: 0, Code: control.CodeInternal, Text: "no"},
			{Position: 1, Code: control.CodeClosing, Text: "an end"}}),
		"ERROR": control.AppendError(nil, first, control.CodeInternal, "no"),
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, s script) {
		late := time.AfterFunc(time.Minute, func() { panic(what + ": a call does not come back") })
		defer late.Stop()
		now.Store(&s)
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
		defer cancel()
		c, err := client.Dial(ctx, "test", client.DialOptions{SocketsDir: p.dir, Timeout: 20 * time.Millisecond})
		if err == nil {
			if s.answer != nil {
				err = c.Fetch(ctx, []int{1, 2}, make([]byte, 2*peerBytes), peerBytes)
			}
			_ = c.Close()
		}
		var remote *client.RemoteError
		var failed *client.FetchError
		for _, known := range []error{nil, control.ErrProtocol, client.ErrNoServer, client.ErrTimeout, client.ErrClosed,
			context.DeadlineExceeded, shm.ErrFormat, shm.ErrSchema, shm.ErrInvalid, shm.ErrPermission} {
			if errors.Is(err, known) {
				return
			}
		}
		if !errors.As(err, &remote) && !errors.As(err, &failed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	each := func(name string, frame []byte, with func(frame []byte) script) {
		for k := range frame {
			values := []byte{0, 0xff, 0x80, frame[k] + 1, frame[k] ^ 1<<rng.IntN(8), byte(rng.Uint32())}
			if !allHostile {
				values = values[rng.IntN(len(values)):][:1]
			}
			for _, v := range values {
				other := bytes.Clone(frame)
				other[k] = v
				try(fmt.Sprintf("%s: byte %d is %#x", name, k, v), with(other))
			}
			if allHostile || rng.IntN(4) == 0 {
				cut := with(frame[:k])
				try(fmt.Sprintf("%s: cut at %d, and silent", name, k), cut)
				cut.hangUp = true
				try(fmt.Sprintf("%s: cut at %d", name, k), cut)
			}
		}
	}
	each("WELCOME", good.welcome, func(b []byte) script { s := good; s.welcome = b; return s })
	each("ATTACHED", good.attached, func(b []byte) script { s := good; s.attached = b; return s })
	for name, answer := range answers {
		each(name, answer, func(b []byte) script { s := good; s.answer = b; return s })
	}
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
		fd, err := open()
		if err != nil {
			t.Fatal(err)
		}
		s := good
		s.descriptor = fd
		try(name, s)
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
