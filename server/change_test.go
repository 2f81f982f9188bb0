package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

// shelf is a set of sources, one for each value of the key id. Their samples differ.
type shelf struct {
	mu      sync.Mutex
	sources map[int]*marked
	opened  int
}

func newShelf() *shelf { return &shelf{sources: map[int]*marked{}} }

// put makes a source whose samples carry a mark.
func (s *shelf) put(id, samples, bytes int) *marked {
	m := &marked{memory: newMemory(samples, bytes), id: id}
	m.fingerprint = fmt.Sprint("shelf-", id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sources[id] = m
	return m
}

func (s *shelf) open(_ context.Context, settings source.Settings) (source.Source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _ := settings["id"].(int)
	m := s.sources[id]
	if m == nil {
		return nil, fmt.Errorf("%w: there is no source %v", source.ErrInvalid, settings["id"])
	}
	s.opened++
	return &opened{marked: m}, nil
}

// marked is a source in memory whose samples carry a mark in every byte.
type marked struct {
	*memory
	id int
}

func (m *marked) Read(ctx context.Context, i int, dst []byte) (int, error) {
	n, err := m.memory.Read(ctx, i, dst)
	for k := range dst[:n] {
		dst[k] ^= byte(m.id)
	}
	return n, err
}

func (m *marked) content(i int) []byte {
	data := sourcetest.Content(i, m.bytes)
	for k := range data {
		data[k] ^= byte(m.id)
	}
	return data
}

// opened is one opening of a marked source. After Close it reads no more.
type opened struct {
	*marked
	closed atomic.Bool
}

func (o *opened) Read(ctx context.Context, i int, dst []byte) (int, error) {
	if o.closed.Load() {
		return 0, source.ErrClosed
	}
	return o.marked.Read(ctx, i, dst)
}

func (o *opened) Close() error { o.closed.Store(true); return nil }

// onShelf returns options of a server with caches over the sources of a shelf, by name, and with
// operators.
func onShelf(t *testing.T, s *shelf, ids map[string]int) server.Options {
	t.Helper()
	dir := tmpfs.Folder(t)
	m := newMemory(1, 1)
	o := options(t, m, server.CacheOptions{Dir: dir})
	o.Caches = nil
	for name, id := range ids {
		o.Caches = append(o.Caches, server.CacheOptions{Name: name, Dir: dir, Source: source.Settings{"id": id}})
	}
	return server.WithSource(o, s.open)
}

// wantMarked checks that the cache has the sample of this source.
func wantMarked(t *testing.T, c *cache.Cache, m *marked, i int) {
	t.Helper()
	if got, hit, err := c.View(i); !hit || err != nil || !bytes.Equal(got, m.content(i)) {
		t.Errorf("sample %d: hit %v, %v, %d bytes", i, hit, err, len(got))
	}
}

// on returns a cache over a source of a shelf.
func on(name string, id int, dir string) server.CacheOptions {
	return server.CacheOptions{Name: name, Dir: dir, Source: source.Settings{"id": id}}
}

// with returns a configuration that also has these caches, each in the place of the one of its name.
func with(o server.Options, caches ...server.CacheOptions) server.Options {
	for _, c := range caches {
		o = without(o, c.Name)
		o.Caches = append(o.Caches, c)
	}
	return o
}

// without returns a configuration that does not have a cache.
func without(o server.Options, name string) server.Options {
	o.Caches = slices.DeleteFunc(slices.Clone(o.Caches), func(c server.CacheOptions) bool { return c.Name == name })
	return o
}

// reload changes a server to a configuration.
func reload(t *testing.T, s *server.Server, o server.Options) {
	t.Helper()
	expect.Works(s.Reload(t.Context(), o))(t)
}

// wantRefused checks that a server refuses a configuration with an error and these texts.
func wantRefused(t *testing.T, s *server.Server, o server.Options, want error, texts ...string) {
	t.Helper()
	_, err := s.Reload(t.Context(), o)
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
		return
	}
	for _, text := range texts {
		expect.Says(t, err.Error(), text)
	}
}

