package server_test

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"
)

// programsOptions are those of a cache whose samples of 8 bytes programs load.
func programsOptions(t *testing.T) server.Options {
	return server.Options{SocketsDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Caches: []server.CacheOptions{{Name: "loaded", Dir: tmpfs(t),
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
	if got := a.failures[position].Code; got != code {
		t.Fatalf("position %d: %v, want %v", position, got, code)
	}
}
