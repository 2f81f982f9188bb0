package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
	"github.com/stocached/stocached/source/sourcetest/faults"

	"golang.org/x/sys/unix"
)

// faulty returns options of a server with a cache for each of these sources, by name. settings are
// further keys of all sources.
func faulty(t *testing.T, sources map[string]*faults.Source, parallel int, settings source.Settings) server.Options {
	t.Helper()
	o := server.Options{SocketsDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	dir := tmpfs(t)
	for name := range sources {
		one := source.Settings{"path": name}
		for key, value := range settings {
			one[key] = value
		}
		o.Caches = append(o.Caches, server.CacheOptions{Name: name, Dir: dir, Source: one, Parallel: parallel})
	}
	return server.WithSource(o, func(_ context.Context, s source.Settings) (source.Source, error) {
		return sources[s["path"].(string)], nil
	})
}

// upTo returns the indices 0..n-1.
func upTo(n int) (indices []int64) {
	for i := range int64(n) {
		indices = append(indices, i)
	}
	return indices
}

// wantMetric waits for a line of the metrics.
func wantMetric(t *testing.T, s *server.Server, line string) {
	t.Helper()
	if _, text := ask(t, s, "/metrics"); !strings.Contains(text, "\n"+line+"\n") {
		t.Errorf("no %q in\n%s", line, text)
	}
}

// A failed read is reported with the sample and the reason. The rest of the batch comes, nothing of
// the failed sample stays, and the next fetch tries again.
func TestDeviceFails(t *testing.T) {
	m := newMemory(20, 1000)
	f := faults.Wrap(m, faults.Rule{Samples: []int{7, 8}, Err: unix.EIO})
	s, _ := start(t, faulty(t, map[string]*faults.Source{"pets": f}, 2, nil))
	p := dial(t, s.Dir())
	number, seg := p.attach("pets")
	a := p.fetch(number, 0, upTo(20)...)
	for _, position := range []uint32{7, 8} {
		if g := a.failures[position]; g.Code != control.CodeRead ||
			!strings.Contains(g.Text, fmt.Sprintf("sample %d (memory %d)", position, position)) ||
			!strings.Contains(g.Text, "input/output error") {
			t.Errorf("position %d: %+v", position, g)
		}
	}
	if len(a.failures) != 2 {
		t.Errorf("%+v", a.failures)
	}
	c := view(t, seg)
	for i := range 20 {
		if i != 7 && i != 8 {
			wantReady(t, c, i, 1000)
		} else if state, err := c.State(i); state != cache.StateEmpty || err != nil {
			t.Errorf("sample %d: %v, %v", i, state, err)
		}
	}
	wantMetric(t, s, `stocached_source_errors_total{cache="pets",kind="unavailable"} 2`)
	f.Set()
	if a := p.fetch(number, 0, upTo(20)...); len(a.failures) != 0 {
		t.Errorf("when it is well again: %+v", a.failures)
	}
	wantReady(t, c, 7, 1000)
}

// With retries, rare failures of a device are not noticed. Lasting failures are reported with the
// number of tries.
func TestDeviceFailsNowAndThen(t *testing.T) {
	m := newMemory(20, 1000)
	f := faults.Wrap(m, faults.Rule{Samples: []int{3}, Times: 2, Err: unix.EIO},
		faults.Rule{Samples: []int{4}, Err: unix.EIO})
	s, _ := start(t, faulty(t, map[string]*faults.Source{"pets": f}, 2,
		source.Settings{"retry": map[string]any{"tries": 3, "seconds": 20.0}}))
	p := dial(t, s.Dir())
	number, _ := p.attach("pets")
	a := p.fetch(number, 0, upTo(6)...)
	if g := a.failures[4]; len(a.failures) != 1 || g.Code != control.CodeRead || !strings.Contains(g.Text, "tries: 3") {
		t.Errorf("%+v", a.failures)
	}
	if f.Reads(3) != 3 || f.Reads(4) != 3 || f.Reads(5) != 1 {
		t.Errorf("read %d, %d and %d times", f.Reads(3), f.Reads(4), f.Reads(5))
	}
}

// Each kind of error of a source has its code and its counter.
func TestSourceFailures(t *testing.T) {
	m := newMemory(10, 1000)
	want := map[int]struct {
		err  error
		code control.Code
		kind string
	}{
		0: {source.ErrChanged, control.CodeChanged, "changed"},
		1: {source.ErrCorrupt, control.CodeDamaged, "damaged"},
		2: {unix.ENOENT, control.CodeRead, "missing"},
		3: {unix.EACCES, control.CodeRead, "denied"},
		4: {unix.EMFILE, control.CodeRead, "descriptors"},
		5: {unix.ETIMEDOUT, control.CodeRead, "unavailable"},
		6: {errors.New("something else"), control.CodeRead, "other"},
	}
	var rules []faults.Rule
	for i, w := range want {
		rules = append(rules, faults.Rule{Samples: []int{i}, Err: w.err})
	}
	s, _ := start(t, faulty(t, map[string]*faults.Source{"pets": faults.Wrap(m, rules...)}, 2, nil))
	p := dial(t, s.Dir())
	number, _ := p.attach("pets")
	a := p.fetch(number, 0, upTo(10)...)
	if len(a.failures) != len(want) {
		t.Errorf("%+v", a.failures)
	}
	for i, w := range want {
		if g := a.failures[uint32(i)]; g.Code != w.code || !strings.Contains(g.Text, w.err.Error()) ||
			!strings.Contains(g.Text, fmt.Sprintf("memory %d", i)) {
			t.Errorf("%v: %+v", w.err, g)
		}
		wantMetric(t, s, fmt.Sprintf(`stocached_source_errors_total{cache="pets",kind=%q} 1`, w.kind))
	}
}

// When all reads of a cache hang in the device, other caches, operators, clients that give up and
// new clients go on. When the device is back, waiting clients get their answers.
func TestStuckReads(t *testing.T) {
	const parallel = 2
	stuck := make(chan struct{})
	release := sync.OnceFunc(func() { close(stuck) })
	defer release()
	hanging := faults.Wrap(newMemory(20, 1000), faults.Rule{Stuck: stuck})
	s, _ := start(t, faulty(t,
		map[string]*faults.Source{"hanging": hanging, "pets": faults.Wrap(newMemory(20, 1000))}, parallel, nil))
	waiting, gone, other := dial(t, s.Dir()), dial(t, s.Dir()), dial(t, s.Dir())
	number, seg := waiting.attach("hanging")
	id := waiting.id()
	waiting.send(control.AppendFetch(nil, control.Fetch, id, control.FetchBody{Cache: number, Indices: upTo(10)}))
	eventually(t, "all readers hang", func() bool { return hanging.Inside() == parallel })

	began := time.Now()
	number, _ = other.attach("pets")
	if a := other.fetch(number, 0, upTo(20)...); len(a.failures) != 0 {
		t.Errorf("another cache: %+v", a.failures)
	}
	number, _ = gone.attach("hanging")
	cancelled := gone.id()
	gone.send(control.AppendFetch(nil, control.Fetch, cancelled, control.FetchBody{Cache: number, Indices: upTo(12)}))
	gone.send(control.AppendCancel(nil, cancelled))
	if a := gone.answer(cancelled, 12); len(a.failures) != 12 || a.failures[0].Code != control.CodeCancelled {
		t.Errorf("a fetch that was given up: %+v", a.failures)
	}
	gone.socket.Close()
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/caches", "/v1/caches/hanging"} {
		if code, body := ask(t, s, path); code != 200 {
			t.Errorf("%s: %d\n%s", path, code, body)
		}
	}
	eventually(t, "who left is forgotten", func() bool { return s.Connections() == 2 })
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("all that took %v", took)
	}
	c := view(t, seg) // hits go on as well
	if r, err := c.Set(19, sourcetest.Content(19, 1000), 0); r != cache.Stored || err != nil {
		t.Error(r, err)
	}
	wantReady(t, c, 19, 1000)

	release()
	if a := waiting.answer(id, 10); len(a.failures) != 0 {
		t.Errorf("when the device is back: %+v", a.failures)
	}
	for i := range 10 {
		wantReady(t, c, i, 1000)
	}
}

