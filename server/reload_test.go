package server_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
)

// Ensure that a server and a check of its configuration refuse caches that do not fit together,
// with the numbers, before one of them is made.
func TestCachesMustFit(t *testing.T) {
	shelf := newShelf()
	for id := range 4 {
		shelf.put(id, 1000, 10<<10) // 14 MiB each
	}
	shelf.put(9, 1<<20, 4<<20) // 4 TiB
	base := onShelf(t, shelf, map[string]int{"a": 1, "b": 2})
	dir := base.Caches[0].Dir
	o := base
	o.Total = 20 << 20
	wantNoRoom(t, dir, o, "the caches of this server are 27", "a 13.8 MiB", "b 13.8 MiB", "limits.total is 20.0 MiB")
	wantNoRoom(t, dir, with(base, on("huge", 9, dir)), "new segments of 40", "huge 40", "a 13.8 MiB", "the tmpfs of "+dir,
		"headroom", "enlarge the tmpfs")
	// Caches that fit are served. A cache added at run time must fit beside them, and a removed one
	// frees its memory.
	o.Total = 32 << 20
	expect.Works(server.Check(context.Background(), o))(t)
	s, _ := start(t, o)
	three := with(o, on("c", 3, dir))
	wantRefused(t, s, three, shm.ErrMemory, "41.3 MiB in all", "a 13.8 MiB", "b 13.8 MiB",
		"c 13.8 MiB", "limits.total is 32.0 MiB")
	reload(t, s, without(three, "a"))
}

// Ensure that a reload applies what differs and leaves the rest.
func TestReload(t *testing.T) {
	shelf := newShelf()
	for id := range 5 {
		shelf.put(id, 100, 1000)
	}
	o := onShelf(t, shelf, map[string]int{"same": 1, "faster": 2, "other": 3, "leaves": 4})
	dir := o.Caches[0].Dir
	s, _ := start(t, o)
	p := dial(t, s.Dir())
	type attached struct {
		number uint32
		uuid   [16]byte
	}
	now := func() map[string]attached {
		all := map[string]attached{}
		for _, name := range []string{"same", "faster", "other", "leaves", "comes"} {
			if number, seg, ok := p.tryAttach(name); ok {
				all[name] = attached{number, seg.Header.UUID}
				seg.Close()
			}
		}
		return all
	}
	before := now()
	for _, a := range before {
		p.fetch(a.number, 0, shuffled(100)...)
	}
	cache := func(name string, id, parallel int) server.CacheOptions {
		return server.CacheOptions{Name: name, Dir: dir, Source: source.Settings{"id": id}, Parallel: parallel}
	}
	next := o
	next.Caches = []server.CacheOptions{cache("same", 1, 0), cache("faster", 2, 20), cache("other", 0, 0),
		cache("comes", 3, 0)}

	opened := shelf.opened
	did, err := s.Reload(context.Background(), next)
	if want := (server.Changes{Added: []string{"comes"}, Changed: []string{"faster", "other"},
		Removed: []string{"leaves"}}); err != nil || !reflect.DeepEqual(did, want) {
		t.Fatalf("%+v, want %+v: %v", did, want, err)
	}
	if shelf.opened != opened+2 {
		t.Errorf("%d sources were opened for two that are new", shelf.opened-opened)
	}
	after := now()
	for _, name := range []string{"same", "faster"} {
		expect.Equal(t, after[name], before[name], "%s", name)
	}
	if _, there := after["leaves"]; there || after["other"].uuid == before["other"].uuid ||
		after["comes"].uuid == [16]byte{} {
		t.Errorf("%v, before %v", after, before)
	}
	expect.Fails(os.Stat(filepath.Join(dir, "leaves")))(t, os.ErrNotExist)
	p.wantFetched(before["same"].number, shuffled(100)...)
}

// Ensure that an unused cache is emptied after remove_unused, if that is set, and that new clients
// get it again.
func TestRemoveUnused(t *testing.T) {
	server.SetJanitorPause(t, 50*time.Millisecond)
	shelf := newShelf()
	pets := shelf.put(1, 100, 100<<10)
	shelf.put(2, 100, 100<<10)
	o := onShelf(t, shelf, map[string]int{"pets": 1, "kept": 2})
	for k := range o.Caches {
		if o.Caches[k].Name == "pets" {
			o.Caches[k].RemoveUnused = time.Second
		}
	}
	s, _ := start(t, o)
	path := filepath.Join(o.Caches[0].Dir, "pets")
	allocated := func() uint64 {
		seg, err := shm.Open(path, shm.OpenOptions{ReadOnly: true})
		if errors.Is(err, shm.ErrNotFound) {
			return 0 // just between the two
		}
		fatal.If(t, err)
		defer seg.Close()
		n := fatal.Value(seg.AllocatedBytes())(t)
		return n
	}
	p, q := dial(t, s.Dir()), dial(t, s.Dir())
	number, seg := p.attach("pets")
	kept, _ := q.attach("kept")
	first := seg.Header.UUID
	p.fetch(number, 0, shuffled(100)...)
	q.fetch(kept, 0, shuffled(100)...)
	full := allocated()
	if full < 10<<20 {
		t.Fatalf("%d bytes", full)
	}
	// A connection uses it, and so does a client without a connection.
	time.Sleep(1500 * time.Millisecond)
	fatal.Equal(t, allocated(), full, "bytes of a cache that a connection has")
	c := view(t, seg)
	p.socket.Close()
	q.socket.Close()
	time.Sleep(1500 * time.Millisecond)
	fatal.Equal(t, allocated(), full, "bytes of a cache that a client has")
	left := time.Now()
	c.Close()
	seg.Close()
	fatal.Until(t, "it is emptied", func() bool { return allocated() < full/2 && allocated() > 0 })
	if took := time.Since(left); took < time.Second {
		t.Errorf("after %v", took)
	}
	p = dial(t, s.Dir())
	number, seg = p.attach("pets")
	if seg.Header.UUID == first {
		t.Error("it is the old one")
	}
	p.fetch(number, 0, 7)
	c = view(t, seg)
	wantMarked(t, c, pets, 7)
	c.Close()
	expect.Equal(t, pets.begun(7), 2, "reads")
	a := wantRequest(t, s, "GET", "/v1/caches/kept", "", 200)
	expect.Equal(t, a["stats"].(map[string]any)["ready"], 100.0, "the other one: %v", a)
	// An empty cache is left alone.
	p.socket.Close()
	empty := func() (uuid [16]byte) {
		now, err := shm.Open(path, shm.OpenOptions{ReadOnly: true})
		if err == nil {
			uuid = now.Header.UUID
			now.Close()
		}
		return uuid
	}
	second := seg.Header.UUID
	seg.Close()
	fatal.Until(t, "it is emptied again", func() bool { now := empty(); return now != second && now != [16]byte{} })
	third := empty()
	time.Sleep(1500 * time.Millisecond)
	expect.Equal(t, empty(), third, "the empty cache")
}
