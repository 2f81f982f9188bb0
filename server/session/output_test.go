package session

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"

	"golang.org/x/sys/unix"
)

// Answers are written completely and in their order, by the sender as far as the socket takes them,
// or by the output's goroutine.
func TestAnswersKeepTheirOrder(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	fatal.If(t, err)
	// so that some frames fit only in part
	fatal.If(t, unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
	ends := [2]net.Conn{}
	for k, fd := range pair {
		f := os.NewFile(uintptr(fd), "socket")
		if ends[k], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		defer ends[k].Close()
	}
	o := newOutput(ends[0].(*net.UnixConn), func() {})
	var writer sync.WaitGroup
	writer.Go(func() { expect.NoError(t, o.run()) })
	const answers = 2000
	text := func(n uint64) string { return fmt.Sprintf("%d %s", n, strings.Repeat("x", int(n)*7%900)) }
	var senders sync.WaitGroup
	for sender := range uint64(4) {
		senders.Go(func() {
			for n := range uint64(answers) {
				o.send(control.AppendError(nil, sender+1, control.CodeRead, text(n)))
				o.waitForRoom()
			}
		})
	}
	next := map[uint64]uint64{}
	r := bufio.NewReader(ends[1])
	for range 4 * answers {
		h := fatal.Value(control.ReadHeader(r, false))(t)
		body := make([]byte, h.Length)
		fatal.Value(io.ReadFull(r, body))(t)
		got, err := control.ParseError(body)
		if want := text(next[h.Request]); err != nil || got.Text != want {
			t.Fatalf("sender %d: %+v, %v; want %q", h.Request, got, err, want)
		}
		if next[h.Request]++; next[h.Request]%97 == 0 {
			time.Sleep(100 * time.Microsecond) // frames that are sent in this time fill the socket
		}
	}
	senders.Wait()
	o.mu.Lock()
	if o.answers != 0 || o.bytes != 0 {
		t.Errorf("%d answers of %d bytes are still counted", o.answers, o.bytes)
	}
	o.mu.Unlock()
	o.end()
	writer.Wait()
}