// A slow cache does not slow down others, and serves its clients round robin.
func TestSlowSource(t *testing.T) {
	slow := faults.Wrap(newMemory(200, 1000), faults.Rule{Delay: 20 * time.Millisecond})
	s, _ := start(t, faulty(t, map[string]*faults.Source{"slow": slow, "pets": faults.Wrap(newMemory(200, 1000))}, 2,
		nil))
	much, little, other := dial(t, s.Dir()), dial(t, s.Dir()), dial(t, s.Dir())
	number, _ := much.attach("slow")
	id := much.id()
	much.send(control.AppendFetch(nil, control.Fetch, id, control.FetchBody{Cache: number, Indices: upTo(150)}))
	eventually(t, "it is at it", func() bool { return slow.Inside() == 2 })
	number, _ = other.attach("pets")
	if a := other.fetch(number, 0, upTo(200)...); len(a.failures) != 0 {
		t.Errorf("another cache: %+v", a.failures)
	}
	number, _ = little.attach("slow")
	if a := little.fetch(number, 0, 190, 191); len(a.failures) != 0 {
		t.Errorf("%+v", a.failures)
	}
	if done := slow.TotalReads(); done > 60 {
		t.Errorf("two samples came after %d reads, most of them for a client that had asked for more", done)
	}
	if a := much.answer(id, 150); len(a.failures) != 0 {
		t.Errorf("%+v", a.failures)
	}
}
