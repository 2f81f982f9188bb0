package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/hostile"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
)

// Ensure that no byte and no number of a client's frame, whatever its value, and no frame that is cut, ends the server,
// keeps it busy, or costs another client a sample. The cache keeps what jobs read soonest, so that it uses all of a plan.
func TestHostileClient(t *testing.T) {
	server.SetTimeouts(t, 300*time.Millisecond, 20*time.Second)
	const samples, size = 40, 2000
	m := newMemory(samples, size)
	o := options(t, m, server.CacheOptions{Size: 4<<20 + 10*size, Policy: shm.PolicyPlanned})
	o.Caches = append(o.Caches, programsOptions(t).Caches...)
	s, _ := start(t, server.WithSource(o, func(ctx context.Context, s source.Settings) (source.Source, error) {
		if s["kind"] == "none" {
			return kinds.Open(ctx, s)
		}
		return m, nil
	}))
	other, number, _ := join(t, s)
	hello := control.AppendHello(nil, 1, control.HelloBody{Version: control.Version, Kind: shm.KindGo, Label: "hostile"})
	attach := control.AppendAttach(nil, 2, "pets")
	pets, loaded := append(bytes.Clone(hello), attach...), control.AppendAttach(bytes.Clone(hello), 2, "loaded")
	plan := control.AnnounceBody{Owner: 1, Kind: uint32(order.Shuffled), Seed: 7, Ranks: 1, Samples: samples, Batch: 4}
	blocks := plan
	blocks.Owner, blocks.Kind, blocks.Window, blocks.Block = 2, uint32(order.Blocks), 4, 8
	told, withdrawn := plan, plan
	told.Flags, withdrawn.Flags = control.Told, control.Withdraw
	fetch := control.AppendFetch(nil, control.Fetch, 4, control.FetchBody{Indices: []int64{6, 7, 8, 9}})
	frames := []struct{ before, frame []byte }{
		{nil, hello},
		{hello, attach},
		{pets, control.AppendFetch(nil, control.Fetch, 3, control.FetchBody{Flags: control.Send | control.Loads, Indices: []int64{1, 2, 3}})},
		{pets, control.AppendFetch(nil, control.Prefetch, 3, control.FetchBody{Indices: []int64{4, 5}})},
		{pets, control.AppendAnnounce(nil, 3, plan)},
		{pets, control.AppendAnnounce(nil, 3, blocks)},
		{pets, control.AppendAnnounce(nil, 3, told)},
		{pets, control.AppendAnnounce(nil, 3, withdrawn)},
		{loaded, control.AppendOffer(nil, 3, control.OfferBody{Index: 1, Sample: make([]byte, 8)})},
		{pets, control.AppendCancel(nil, 3)},
	}
	sweep := hostile.New(t)
	sweep.Numbers = []uint64{1 << 63, 1<<63 - 1, 1 << 32, 1<<32 - 1, samples, samples + 1, 1 << 20}
	// ends sends frames and reads until the server ends the connection, or we have sent all. It returns what the server says.
	ends := func(what string, frames []byte, silent bool) []byte {
		socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Dir() + "/" + control.DataSocket, Net: "unix"})
		fatal.If(t, err)
		defer socket.Close()
		_, _ = socket.Write(frames) // the server may have closed the connection already
		if !silent {
			_ = socket.CloseWrite()
		}
		_ = socket.SetReadDeadline(time.Now().Add(20 * time.Second))
		said, err := io.ReadAll(socket)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s: neither answered nor ended", what)
		}
		return said
	}
	for k, one := range frames {
		after := fetch
		if one.before == nil {
			after = append(bytes.Clone(attach), fetch...)
		}
		said := ends("unchanged", append(bytes.Clone(one.before), one.frame...), false)
		for len(said) > 0 {
			h, err := control.ReadHeader(bytes.NewReader(said), false)
			if err != nil || h.Type == control.Error {
				t.Fatalf("frame %d: %v, %q", k, err, said)
			}
			said = said[control.HeaderBytes+h.Length:]
		}
		sweep.Frames(one.frame, func(what string, changed []byte, cut bool) {
			all := append(bytes.Clone(one.before), changed...)
			if !cut {
				ends(what, append(all, after...), false)
			} else if len(changed) > 0 { // between frames a connection may be idle
				ends(what, all, sweep.IntN(8) == 0)
			}
		})
		if a := other.fetch(number, control.Send, shuffled(samples)...); len(a.failures) != 0 || len(a.samples) != samples {
			t.Fatalf("another client, after frame %d: %d failed, %d came", k, len(a.failures), len(a.samples))
		}
	}
	sweep.WantAll(t, true)
	fatal.Until(t, "all are forgotten", func() bool { return s.Connections() == 1 })
}
