package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
)

// in puts all caches of a server into a folder.
func in(dir string, o server.Options) server.Options {
	for k := range o.Caches {
		o.Caches[k].Dir = dir
	}
	return o
}

// wantNoRoom checks that a server and a check of its configuration both report that the caches do
// not fit, and make nothing.
func wantNoRoom(t *testing.T, dir string, o server.Options, texts ...string) {
	t.Helper()
	s, err := server.New(context.Background(), o)
	if err == nil {
		s.Serve(done())
	}
	_, checked := server.Check(context.Background(), o)
	for _, err := range []error{err, checked} {
		for _, want := range texts {
			if !errors.Is(err, shm.ErrMemory) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q", err, want)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("there is %v, %v", left, err)
	}
}

// Ensure that caches are made in a small tmpfs only if all of them fit together, even if each fits
// alone. A cache that is removed or replaced frees its memory.
func TestSmallTmpfs(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=40m")
	shelf := newShelf()
	for id := 1; id <= 3; id++ {
		shelf.put(id, 1000, 10<<10) // 13.8 MiB each; 36 of 40 are usable
	}
	shelf.put(4, 2000, 10<<10) // 23.5 MiB
	wantNoRoom(t, dir, in(dir, onShelf(t, shelf, map[string]int{"a": 1, "b": 2, "c": 3})),
		"new segments of 41.3 MiB are needed", "a 13.8 MiB", "c 13.8 MiB", "41943040 bytes (40.0 MiB) free",
		"4194304 bytes (4.0 MiB) of headroom", "leaves 37748736 bytes (36.0 MiB)")

	o := in(dir, onShelf(t, shelf, map[string]int{"a": 1, "b": 2}))
	s, stop := start(t, o)
	wantRefused(t, s, with(o, on("c", 3, dir)), shm.ErrMemory, "new segments of 13.8 MiB",
		"that other caches (2) have yet to fill")
	p := dial(t, s.Dir())
	number, seg := p.attach("a")
	p.fetch(number, 0, shuffled(1000)...)
	c := view(t, seg)
	// a client has the existing cache
	wantRefused(t, s, with(o, on("a", 4, dir)), shm.ErrMemory, "new segments of 23.5 MiB", "a 23.5 MiB")
	wantMarked(t, c, shelf.sources[1], 7)
	wantRequest(t, s, "GET", "/v1/caches/a", "", 200)
	o = without(o, "b")
	reload(t, s, o)
	wantRefused(t, s, with(o, on("a", 4, dir)), shm.ErrMemory, "a 23.5 MiB")
	p.wantFetched(number, shuffled(1000)...)
	// When no client has the old cache, the new one gets its memory: 13.8 MiB filled and 23.5 more
	// would not fit.
	c.Close()
	seg.Close()
	p.socket.Close()
	fatal.Until(t, "the connection is gone", func() bool { return s.Connections() == 0 })
	reload(t, s, with(o, on("a", 4, dir)))
	p = dial(t, s.Dir())
	number, seg = p.attach("a")
	if a := p.fetch(number, 0, shuffled(2000)...); len(a.failures) != 0 || len(a.samples) != 0 {
		t.Errorf("%d failed, %d without a slot", len(a.failures), len(a.samples))
	}
	wantMarked(t, view(t, seg), shelf.sources[4], 1999)
	stop()
	// An existing, full cache needs no new memory.
	start(t, in(dir, onShelf(t, shelf, map[string]int{"a": 4})))
}

// Ensure that messages stay short when a server has many caches.
func TestManyCachesThatDoNotFit(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=40m")
	shelf, caches := newShelf(), map[string]int{}
	shelf.put(1, 1000, 10<<10)
	for k := range 23 {
		caches[fmt.Sprintf("c%02d", k)] = 1
	}
	wantNoRoom(t, dir, in(dir, onShelf(t, shelf, caches)), "13.8 MiB, and 3 more)")
}

// Ensure that the memory must be enough for all caches together, even if a tmpfs would hold them.
func TestCachesMustFitIntoMemory(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=100000g")
	room := fatal.Value(shm.RoomIn(dir))(t)
	shelf := newShelf()
	const sample = 1 << 20
	shelf.put(1, int(room.Memory.Left*6/10/sample), sample)
	shelf.put(2, int(room.Memory.Left*6/10/sample), sample)
	for _, alone := range []map[string]int{{"a": 1}, {"b": 2}} {
		expect.Works(server.Check(context.Background(), in(dir, onShelf(t, shelf, alone))))(t)
	}
	o := in(dir, onShelf(t, shelf, map[string]int{"a": 1, "b": 2}))
	wantNoRoom(t, dir, o, "the caches of this server may still take", "available of", "floor of", "more memory")
	o.Caches = o.Caches[:1]
	s, _ := start(t, o)
	other := map[string]int{"a": 2, "b": 1}[o.Caches[0].Name]
	wantRefused(t, s, with(o, on("other", other, dir)), shm.ErrMemory, "may still take", "other ")
}