// Ensure that reloads add and remove caches while clients fetch from others, that waiting clients
// of a removed cache get an answer, and that its number is never used again.
func TestCachesComeAndGo(t *testing.T) {
	shelf := newShelf()
	pets, cats := shelf.put(1, 100, 1000), shelf.put(2, 50, 2000)
	o := onShelf(t, shelf, map[string]int{"pets": 1})
	dir := o.Caches[0].Dir
	s, _ := start(t, o)
	p, petsNumber, _ := join(t, s)

	both := with(o, server.CacheOptions{Name: "cats", Dir: dir, Source: source.Settings{"id": 2}, Parallel: 2})
	reload(t, s, both)
	made := wantRequest(t, s, "GET", "/v1/caches/cats", "", 200)
	if made["name"] != "cats" || made["samples"] != 50.0 || made["adopted"] != false {
		t.Errorf("%v", made)
	}
	number, seg := p.attach("cats")
	p.wantFetched(number, shuffled(40)...)
	c := view(t, seg)

	// Two reads are under way, and more are queued: all get an answer.
	cats.hold(t, 45)
	cats.hold(t, 46)
	id := p.startFetch(number, 45, 46, 47, 48, 1)
	fatal.Until(t, "they are being read", func() bool { return cats.begun(45) == 1 && cats.begun(46) == 1 })
	reload(t, s, o)
	a := p.answer(id, 5)
	expect.Equal(t, len(a.failures), 4, "%+v", a)
	for position, f := range a.failures {
		if f.Code != control.CodeClosing || position == 4 {
			t.Errorf("position %d: %+v", position, f)
		}
	}
	wantRequest(t, s, "GET", "/v1/caches/cats", "", 404, "it has: pets")
	p.send(control.AppendAttach(nil, p.id(), "cats"))
	if h, b := p.receive(); h.Type != control.Error || !strings.Contains(string(b), "it has: pets") {
		t.Errorf("%v %q", h.Type, b)
	}
	for i := range 40 {
		_, hit, _ := c.View(i)
		if !hit {
			continue // another sequence begins
		}
		wantMarked(t, c, cats, i)
	}
	expect.Fails(os.Stat(filepath.Join(dir, "cats")))(t, os.ErrNotExist)

	// Its number stays invalid, whatever follows.
	dogs := shelf.put(3, 50, 2000)
	reload(t, s, with(o, on("dogs", 3, dir)))
	if a := p.fetch(number, 0, 1, 47); len(a.failures) != 2 || a.failures[0].Code != control.CodeClosing ||
		a.failures[1].Code != control.CodeClosing {
		t.Errorf("a fetch from a removed cache: %+v", a)
	}
	expect.Equal(t, p.prefetch(number, 48), 0, "queued samples of a removed cache")
	if dogs.begun(47) != 0 || cats.begun(47) != 0 {
		t.Error("something was read for it")
	}
	dogsNumber, dogsSegment := p.attach("dogs")
	if dogsNumber == number || dogsNumber == petsNumber {
		t.Errorf("number %d again", dogsNumber)
	}
	p.fetch(dogsNumber, 0, 7)
	wantMarked(t, view(t, dogsSegment), dogs, 7)

	// The cache is a new one when it is served again.
	reload(t, s, both)
	again, seg2 := p.attach("cats")
	if again == number || seg2.Header.UUID == seg.Header.UUID {
		t.Errorf("number %d, segment %x, was %d and %x", again, seg2.Header.UUID, number, seg.Header.UUID)
	}
	if a := p.fetch(petsNumber, 0, shuffled(100)...); len(a.failures) != 0 || pets.begun(3) != 1 {
		t.Errorf("another cache: %+v", a)
	}
	if a := p.fetch(99, 0, 1); a.refused == nil || a.refused.Code != control.CodeNotFound {
		t.Errorf("a number that never was: %+v", a)
	}
}

// prefetch sends a PREFETCH and returns the number of queued samples.
func (p *peer) prefetch(cache uint32, indices ...int64) int {
	p.t.Helper()
	p.send(control.AppendFetch(nil, control.Prefetch, p.id(), control.FetchBody{Cache: cache, Indices: indices}))
	h, body := p.receive()
	n, err := control.ParsePrefetched(body)
	if h.Type != control.Prefetched || err != nil {
		p.t.Fatalf("%v %q %v", h.Type, body, err)
	}
	return n
}

