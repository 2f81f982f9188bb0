package server_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
)

// allHostile asks for all values of each byte. Otherwise each run tries one of about five.
var allHostile = os.Getenv("STOCACHED_TEST_HOSTILE") == "all"

// Ensure that no byte and no number of a client's frame, whatever its value, and no frame that is cut, ends the server,
// keeps it busy, or costs another client a sample. The cache keeps what jobs read soonest, so that it uses all of a plan.
func TestHostileClient(t *testing.T) {
	server.SetTimeouts(t, 300*time.Millisecond, 20*time.Second)
	const samples, size = 40, 2000
	m := newMemory(samples, size)
	s, _ := start(t, options(t, m, server.CacheOptions{Size: 4<<20 + 10*size, Policy: shm.PolicyPlanned}))
	other := dial(t, s.Dir())
	number, _ := other.attach("pets")
	hello := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: "hostile"})
	attach := control.AppendAttach(nil, 2, "pets")
	plan := control.AnnounceBody{Owner: 1, Kind: uint32(order.Shuffled), Seed: 7, Ranks: 1, Samples: samples, Batch: 4}
	blocks := plan
	blocks.Owner, blocks.Kind, blocks.Window, blocks.Block = 2, uint32(order.Blocks), 4, 8
	frames := [][]byte{
		hello, attach,
		control.AppendFetch(nil, control.Fetch, 3, control.FetchBody{Flags: control.Send | control.Loads, Indices: []int64{1, 2, 3}}),
		control.AppendFetch(nil, control.Prefetch, 3, control.FetchBody{Indices: []int64{4, 5}}),
		control.AppendAnnounce(nil, 3, plan),
		control.AppendAnnounce(nil, 3, blocks),
		control.AppendOffer(nil, 3, control.OfferBody{Index: 1, Sample: make([]byte, 8)}),
		control.AppendCancel(nil, 3),
	}
	after := control.AppendFetch(nil, control.Fetch, 4, control.FetchBody{Indices: []int64{6, 7, 8, 9}})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	// ends sends frames and reads until the server ends the connection, or we have sent all.
	ends := func(what string, frames []byte, silent bool) {
		socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Dir() + "/" + control.DataSocket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		_, _ = socket.Write(frames) // the server may have closed the connection already
		if !silent {
			_ = socket.CloseWrite()
		}
		_ = socket.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, socket); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s: neither answered nor ended", what)
		}
	}
	join := func(k int, frame []byte) []byte {
		all := bytes.Clone(bytes.Join(frames[:min(k, 2)], nil)) // what comes before it: HELLO, ATTACH
		all = append(all, frame...)
		if k == 0 {
			all = append(all, attach...)
		}
		return append(all, after...)
	}
	for k, frame := range frames {
		name := control.Type(binary.LittleEndian.Uint16(frame[4:]))
		for at := range frame {
			values := []byte{0, 0xff, 0x80, frame[at] + 1, frame[at] ^ 1<<rng.IntN(8), byte(rng.Uint32())}
			if !allHostile {
				values = values[rng.IntN(len(values)):][:1]
			}
			for _, v := range values {
				changed := bytes.Clone(frame)
				changed[at] = v
				ends(fmt.Sprintf("%v: byte %d is %#x", name, at, v), join(k, changed), false)
			}
			if at > 0 && (allHostile || rng.IntN(4) == 0) {
				ends(fmt.Sprintf("%v: cut at %d", name, at), append(bytes.Join(frames[:min(k, 2)], nil), frame[:at]...), rng.IntN(8) == 0)
			}
		}
		for at := control.HeaderBytes; at+8 <= len(frame); at += 4 {
			for _, v := range []uint64{0, 1<<64 - 1, 1 << 63, 1<<63 - 1, 1 << 32, 1<<32 - 1, samples, samples + 1, 1 << 20} {
				changed := bytes.Clone(frame)
				binary.LittleEndian.PutUint64(changed[at:], v)
				ends(fmt.Sprintf("%v: number %d is %#x", name, at, v), join(k, changed), false)
			}
		}
		if a := other.fetch(number, control.Send, shuffled(samples)...); len(a.failures) != 0 || len(a.samples) != samples {
			t.Fatalf("another client, after %v: %d failed, %d came", name, len(a.failures), len(a.samples))
		}
	}
	eventually(t, "all are forgotten", func() bool { return s.Connections() == 1 })
}
