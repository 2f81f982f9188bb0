package server_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/server"
)

// last reads to the end of a connection, and returns the error at its end; nil: none.
func (p *peer) last() *control.RemoteError {
	p.t.Helper()
	var remote *control.RemoteError
	for {
		h, body, err := p.tryReceive()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				p.t.Fatal("the connection does not end")
			}
			return remote
		}
		if remote = nil; h.Type == control.Error {
			if remote, err = control.ParseError(body); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// A client may send its frames in pieces of any size, and several at once.
func TestFramesInPieces(t *testing.T) {
	m := newMemory(10, 100)
	s, _ := start(t, options(t, m, server.CacheOptions{}))
	p := connect(t, s.Dir())
	frames := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version})
	frames = control.AppendFetch(frames, control.Prefetch, 2, control.FetchBody{Indices: []int64{1}})
	frames = control.AppendFetch(frames, control.Fetch, 3, control.FetchBody{Cache: 7, Indices: []int64{1}})
	for _, b := range frames {
		p.send([]byte{b})
	}
	for _, want := range []control.Type{control.Welcome, control.Error, control.Error} {
		if h, body := p.receive(); h.Type != want {
			t.Errorf("%v, want %v: %q", h.Type, want, body)
		}
	}
	number, _ := p.attach("pets")
	frames = frames[:0]
	for k := range 50 {
		frames = control.AppendFetch(frames, control.Fetch, uint64(100+k),
			control.FetchBody{Cache: number, Indices: []int64{int64(k % 10)}})
	}
	p.send(frames)
	answered := map[uint64]bool{}
	for range 50 {
		h, body := p.receive()
		if h.Type != control.Fetched || binary.LittleEndian.Uint32(body) != 0 {
			t.Errorf("%v: %q", h.Type, body)
		}
		answered[h.Request] = true
	}
	expect.Equal(t, len(answered), 50, "answered of 50")
}

// The time of a frame runs from its first byte, so slow pieces do not extend it. Between frames
// there is no limit.
func TestSlowLoris(t *testing.T) {
	const limit = 300 * time.Millisecond
	server.SetTimeouts(t, limit, 20*time.Second)
	s, _ := start(t, options(t, newMemory(10, 100), server.CacheOptions{}))
	hello := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version})
	large := control.AppendFetch(nil, control.Fetch, 2, control.FetchBody{Indices: make([]int64, 1000)})
	var all sync.WaitGroup
	for name, frames := range map[string][]byte{"in the header": hello[:10], "in the body": hello[:len(hello)-1],
		"in a later frame": append(bytes.Clone(hello), large...)} {
		all.Go(func() {
			p := connect(t, s.Dir())
			began := time.Now()
			go func() {
				for k := range frames {
					if _, err := p.socket.Write(frames[k : k+1]); err != nil {
						return
					}
					time.Sleep(limit / 20)
				}
			}()
			remote := p.last()
			if remote == nil || remote.Code != control.CodeProtocol ||
				!strings.Contains(remote.Text, "a frame took more than 300ms to arrive") {
				t.Errorf("%s: %+v", name, remote)
			}
			// the client in the middle of a frame; the one in a later frame has two minutes
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
		})
	}
	resting := dial(t, s.Dir())
	all.Wait()
	time.Sleep(limit)
	number, _ := resting.attach("pets")
	resting.wantFetched(number, 1)
}

// The server accepts batches up to the limit, and refuses larger ones. Invalid indices fail alone.
func TestBatchesOfAnySize(t *testing.T) {
	const samples, size = 100, 50
	s, _ := start(t, options(t, newMemory(samples, size), server.CacheOptions{}))
	good, number, seg := join(t, s)
	indices := make([]int64, control.MaxIndices)
	for k := range indices {
		indices[k] = int64(k % samples)
	}
	good.wantFetched(number, indices...)
	for _, i := range []int64{samples, -1, 1 << 40, -1 << 63, 1<<63 - 1} {
		if a := good.fetch(number, 0, 3, i, 4); len(a.failures) != 1 || a.failures[1].Code != control.CodeIndex ||
			!strings.Contains(a.failures[1].Text, "99") {
			t.Errorf("index %d: %+v", i, a.failures)
		}
	}
	for k := range indices {
		indices[k] = -1
	}
	// each has a failure, although the texts of all exceed a frame
	expect.Equal(t, len(good.fetch(number, 0, indices...).failures), len(indices), "failed")
	over := dial(t, s.Dir())
	over.send(control.AppendFetch(nil, control.Fetch, 9,
		control.FetchBody{Indices: make([]int64, control.MaxIndices+1)}))
	if remote := over.last(); remote == nil || remote.Code != control.CodeProtocol ||
		!strings.Contains(remote.Text, "524304 bytes") || !strings.Contains(remote.Text, "65536") {
		t.Errorf("one more: %+v", remote)
	}
	wantReady(t, view(t, seg), 3, size)
}