// Ensure that a reload says what is wrong with a cache, and that nothing else changes.
func TestReloadsAreRefused(t *testing.T) {
	shelf := newShelf()
	shelf.put(1, 100, 1000)
	shelf.put(9, 1<<20, 4<<20) // 4 TiB
	o := onShelf(t, shelf, map[string]int{"pets": 1})
	dir := o.Caches[0].Dir
	s, _ := start(t, o)
	inTheWay := filepath.Join(dir, "way")
	fatal.If(t, os.WriteFile(inTheWay, []byte("no segment"), 0o600))
	// the end of the test checks for goroutines that another test left
	fatal.Until(t, "it serves", func() bool { code, _ := ask(t, s, "/readyz"); return code == 200 })
	other := onShelf(t, shelf, map[string]int{"taken": 1})
	start(t, other)
	slow := on("x", 1, dir)
	slow.ReadTimeout = 5 * time.Millisecond
	wide := on("../x", 1, dir)
	wide.Parallel = 99
	for _, c := range []struct {
		cache server.CacheOptions
		want  error
		texts []string
	}{
		{wide, shm.ErrInvalid, []string{`"../x"`}},
		{slow, shm.ErrInvalid, []string{"5ms"}},
		{on("x", 77, dir), source.ErrInvalid, []string{"cache x: invalid source: there is no source 77"}},
		{on("x", 1, "/proc"), shm.ErrInvalid, []string{"not on a tmpfs"}},
		{on("x", 1, "/dev/shm/"+strings.Repeat("x", 300)), unix.ENAMETOOLONG, nil},
		{on("x", 1, strings.Repeat("/x", 3000)), unix.ENAMETOOLONG, nil},
		{on("way", 1, dir), server.ErrPartly, []string{"not a valid segment"}},
		{on("taken", 1, other.Caches[0].Dir), server.ErrServed, []string{"another server fills this cache"}},
		{on("x", 9, dir), shm.ErrMemory, []string{"it does not fit", "x 40", "tmpfs of " + dir}},
		{on("pets", 9, dir), shm.ErrMemory, []string{"it does not fit"}},
		{on("pets", 77, dir), source.ErrInvalid, []string{"there is no source 77"}},
	} {
		wantRefused(t, s, with(o, c.cache), c.want, c.texts...)
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		wantRequest(t, s, method, "/v1/caches/pets", "{}", 404, "there are: GET /v1/caches")
	}
	expect.Equal(t, s.Caches(), 1, "caches")
	if text, err := os.ReadFile(inTheWay); err != nil || string(text) != "no segment" {
		t.Errorf("a file that is not ours was touched: %q, %v", text, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	p, number, seg := join(t, s)
	p.wantFetched(number, 3)
	wantMarked(t, view(t, seg), shelf.sources[1], 3)
}

// Ensure that a cold cache with other data or size replaces a cache, that old clients get an
// answer, and that the segment stays if another way leads to the same data.
func TestReplace(t *testing.T) {
	shelf := newShelf()
	one, two := shelf.put(1, 100, 1000), shelf.put(2, 100, 1000)
	o := onShelf(t, shelf, map[string]int{"pets": 1})
	dir := o.Caches[0].Dir
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	s, stop := start(t, o)
	p, number, seg := join(t, s)
	p.fetch(number, 0, shuffled(60)...)
	c := view(t, seg)

	// The same data with other read settings: the segment stays, and a fetch under way goes on.
	release := one.hold(t, 70)
	id := p.startFetch(number, 70, 71, 72, 73, 74, 75, 76)
	fatal.Until(t, "it is being read", func() bool { return one.begun(70) == 1 })
	reload(t, s, with(o, server.CacheOptions{Name: "pets", Dir: dir, Source: source.Settings{"id": 1, "way": 2}, Parallel: 9}))
	release()
	if a := p.answer(id, 7); len(a.failures) != 0 {
		t.Errorf("%+v", a)
	}
	answer := wantRequest(t, s, "GET", "/v1/caches/pets", "", 200)
	if answer["uuid"] != fmt.Sprintf("%x", seg.Header.UUID) || shelf.opened != 2 {
		t.Errorf("%v; opened %d times", answer, shelf.opened)
	}
	// More reads at a time, and then fewer.
	for _, parallel := range []int{9, 2} {
		reload(t, s, with(o, server.CacheOptions{Name: "pets", Dir: dir, Source: source.Settings{"id": 1}, Parallel: parallel}))
		first := 80
		if parallel == 2 {
			first = 90
		}
		var releases []func()
		var indices []int64
		for i := range 10 {
			releases = append(releases, one.hold(t, first+i))
			indices = append(indices, int64(first+i))
		}
		id := p.startFetch(number, indices...)
		begun := func() (n int) {
			for i := range 10 {
				n += one.begun(first + i)
			}
			return n
		}
		fatal.Until(t, fmt.Sprint(parallel, " are being read"), func() bool { return begun() == parallel })
		time.Sleep(20 * time.Millisecond)
		expect.Equal(t, begun(), parallel, "reads at a time")
		for _, release := range releases {
			release()
		}
		p.answer(id, 10)
	}

	// Other data: a cold cache.
	reload(t, s, with(o, on("pets", 2, dir)))
	if a := p.fetch(number, 0, 5); len(a.failures) != 1 || a.failures[0].Code != control.CodeClosing {
		t.Errorf("of the old one: %+v", a)
	}
	for i := range 60 {
		if _, hit, _ := c.View(i); hit {
			wantMarked(t, c, one, i) // attached clients keep the old one
		}
	}
	now, segNow := p.attach("pets")
	if now == number || segNow.Header.UUID == seg.Header.UUID {
		t.Error("the old one again")
	}
	fresh := view(t, segNow)
	if stats, err := fresh.Stats(); err != nil || stats.Ready != 0 {
		t.Errorf("%d samples, %v: a cold cache has none", stats.Ready, err)
	}
	p.fetch(now, 0, 5)
	wantMarked(t, fresh, two, 5)

	// Another size, then another folder: a cold cache each time, and the old file is removed.
	slots := segNow.Slots
	small := on("pets", 2, dir)
	small.Size = 4250000
	reload(t, s, with(o, small))
	if a := wantRequest(t, s, "GET", "/v1/caches/pets", "", 200); a["slots"] == float64(slots) || a["slots"] == 0.0 {
		t.Errorf("%v", a)
	}
	elsewhere := tmpfs.Folder(t)
	reload(t, s, with(o, on("pets", 2, elsewhere)))
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v", left)
	}
	expect.Works(os.Stat(filepath.Join(elsewhere, "pets")))(t)
	stop()
	expect.Says(t, log.String(), "its size is all, the configuration says 4250000 bytes")
	if shelf.opened < 4 {
		t.Errorf("opened %d times", shelf.opened)
	}
}

// Ensure that clients get right bytes, or the answer that a cache closes, while reloads
// change the server, and that all ends without an error.
func TestChangesUnderLoad(t *testing.T) {
	shelf := newShelf()
	const ids = 5
	for id := range ids {
		shelf.put(id, 200, 700).latency = 20 * time.Microsecond
	}
	o := onShelf(t, shelf, map[string]int{"still": 0, "a": 1, "b": 2})
	dir := o.Caches[0].Dir
	s, stop := start(t, o)
	done := make(chan struct{})
	var clients, operators sync.WaitGroup
	var fetched, told atomic.Int64
	client := func(name string) {
		p := dial(t, s.Dir())
		defer p.socket.Close()
		type seen struct {
			number uint32
			cache  *cache.Cache
			mark   *marked
		}
		var all []seen
		for {
			select {
			case <-done:
				return
			default:
			}
			if len(all) == 0 || rand.IntN(10) == 0 {
				number, seg, ok := p.tryAttach(name)
				if !ok {
					continue
				}
				defer seg.Close()
				c, err := cache.Attach(seg, cache.Options{})
				if errors.Is(err, shm.ErrNotFound) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				var id int
				fmt.Sscanf(seg.Header.Fingerprint, "shelf-%d", &id)
				all = append(all, seen{number, c, shelf.sources[id]})
				if len(all) > 100 { // a slow machine reads for longer, and a cache has 1,024 client records
					all[0].cache.Close()
					all = all[1:]
				}
			}
			one := all[rand.IntN(len(all))] // also the removed ones
			indices := shuffled(200)[:20]
			a := p.fetch(one.number, 0, indices...)
			if a.refused != nil || len(a.samples) != 0 {
				t.Errorf("%+v", a)
				return
			}
			for k, i := range indices {
				f, failed := a.failures[uint32(k)]
				switch {
				case failed && f.Code == control.CodeClosing && name != "still":
					told.Add(1)
				case failed:
					t.Errorf("%s: %+v", name, f)
					return
				default:
					fetched.Add(1)
					wantMarked(t, one.cache, one.mark, int(i))
				}
			}
		}
	}
	for _, name := range []string{"still", "still", "a", "a", "b"} {
		clients.Go(func() { client(name) })
	}
	for seed := range uint64(2) {
		operators.Go(func() {
			r := rand.New(rand.NewPCG(seed, 7))
			for range 8 {
				next := o
				for _, name := range []string{"a", "b"} {
					next = without(next, name)
					if r.IntN(4) > 0 {
						next = with(next, on(name, 1+r.IntN(ids-1), dir))
					}
				}
				if _, err := s.Reload(t.Context(), next); err != nil && !strings.Contains(err.Error(), "another reload changed") {
					t.Error(err)
				}
				ask(t, s, "/metrics")
			}
		})
	}
	operators.Wait()
	close(done)
	clients.Wait()
	if fetched.Load() == 0 || told.Load() == 0 {
		t.Errorf("%d samples fetched, %d told of a removal: that shows little", fetched.Load(), told.Load())
	}
	stop()
}

// Ensure that a source that hangs in open blocks no other change, and that the end of its reload ends it.
func TestSourceThatHangsWhileItIsOpened(t *testing.T) {
	shelf := newShelf()
	shelf.put(1, 100, 1000)
	o := onShelf(t, shelf, map[string]int{"pets": 1})
	dir := o.Caches[0].Dir
	opening := make(chan struct{}, 1)
	o = server.WithSource(o, func(ctx context.Context, settings source.Settings) (source.Source, error) {
		if settings["id"] == 99 {
			opening <- struct{}{}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return shelf.open(ctx, settings)
	})
	s, stop := start(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan error, 1)
	go func() {
		_, err := s.Reload(ctx, with(o, on("slow", 99, dir)))
		told <- err
	}()
	<-opening
	reload(t, s, with(o, on("cats", 1, dir)))
	reload(t, s, with(o, server.CacheOptions{Name: "cats", Dir: dir, Source: source.Settings{"id": 1}, Parallel: 3}))
	reload(t, s, o)
	cancel()
	expect.Error(t, <-told, context.Canceled)
	stop()
}

// Ensure that a reload opens a source again that a read has found changed, though its settings are the same, and that an
// empty cache takes the place of the old one.
func TestReloadOfAChangedSource(t *testing.T) {
	shelf := newShelf()
	old := shelf.put(1, 100, 1000)
	o := onShelf(t, shelf, map[string]int{"pets": 1})
	s, _ := start(t, o)
	p, number, seg := join(t, s)
	p.fetch(number, 0, 1, 2)
	opened := shelf.opened
	reload(t, s, o)
	if shelf.opened != opened {
		t.Errorf("%d sources were opened again that have not changed", shelf.opened-opened)
	}
	old.fails[3] = source.ErrChanged
	if a := p.fetch(number, 0, 3); len(a.failures) != 1 || a.failures[0].Code != control.CodeChanged {
		t.Fatalf("%+v", a)
	}
	now := shelf.put(1, 50, 1000)
	now.fingerprint = "changed"
	reload(t, s, o)
	number, fresh := p.attach("pets")
	if fresh.Header.UUID == seg.Header.UUID || fresh.Header.Fingerprint != "changed" {
		t.Errorf("the old one again: %s", fresh.Header.Fingerprint)
	}
	p.fetch(number, 0, 3)
	wantMarked(t, view(t, fresh), now, 3)
}
