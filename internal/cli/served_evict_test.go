package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/shm"
)

// relay passes the frames of clients on to a server, and counts FETCHes.
type relay struct {
	t      *testing.T
	folder string // of its socket
	server string

	mu      sync.Mutex // protects fetches
	fetches []uint32   // their flags
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	r := &relay{t: t, folder: t.TempDir(), server: server}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(r.folder, control.DataSocket), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			server, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(server, control.DataSocket), Net: "unix"})
			if err != nil {
				t.Error(err)
				return
			}
			go r.requests(client, server)
			go r.answers(client, server)
		}
	}()
	return r
}

func (r *relay) requests(client, server *net.UnixConn) {
	defer server.CloseWrite()
	for {
		h, err := control.ReadHeader(client, true)
		if err != nil {
			return
		}
		body := make([]byte, h.Length)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		if h.Type == control.Fetch {
			m, err := control.ParseFetch(h.Type, body)
			if err != nil {
				r.t.Error(err)
			}
			r.mu.Lock()
			r.fetches = append(r.fetches, m.Flags)
			r.mu.Unlock()
		}
		if _, err := server.Write(append(control.AppendHeader(nil, h), body...)); err != nil {
			return
		}
	}
}

// answers passes on the frames of the server, and the descriptor that comes with the first byte.
func (r *relay) answers(client, server *net.UnixConn) {
	defer client.Close()
	for {
		head, rights := make([]byte, control.HeaderBytes), make([]byte, 64)
		n, oob, _, _, err := server.ReadMsgUnix(head, rights)
		if err != nil || n == 0 {
			return
		}
		if _, err := io.ReadFull(server, head[n:]); err != nil {
			return
		}
		frame := append(head, make([]byte, binary.LittleEndian.Uint32(head))...)
		if _, err := io.ReadFull(server, frame[len(head):]); err != nil {
			return
		}
		n, _, err = client.WriteMsgUnix(frame, rights[:oob], nil)
		if err == nil && n < len(frame) {
			_, err = client.Write(frame[n:])
		}
		if err != nil {
			return
		}
	}
}

// taken returns the flags of the FETCHes since the last call.
func (r *relay) taken() []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.fetches
	r.fetches = nil
	return all
}

// evictingServer starts a server with a cache of about so many slots. source: keys of its source; the records are in
// the file `records`.
func evictingServer(t *testing.T, n, slots int, policy, source string) *served {
	t.Helper()
	size, err := (&shm.Options{Samples: uint64(n), SampleBytes: servedBytes, Slots: uint64(slots),
		Policy: shm.PolicyCost}).SegmentBytes()
	if err != nil {
		t.Fatal(err)
	}
	s := configureServed(t, fmt.Sprintf("size: %d, policy: %s, parallel: 4, source: {kind: raw, "+
		"sample_bytes: %d, %s}", size, policy, servedBytes, source))
	s.write(n)
	s.start()
	return s
}

// raggedRecord returns sample i of a source of samples of different sizes, which differs from all others.
func raggedRecord(i int) []byte { return servedRecord(i)[:100+i*7919%(servedBytes-99)] }

// raggedServer starts a server of n samples of different sizes, with room for about so many of them. source: as
// evictingServer has it; the records are in the folder.
func raggedServer(t *testing.T, n, fit int, policy, source string) *served {
	t.Helper()
	bytes := 0
	for i := range n {
		bytes += len(raggedRecord(i))
	}
	g, err := shm.NewGeometry(shm.FlagVariable, shm.PolicyLRU, uint64(n), 1, shm.UnitBytes, shm.DefaultClientRecords, 0)
	if err != nil {
		t.Fatal(err)
	}
	size := g.PayloadOffset + uint64(bytes/n*fit) + 1<<12 // the slot table takes space, too
	s := configureServed(t, fmt.Sprintf("size: %d, policy: %s, parallel: 4, source: {kind: dir, %s}",
		size, policy, source))
	s.writeRecords(n, raggedRecord)
	s.start()
	return s
}

// Ensure that no call needs a third FETCH in a cache of 4 slots while other clients evict, and that
// the second one has SEND.
func TestNoThirdRound(t *testing.T) {
	const n = 300
	s := evictingServer(t, n, 4, "random", "path: records")
	r := newRelay(t, s.sockets)
	end := make(chan struct{})
	var evictors sync.WaitGroup
	stop := sync.OnceFunc(func() { close(end); evictors.Wait() })
	defer stop()
	for k := range 2 {
		c := s.dial()
		evictors.Go(func() {
			random := rand.New(rand.NewSource(int64(k)))
			for {
				select {
				case <-end:
					return
				default:
					i := random.Intn(n)
					if _, err := c.Set(i, servedRecord(i), 0); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	c, err := stocclient.Dial(context.Background(), servedName, stocclient.DialOptions{SocketsDir: r.folder})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rounds := map[string]int{}
	random := rand.New(rand.NewSource(9))
	// Until 20 samples were gone. Many hits need no FETCH.
	for began := time.Now(); rounds["[0 2]"] < 20 && time.Since(began) < time.Minute; {
		i := random.Intn(n)
		data, err := c.GetOrFetch(context.Background(), i)
		if err != nil || !bytes.Equal(data, servedRecord(i)) {
			t.Fatal(i, err)
		}
		rounds[fmt.Sprint(r.taken())]++
		batch := random.Perm(n)[:8]
		all, err := c.FetchSamples(context.Background(), batch)
		if err != nil {
			t.Fatal(err)
		}
		for k, data := range all {
			if !bytes.Equal(data, servedRecord(batch[k])) {
				t.Errorf("sample %d came wrong", batch[k])
			}
		}
		rounds["batch "+fmt.Sprint(r.taken())]++
	}
	stop()
	t.Log(rounds)
	for flags := range rounds {
		switch flags {
		case "[]", "[0]", "[0 2]", "batch [2]":
		default:
			t.Errorf("a call made FETCHes with the flags %s", flags)
		}
	}
	if rounds["[0 2]"] == 0 || rounds["batch [2]"] == 0 {
		t.Error("no sample was gone")
	}
}
