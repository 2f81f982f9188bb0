package server_test

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
)

// programsOptions are those of a cache whose samples of 8 bytes programs load.
func programsOptions(t *testing.T) server.Options {
	return server.Options{SocketsDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Caches: []server.CacheOptions{{Name: "loaded", Dir: tmpfs.Folder(t),
		Parallel: 4, Source: source.Settings{"kind": "none", "samples": 100, "fingerprint": "x",
			"fields": []any{map[string]any{"name": "data", "shape": []any{8}, "dtype": "uint8"}}}}}}
}

// Ensure that a client whose sample another client loads gets its answer when this load ends, in whatever way, and
// not before; and at once if it has something to load itself, or cancels.
func TestAnswersWaitForLoads(t *testing.T) {
	for name, end := range map[string]func(loader, waiter *peer, cache uint32, id uint64){
		"offered": func(l, _ *peer, cache uint32, _ uint64) {
			l.send(control.AppendOffer(nil, l.id(), control.OfferBody{Cache: cache, Index: 5, Sample: make([]byte, 8)}))
		},
		"failed": func(l, _ *peer, cache uint32, _ uint64) {
			l.send(control.AppendOffer(nil, l.id(), control.OfferBody{Cache: cache, Index: 5, Flags: control.Failed}))
		},
		"gone":      func(l, _ *peer, _ uint32, _ uint64) { l.socket.Close() },
		"cancelled": func(_, w *peer, _ uint32, id uint64) { w.send(control.AppendCancel(nil, id)) },
	} {
		t.Run(name, func(t *testing.T) {
			server.SetLongestWait(t, time.Hour)
			o := programsOptions(t)
			loads, cache, waits, theirs := twoPrograms(t, o)
			wantCode(t, loads.fetch(cache, control.Loads, 5), 0, control.CodeLoad)
			id := waits.id()
			waits.send(control.AppendFetch(nil, control.Fetch, id, control.FetchBody{Cache: theirs, Flags: control.Loads, Indices: []int64{5}}))
			for k := range int64(50) { // an answer to the first request would be in the way
				wantCode(t, waits.fetch(theirs, control.Loads, 10+k), 0, control.CodeLoad)
			}
			end(loads, waits, theirs, id)
			wantCode(t, waits.answer(id, 1), 0, control.CodeLoading)
			if name != "cancelled" {
				wantCode(t, waits.fetch(theirs, control.Loads, 5), 0, control.CodeLoad) // nothing stores it in this test
			}
			third := dial(t, o.SocketsDir)
			number, _ := third.attach("loaded")
			a := third.fetch(number, control.Loads, 5, 90)
			wantCode(t, a, 0, control.CodeLoading)
			wantCode(t, a, 1, control.CodeLoad)
		})
	}
}

// Ensure that a server ends although an answer waits, and gives it.
func TestServerEndsWhileAnAnswerWaits(t *testing.T) {
	server.SetLongestWait(t, time.Hour)
	o := programsOptions(t)
	_, stop := start(t, o)
	loads, waits := dial(t, o.SocketsDir), dial(t, o.SocketsDir)
	cache, _ := loads.attach("loaded")
	theirs, _ := waits.attach("loaded")
	wantCode(t, loads.fetch(cache, control.Loads, 5), 0, control.CodeLoad)
	id := waits.id()
	waits.send(control.AppendFetch(nil, control.Fetch, id, control.FetchBody{Cache: theirs, Flags: control.Loads, Indices: []int64{5}}))
	wantCode(t, waits.fetch(theirs, control.Loads, 6), 0, control.CodeLoad)
	stop()
	wantCode(t, waits.answer(id, 1), 0, control.CodeLoading)
}

// Ensure that an answer that waits comes after a time.
func TestAnswersDoNotWaitForEver(t *testing.T) {
	server.SetLongestWait(t, time.Millisecond)
	loads, cache, waits, theirs := twoPrograms(t, programsOptions(t))
	wantCode(t, loads.fetch(cache, control.Loads, 5), 0, control.CodeLoad)
	wantCode(t, waits.fetch(theirs, control.Loads, 5), 0, control.CodeLoading)
}

