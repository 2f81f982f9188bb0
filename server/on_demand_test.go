package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"
)

// demand is a server on demand whose sources a test chooses.
type demand struct {
	*server.Server
	state  atomic.Pointer[memory] // what each address has now
	gate   atomic.Pointer[chan struct{}]
	opened atomic.Int32
	keys   atomic.Value // the last ones
	ended  chan struct{}
	stop   func()
}

func newDemand(t *testing.T, idle time.Duration) *demand {
	t.Helper()
	server.SetJanitorPause(t, 10*time.Millisecond)
	d := &demand{ended: make(chan struct{})}
	d.state.Store(newMemory(10, 100))
	ended := sync.OnceFunc(func() { close(d.ended) })
	o := server.Options{SocketsDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		OnDemand: &server.OnDemand{Idle: idle, End: ended, Keys: func(id, secret, token string) { d.keys.Store(id + secret + token) }}}
	d.Server, d.stop = start(t, server.WithSource(o, func(ctx context.Context, s source.Settings) (source.Source, error) {
		d.opened.Add(1)
		if gate := d.gate.Load(); gate != nil {
			tries := source.RetriesOf(ctx)
			tries.Begin()
			tries.Failed(source.ErrUnavailable)
			<-*gate
			tries.End()
		}
		switch s["path"] {
		case "s3://b/missing":
			return nil, fmt.Errorf("list: %w", fs.ErrNotExist)
		case "s3://b/closed":
			return nil, fmt.Errorf("list: %w", fs.ErrPermission)
		case "s3://b/away":
			return nil, errors.New("no answer")
		}
		return d.state.Load(), source.CheckElsewhere(ctx, "deep/a.CSV")
	}))
	return d
}

func (d *demand) open(t *testing.T, path, keys string) string {
	t.Helper()
	answer := wantRequest(t, d.Server, "POST", "/v1/open", fmt.Sprintf(`{"source": {"kind": "dir", "path": %q}, "keys": %s}`, path, keys), http.StatusOK)
	name, _ := answer["name"].(string)
	return name
}

func TestAnAddressIsACacheWithANameOfItsData(t *testing.T) {
	d := newDemand(t, time.Hour)
	name := d.open(t, "s3://b/x y/t-{0..1}.tar", "null")
	if !strings.HasPrefix(name, "b-x-y-t--0--1--tar-") {
		t.Errorf("the cache is named %s", name)
	}
	if again := d.open(t, "s3://b/x y/t-{0..1}.tar", "null"); again != name || d.Caches() != 1 {
		t.Errorf("the same data are %s, then %s, in %d caches", name, again, d.Caches())
	}
	other := newMemory(10, 100)
	other.fingerprint = "memory-2"
	d.state.Store(other)
	if changed := d.open(t, "s3://b/x y/t-{0..1}.tar", "null"); changed == name || d.Caches() != 2 {
		t.Errorf("other data have the name %s too, in %d caches", changed, d.Caches())
	}
	other.notes = []source.Note{{Name: source.ClassesNote, Text: `["cat","dog"]`}, {Name: "x", Text: "do it", Data: true}, {Name: "y", Text: "no"}}
	_, answer := tell(t, d.Server, "POST", "/v1/open", `{"source": {"kind": "dir", "path": "s3://b/labelled"}}`)
	if got := strings.Join(strings.Fields(answer), " "); !strings.HasSuffix(got, `"classes": [ "cat", "dog" ], "advice": [ "do it" ] }`) {
		t.Errorf("the program gets %s", got)
	}
	p := dial(t, d.Dir())
	number, _ := p.attach(name)
	p.wantFetched(number, upTo(10)...)
	if hidden := d.open(t, "https://user:secret@host/x?token=secret", "null"); strings.Contains(hidden, "secret") || strings.Contains(hidden, "user") {
		t.Errorf("the name %s has a secret", hidden)
	}
}

