package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// ownMemory returns the bytes of the server's own memory: all but caches and files.
func (s *served) ownMemory() int {
	s.t.Helper()
	text := fatal.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid)))(s.t)
	for line := range strings.Lines(string(text)) {
		var kB int
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			fatal.Value(fmt.Sscan(rest, &kB))(s.t)
			return kB << 10
		}
	}
	s.t.Fatalf("no RssAnon in\n%s", text)
	return 0
}

// raw connects and sends nothing.
func (s *served) raw() net.Conn {
	s.t.Helper()
	socket := fatal.Value(net.Dial("unix", filepath.Join(s.sockets, control.DataSocket)))(s.t)
	s.t.Cleanup(func() { socket.Close() })
	return socket
}

// greeting returns the first frames of a client of the cache.
func greeting() []byte {
	frames := control.AppendHello(nil, 1,
		control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: "hostile"})
	return control.AppendAttach(frames, 2, "pets")
}

// holes makes a file of n huge samples that takes no space.
func (s *served) holes(n int) {
	s.t.Helper()
	fatal.If(s.t, errors.Join(os.WriteFile(s.records, nil, 0o600), os.Truncate(s.records, int64(n)*hugeBytes)))
}

// hostile is a behaviour of clients, and its allowed cost.
type hostile struct {
	do      func(s *served)
	most    int // bytes that the server may need for it
	handles int // descriptors
}

const mebibyte = 1 << 20

// hugeBytes is the size of a sample in the tests of what waits to be sent.
const hugeBytes = mebibyte

var hostilities = map[string]hostile{
	"a thousand that said hello": {func(s *served) {
		for range 1000 {
			socket := s.raw()
			write(s, socket, control.AppendHello(nil, 1, control.HelloBody{Version: control.Version}))
			fatal.Value(io.ReadFull(socket, make([]byte, control.HeaderBytes)))(s.t)
		}
	}, 32 * mebibyte, 1000},
	"frames that announce much and bring nothing": {func(s *served) {
		announced := control.AppendHeader(greeting(),
			control.Header{Length: control.MaxClientBody, Type: control.Fetch, Request: 3})
		for range 300 {
			write(s, s.raw(), announced)
		}
	}, 32 * mebibyte, 600}, // each has a descriptor of the cache, which is still in its socket
	"attaching over and over, and taking no answer": {func(s *served) {
		s.flood(func(frames []byte, id uint64) []byte { return control.AppendAttach(frames, id, "pets") })
	}, 24 * mebibyte, 1200},
	"asking for samples that cannot be, and taking no answer": {func(s *served) {
		indices := make([]int64, control.MaxIndices/16)
		for k := range indices {
			indices[k] = -1
		}
		s.flood(func(frames []byte, id uint64) []byte {
			return control.AppendFetch(frames, control.Fetch, id, control.FetchBody{Cache: 0, Indices: indices})
		})
	}, 48 * mebibyte, 2},
	"asking for the same all the time, and taking no answer": {func(s *served) {
		s.flood(func(frames []byte, id uint64) []byte {
			return control.AppendFetch(frames, control.Prefetch, id,
				control.FetchBody{Cache: 0, Indices: []int64{0, 1, 2}})
		})
	}, 24 * mebibyte, 2},
	"asking for many large samples, and taking none": {func(s *served) {
		indices := make([]int64, 300)
		for k := range indices {
			indices[k] = int64(k)
		}
		for range 2 {
			write(s, s.raw(), control.AppendFetch(greeting(), control.Fetch, 3,
				control.FetchBody{Cache: 0, Indices: indices}))
		}
	}, 2*control.MaxWaitingSend + 48*mebibyte, 4},
}

// write writes to a server that may have closed the connection.
func write(s *served, socket net.Conn, frames []byte) {
	s.t.Helper()
	if _, err := socket.Write(frames); err != nil && !strings.Contains(err.Error(), "broken pipe") &&
		!strings.Contains(err.Error(), "reset by peer") {
		s.t.Fatal(err)
	}
}

// flood sends requests for a while, and reads nothing: the server must stop reading them.
func (s *served) flood(add func(frames []byte, id uint64) []byte) {
	socket := s.raw()
	write(s, socket, greeting())
	var frames []byte
	for id := uint64(3); time.Until(s.flooded) > 0; {
		for frames = frames[:0]; len(frames) < 64<<10; id++ {
			frames = add(frames, id)
		}
		fatal.If(s.t, socket.SetWriteDeadline(s.flooded))
		if _, err := socket.Write(frames); errors.Is(err, os.ErrDeadlineExceeded) {
			return // as expected
		} else if err != nil {
			s.t.Fatal(err)
		}
	}
	s.t.Error("the server reads requests without end from a client that reads no answers")
}