// Ensure that one program at a time may make a sample of a format that the source does not decode, that the cache keeps
// what it makes, and that clients that decode nothing get the format, or the reason of a file that is damaged. The source
// reads each file once.
func TestOtherFormats(t *testing.T) {
	m := newMemory(30, 1000)
	m.formats = true
	kind := func(i int, unknown, out bool) error {
		return &source.KindError{Where: fmt.Sprintf("%d.x", i), Reason: "a GIF file", Unknown: unknown, MayLeaveOut: out}
	}
	m.fails = map[int]error{4: kind(4, false, true), 5: kind(5, true, true), 6: kind(6, true, false), 7: kind(7, false, false)}
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 2}))
	p, mine, c := attachTo(t, s)
	q, theirs, _ := join(t, s)
	kinds := func(want ...control.Code) {
		t.Helper()
		a := p.fetch(mine, 0, 4, 5, 6, 7)
		for k, code := range want {
			if code != 0 {
				wantCode(t, a, uint32(k), code)
			} else if f, failed := a.failures[uint32(k)]; failed {
				t.Error(f)
			}
		}
	}
	kinds(control.CodeKind, control.CodeBad, control.CodeDamaged, control.CodeKind)
	expect.Equal(t, p.fetch(mine, 0, 7).failures[0].Text, "memory 7 does not decode: a GIF file", "")
	a := p.fetch(mine, control.Loads, 4, 5, 6, 7, 8)
	for k := range uint32(4) {
		wantCode(t, a, k, control.CodeLoad)
	}
	wantCode(t, q.fetch(theirs, control.Loads, 4), 0, control.CodeLoading)
	wantCode(t, p.fetch(mine, control.File, 8), 0, control.CodeInvalid) // this source has no files
	offer := func(i int, flags uint32, data []byte) {
		id := p.id()
		p.send(control.AppendOffer(nil, id, control.OfferBody{Cache: mine, Index: int64(i), Flags: flags, Sample: data}))
		if h, _ := p.receive(); h.Type != control.Offered || h.Request != id {
			t.Fatal(h)
		}
	}
	offer(5, 0, sourcetest.Content(5, 1000))
	expect.Gives(c.State(5))(t, cache.StateReady)
	if cost := make([]cache.Cost, 1); c.Costs(5, cost) != nil || cost[0] == 0 {
		t.Error("no cost")
	}
	offer(4, control.Damaged, []byte("it is cut"))
	offer(7, control.Damaged, []byte("it is cut"))
	offer(6, control.Failed, nil)
	offer(9, control.Damaged, []byte("a lie"))
	kinds(control.CodeBad, 0, control.CodeDamaged, control.CodeDamaged)
	wantCode(t, q.fetch(theirs, control.Loads, 4), 0, control.CodeBad)
	for _, i := range []int64{6, 7} { // other programs may try these
		wantCode(t, q.fetch(theirs, control.Loads, i), 0, control.CodeLoad)
	}
	if a := q.fetch(theirs, control.Send, 9); len(a.failures) != 0 {
		t.Error(a.failures)
	}
	if m.begun(4) != 1 || m.begun(5) != 1 || m.begun(7) != 1 {
		t.Error(m.begun(4), m.begun(5), m.begun(7))
	}
	expect.Equal(t, about(t, s)["bad_samples"], 1.0, "")
}

// twoPrograms starts a server and connects two programs to its cache of samples that programs load.
func twoPrograms(t *testing.T, o server.Options) (loads *peer, cache uint32, waits *peer, theirs uint32) {
	t.Helper()
	start(t, o)
	loads, waits = dial(t, o.SocketsDir), dial(t, o.SocketsDir)
	cache, _ = loads.attach("loaded")
	theirs, _ = waits.attach("loaded")
	return loads, cache, waits, theirs
}

func wantCode(t *testing.T, a answer, position uint32, code control.Code) {
	t.Helper()
	fatal.Equal(t, a.failures[position].Code, code, "position %d", position)
}