func TestFilesThatTheProgramReadsItselfOpenNoCache(t *testing.T) {
	d := newDemand(t, time.Hour)
	for pattern, want := range map[string]string{`(?i)\\.csv$`: `{ "file": "deep/a.CSV" }`, `\\.csv$`: `{ "name": "b-x-`, `(`: "files: error parsing"} {
		_, answer := tell(t, d.Server, "POST", "/v1/open", fmt.Sprintf(`{"source": {"kind": "dir", "path": "s3://b/x"}, "files": "%s"}`, pattern))
		if got := strings.Join(strings.Fields(answer), " "); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", pattern, got, want)
		}
	}
	expect.Equal(t, d.Caches(), 1, "caches")
}

func TestSamplesPassThroughASmallSegment(t *testing.T) {
	d := newDemand(t, time.Hour)
	for _, variable := range []bool{false, true} {
		m := newMemory(2000, 100_000)
		m.variable, m.fingerprint = variable, fmt.Sprint(variable)
		d.state.Store(m)
		p := dial(t, d.Dir())
		number, segment := p.attach(d.open(t, "s3://b/large", "null"))
		p.wantFetched(number, upTo(200)...)
		if n, err := segment.AllocatedBytes(); err != nil || n > 9<<20 {
			t.Errorf("variable %v: the segment has %d bytes of 20 MB that were read, %v", variable, n, err)
		}
	}
}

func TestOpensAtOneTimeShareOneList(t *testing.T) {
	d := newDemand(t, time.Hour)
	gate := make(chan struct{})
	d.gate.Store(&gate)
	var opens sync.WaitGroup
	names := make([]string, 8)
	for k := range names {
		opens.Go(func() { names[k] = d.open(t, "s3://b/x", "null") })
	}
	fatal.Until(t, "a program opens the address", func() bool { return d.opened.Load() == 1 })
	time.Sleep(50 * time.Millisecond) // the others wait for the first one by now, or open after it
	close(gate)
	opens.Wait()
	for _, name := range names {
		expect.Equal(t, name, names[0], "a cache of the programs, which have %v", names)
	}
	if n := d.opened.Load(); n == 8 || d.Caches() != 1 {
		t.Errorf("8 programs made %d lists and %d caches", n, d.Caches())
	}
}

// While an address, or a cache of a reload, opens with tries that fail, health and metrics say so.
func TestWhatFailsWhileASourceOpens(t *testing.T) {
	d := newDemand(t, time.Hour)
	gate := make(chan struct{})
	d.gate.Store(&gate)
	wantLine := func(line string) {
		t.Helper()
		if _, text := ask(t, d.Server, "/readyz"); !strings.Contains(text, line) {
			t.Errorf("health lacks %q:\n%s", line, text)
		}
	}
	opened := make(chan int)
	open := func() {
		code, _ := tell(t, d.Server, "POST", "/v1/open", `{"source": {"kind": "dir", "path": "s3://b/away"}}`)
		opened <- code
	}
	go open()
	fatal.Until(t, "the server says what fails", func() bool {
		_, text := ask(t, d.Server, "/readyz")
		return strings.Contains(text, "failing: cache b-away-") && strings.Contains(text, "fail (unavailable): first ")
	})
	wantLine("reads that have failed and will be tried again: 1")
	_, text := ask(t, d.Server, "/metrics")
	if !regexp.MustCompile(`stocached_retrying_reads\{cache="b-away-\w+"\} 1\n`).MatchString(text) ||
		!regexp.MustCompile(`failing_seconds\{cache="b-away-\w+",kind="unavailable"\} (0\.|[1-9])`).MatchString(text) {
		t.Error(text)
	}
	close(gate)
	expect.Equal(t, <-opened, http.StatusBadGateway, "")
	wantLine("reads fail (unavailable)") // for a minute, as the log has it
	gate = make(chan struct{})
	d.gate.Store(&gate)
	go open() // both have one name
	fatal.Until(t, "the second one fails too", func() bool {
		_, text := ask(t, d.Server, "/readyz")
		return strings.Count(text, "reads fail (unavailable)") == 2
	})
	if code, text := ask(t, d.Server, "/metrics"); code != http.StatusOK {
		t.Error(code, text)
	}
	close(gate)
	<-opened
}