// Ensure that hostile clients cost a server a bounded amount of memory and descriptors, which it
// gives back, and affect no other client.
func TestServerOfHostileClients(t *testing.T) {
	s := configureServed(t, fmt.Sprintf("size: 24MiB, source: {kind: raw, path: records, sample_bytes: %d}",
		hugeBytes))
	s.holes(300)
	s.start()
	c := s.dial()
	other := func(when string) {
		t.Helper()
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for range 3 {
			samples, err := c.FetchSamples(ctx, []int{1, 298, rand.IntN(300)})
			if err != nil || len(samples[0]) != hugeBytes || len(samples[1]) != hugeBytes {
				t.Errorf("%s: %v", when, err)
			}
		}
		again, err := stocclient.Dial(ctx, "pets", stocclient.DialOptions{SocketsDir: s.sockets})
		if err != nil {
			t.Errorf("%s: %v", when, err)
		} else {
			again.Close()
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: three fetches of another client took %v", when, took)
		}
	}
	other("before")
	memory, handles := s.ownMemory(), s.descriptors()
	// The cheapest first: the server may keep what the one before has cost.
	cheaper := func(a, b string) int { return cmp.Compare(hostilities[a].most, hostilities[b].most) }
	for _, name := range slices.SortedFunc(maps.Keys(hostilities), cheaper) {
		h := hostilities[name]
		t.Run(name, func(t *testing.T) {
			s.flooded = time.Now().Add(500 * time.Millisecond)
			ended := t.Run("during it", func(t *testing.T) { // its end closes their connections
				one := *s
				one.t = t
				h.do(&one)
				other("during it")
				most, deadline := 0, time.Now().Add(300*time.Millisecond)
				for time.Now().Before(deadline) {
					most = max(most, s.ownMemory())
					time.Sleep(20 * time.Millisecond)
				}
				if most -= memory; most > h.most {
					t.Errorf("it costs %d MiB, and may cost %d", most>>20, h.most>>20)
				}
				if have := s.descriptors() - handles; have > h.handles+2 {
					t.Errorf("it costs %d descriptors, and may cost %d", have, h.handles)
				}
				t.Logf("%d MiB, %d descriptors", most>>20, s.descriptors()-handles)
			})
			fatal.Until(t, "the descriptors are given back", func() bool { return s.descriptors() <= handles })
			other("afterwards")
			if got := s.answers("/readyz"); got != "ok\n" || !ended {
				t.Errorf("readyz: %q", got)
			}
		})
	}
}

// Ensure that many clients that read nothing cost a server together at most limits.clients, however
// much each requests, and that others are served.
func TestSumOfClientsThatNeverRead(t *testing.T) {
	const clients, limit = 60, 64 * mebibyte
	for name, n := range map[string]int{"large samples": 300, "many indices": control.MaxIndices / 2} {
		t.Run(name, func(t *testing.T) {
			s := configureServed(t, fmt.Sprintf("size: 24MiB, parallel: 2, source: {kind: raw, path: records, "+
				"sample_bytes: %d, limits: {bytes_per_second: 2GiB}}", hugeBytes))
			s.configure(s.configuration("", fmt.Sprintf("limits: {clients: %d}\n", limit)))
			s.holes(n)
			s.start()
			c := s.dial()
			fatal.Value(c.FetchSamples(context.Background(), []int{1, 2}))(t)
			before := s.ownMemory()
			frames := greeting()
			for id := range uint64(4) {
				frames = control.AppendFetch(frames, control.Fetch, id+3, control.FetchBody{Cache: 0, Indices: all(n)})
			}
			for range clients {
				socket := s.raw()
				go socket.Write(frames) // the server need not read all of it
			}
			waiting, requests := 0.0, 0.0
			look := func() {
				waiting = max(waiting, s.metric("stocached_client_bytes", `kind="waiting"`))
				requests = max(requests, s.metric("stocached_client_bytes", `kind="requests"`))
			}
			for deadline := time.Now().Add(20 * time.Second); max(waiting, requests) < 0.5*limit/2 &&
				time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				look()
			}
			for range 20 { // another client, which reads its answers
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				expect.Works(c.FetchSamples(ctx, []int{250, 299}))(t)
				cancel()
				look()
			}
			// the garbage collector needs some memory, too
			if most := s.ownMemory() - before; most > limit+limit/2+24*mebibyte {
				t.Errorf("%d clients cost %d MiB", clients, most>>20)
			}
			if limits := s.metric("stocached_client_bytes_limit", `kind="waiting"`); limits != limit/2 ||
				waiting > limit/2 || requests > limit/2 || max(waiting, requests) < 0.5*limit/2 {
				t.Errorf("%.0f bytes wait, %.0f are of requests, at most %.0f may", waiting, requests, limits)
			}
			t.Logf("%.1f MiB wait, %.1f MiB of requests, %d MiB of memory", waiting/mebibyte, requests/mebibyte,
				(s.ownMemory()-before)>>20)
		})
	}
}

// all returns the indices 0..n-1.
func all(n int) (indices []int64) {
	for k := range n {
		indices = append(indices, int64(k))
	}
	return indices
}