func TestKeysOfPrograms(t *testing.T) {
	d := newDemand(t, time.Hour)
	d.open(t, "s3://b/x", "null")
	if d.keys.Load() != nil {
		t.Error("a program without keys changed them")
	}
	d.open(t, "s3://b/x", `{"id": "a", "secret": "b", "token": "c"}`)
	expect.Equal(t, d.keys.Load(), "abc", "the keys")
	name := d.open(t, "s3://b/x", "null")
	lists := d.opened.Load()
	body := fmt.Sprintf(`{"source": {"kind": "dir", "path": "s3://b/x"}, "name": %q, "keys": {"id": "d", "secret": "e"}}`, name)
	if answer := wantRequest(t, d.Server, "POST", "/v1/open", body, http.StatusOK); answer["name"] != name || d.keys.Load() != "de" || d.opened.Load() != lists {
		t.Errorf("new keys for %s: %v, the keys are %v, after %d more lists", name, answer, d.keys.Load(), d.opened.Load()-lists)
	}
}

func TestWhatAnAddressRefuses(t *testing.T) {
	d := newDemand(t, time.Hour)
	for body, want := range map[string]struct {
		code int
		said string
	}{
		`{"source": {"kind": "dir", "path": "/etc"}}`:                                 {400, "a server on demand opens addresses"},
		`{"source": {"kind": "dir"}}`:                                                 {400, "a server on demand opens addresses"},
		`{"source": {"kind": "dir", "path": "s3://b/missing"}}`:                       {404, "list"},
		`{"source": {"kind": "dir", "path": "s3://b/closed"}}`:                        {403, "list"},
		`{"source": {"kind": "dir", "path": "s3://b/away"}}`:                          {502, "no answer"},
		`{"keys": {"secret": ["hunter2"]}}`:                                           {400, "no JSON object"},
		`{"source": {"path": "s3://b/x"}, "x": "` + strings.Repeat("x", 1<<20) + `"}`: {400, "no JSON object"},
	} {
		code, answer := tell(t, d.Server, "POST", "/v1/open", body)
		if code != want.code || !strings.Contains(answer, want.said) || strings.Contains(answer, "hunter2") || strings.Contains(answer, "cache ") {
			t.Errorf("%.80s is answered with %d %s, want %d and %q", body, code, answer, want.code, want.said)
		}
	}
	expect.Equal(t, d.Caches(), 0, "caches that stay")
	for range 100 { // an address that failed at once has no metrics: programs may give any number of them
		tell(t, d.Server, "POST", "/v1/open", `{"source": {"kind": "dir", "path": "s3://b/missing"}}`)
		if beside := d.Beside(); len(beside) != 1 {
			t.Fatalf("%d are beside, %s is one of them", len(beside), beside[0].Cache)
		}
	}
}

func TestAServerWithAConfigurationOpensNoAddress(t *testing.T) {
	s, _ := start(t, options(t, newMemory(1, 1), server.CacheOptions{}))
	wantRequest(t, s, "POST", "/v1/open", `{"source": {"kind": "dir", "path": "s3://b/x"}}`, http.StatusNotFound)
}

func TestAServerOnDemandEndsAfterItsLastProgram(t *testing.T) {
	d := newDemand(t, time.Second)
	one, two := d.open(t, "s3://b/one", "null"), d.open(t, "s3://b/two", "null")
	p := dial(t, d.Dir())
	_, segment := p.attach(one)
	program := fatal.Value(cache.Attach(segment, cache.Options{}))(t)
	p.socket.Close() // hits need no connection: the lock says that the program lives
	fatal.Until(t, "the cache without a program ends", func() bool { return !d.Has(two) })
	time.Sleep(1500 * time.Millisecond)
	select {
	case <-d.ended:
		t.Fatal("the server ends while a program is attached")
	default:
	}
	if !d.Has(one) {
		t.Error("the cache of the program has ended")
	}
	fatal.If(t, program.Close())
	<-d.ended
	expect.Equal(t, d.Caches(), 0, "caches that stay")
}
