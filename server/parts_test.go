package server_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"
)

// texts is storage whose objects are texts.
type texts struct {
	all     map[string]string
	tag     int64
	busy    atomic.Int32 // reads that fail before one succeeds
	reads   atomic.Int32
	bytes   atomic.Int64                  // bytes that were asked for
	gate    atomic.Pointer[chan struct{}] // reads wait for its end
	opened  atomic.Int32
	closed  atomic.Int32
	traffic source.Traffic
}

func (s *texts) Stamp(_ context.Context, name string) (source.Stamp, error) {
	text, ok := s.all[name]
	if !ok {
		return source.Stamp{}, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return source.Stamp{Bytes: int64(len(text)), ModifiedNs: s.tag}, nil
}

func (s *texts) ReadAt(ctx context.Context, name string, stamp source.Stamp, dst []byte, offset int64) error {
	s.reads.Add(1)
	s.bytes.Add(int64(len(dst)))
	if gate := s.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	now, err := s.Stamp(ctx, name)
	if err == nil && s.busy.Add(-1) >= 0 {
		err = fmt.Errorf("%w: %s", source.ErrUnavailable, name)
	}
	if err == nil {
		err = stamp.Check(name, now)
	}
	if err == nil {
		copy(dst, s.all[name][offset:])
	}
	return err
}

func (s *texts) List(ctx context.Context, prefix string, each func(name string, stamp source.Stamp) error) error {
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		stamp, err := s.Stamp(ctx, name)
		if err == nil && strings.HasPrefix(name, prefix) {
			err = each(name, stamp)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *texts) Traffic() *source.Traffic { return &s.traffic }
func (s *texts) Notes() []source.Note     { return nil }
func (s *texts) Close()                   { s.closed.Add(1) }

func newTexts(scheme string) *texts {
	s := &texts{all: map[string]string{}, tag: 7 << 60}
	for name, text := range map[string]string{"a/1.txt": "0123456789", "a/2.txt": "", "a/": "", "b.txt": "other"} {
		s.all[scheme+"://box/"+name] = text
	}
	source.RegisterScheme(scheme, func(source.Settings, source.Private) (source.Objects, error) {
		s.opened.Add(1)
		return s, nil
	})
	return s
}

func TestProgramsReadPartsOfObjects(t *testing.T) {
	d, s := newDemand(t, time.Hour), newTexts("shelf")
	for body, want := range map[string]struct {
		path string
		code int
		said string
	}{
		`{"source": {"path": "shelf://box/a/"}, "list": true}`:                                                     {"objects", 200, `{"objects":[["shelf://box/a/1.txt",10,8070450532247928832],["shelf://box/a/2.txt",0,8070450532247928832]]}`},
		`{"source": {"path": "shelf://box/x"}, "list": true}`:                                                      {"objects", 200, `{"objects":[]}`},
		`{"source": {"path": "shelf://box/b.txt"}}`:                                                                {"objects", 200, `[["shelf://box/b.txt",5,8070450532247928832]]`},
		`{"source": {"path": "shelf://box/none"}}`:                                                                 {"objects", 404, "shelf://box/none"},
		`{"source": {"path": "/etc/passwd"}}`:                                                                      {"objects", 400, "opens addresses"},
		`{"source": {"path": "none://box/a"}}`:                                                                     {"objects", 400, "no reader for none://"},
		`{"source": {"path": "shelf://box/b.txt", "kind": "a"}}`:                                                   {"objects", 400, "unknown key"},
		`{"keys": {"secret": ["hunter2"]}}`:                                                                        {"objects", 400, "no JSON object"},
		`{"source": {"path": "shelf://box/a/1.txt"}, "bytes": 10, "tag": 8070450532247928832, "at": 3, "size": 4}`: {"part", 200, "3456"},
		`{"source": {"path": "shelf://box/a/1.txt"}, "bytes": 10, "tag": 1, "at": 3, "size": 4}`:                   {"part", 409, "shelf://box/a/1.txt"},
		`{"source": {"path": "shelf://box/a/1.txt"}, "bytes": 11, "size": 4}`:                                      {"part", 409, "had 11 bytes and has 10"},
		`{"source": {"path": "shelf://box/none"}, "bytes": 11, "size": 4}`:                                         {"part", 404, "none"},
		`{"source": {"path": "shelf://box/a/1.txt"}, "size": 16777217}`:                                            {"part", 400, "16777216 are the most"},
		`{"source": {"path": "shelf://box/a/1.txt"}, "at": -1}`:                                                    {"part", 400, "a part of 0 bytes at -1"},
		`{"source": {"path": "shelf://box/a/1.txt"}, "bytes": 10, "at": 9223372036854775807, "size": 4}`:           {"part", 400, "a part of 4 bytes at 9223372036854775807"},
		`{"source": {"path": "shelf://box/a/1.txt"}, "bytes": 10, "size": 4, "more": -2}`:                          {"part", 400, "a part of -2 bytes at 0"},
	} {
		code, answer := tell(t, d.Server, "POST", "/v1/"+want.path, body)
		if code != want.code || !strings.Contains(answer, want.said) || strings.Contains(answer, "hunter2") {
			t.Errorf("%s: %d %s, want %d and %s", body, code, answer, want.code, want.said)
		}
	}
	expect.Equal(t, s.opened.Load(), 1, "openings by requests to one storage")
	tell(t, d.Server, "POST", "/v1/objects", `{"source": {"path": "shelf://box/b.txt", "remote": {"region": "x"}}, "keys": {"id": "a", "secret": "b"}}`)
	if n := s.opened.Load(); n != 2 || d.keys.Load() != "ab" {
		t.Errorf("another region: %d are open, and the keys are %v", n, d.keys.Load())
	}
	if d.stop(); s.closed.Load() != 2 {
		t.Errorf("%d of 2 are closed", s.closed.Load())
	}
}

func TestAPartIsReadAgainAfterAnErrorThatPasses(t *testing.T) {
	d, s := newDemand(t, time.Hour), newTexts("busy")
	s.busy.Store(3)
	if _, before := tell(t, d.Server, "GET", "/readyz", ""); before != "ok\n" {
		t.Error(before)
	}
	body := fmt.Sprintf(`{"source": {"path": "busy://box/b.txt"}, "bytes": 5, "tag": %d, "size": 5}`, s.tag)
	if code, answer := tell(t, d.Server, "POST", "/v1/part", body); code != http.StatusOK || answer != "other" || s.busy.Load() != -1 {
		t.Errorf("%d %s, with %d errors left", code, answer, s.busy.Load())
	}
	if _, after := tell(t, d.Server, "GET", "/readyz", ""); !strings.Contains(after, "failing: files of programs: reads fail (unavailable)") ||
		!strings.Contains(after, "reads that failed: 0, tries that failed: 3") {
		t.Error(after)
	}
	wantMetrics(t, d.Server, `stocached_source_retries_total{cache="files of programs",kind="unavailable"} 3`,
		`stocached_source_errors_total{cache="files of programs",kind="changed"} 0`,
		`stocached_retrying_reads{cache="files of programs"} 0`,
		`stocached_failing_seconds{cache="files of programs",kind="denied"} 0`)
	tell(t, d.Server, "POST", "/v1/part", strings.Replace(body, `"bytes": 5`, `"bytes": 6`, 1))
	wantMetrics(t, d.Server, `stocached_source_errors_total{cache="files of programs",kind="changed"} 1`)
	fails := `stocached_failing_seconds{cache="files of programs",kind="unavailable"} `
	if _, text := ask(t, d.Server, "/metrics"); !strings.Contains(text, fails) || strings.Contains(text, fails+"0\n") {
		t.Error("the metrics do not say that reads fail")
	}
}

func TestPartsAreReadAhead(t *testing.T) {
	server.SetPartLook(t, 0)
	d, s := newDemand(t, time.Hour), newTexts("ahead")
	part := func(at, size, more int) string {
		_, answer := tell(t, d.Server, "POST", "/v1/part", fmt.Sprintf(
			`{"source": {"path": "ahead://box/a/1.txt"}, "bytes": 10, "tag": %d, "at": %d, "size": %d, "more": %d}`, s.tag, at, size, more))
		return answer
	}
	ahead := func(at, size int) string {
		_, answer := tell(t, d.Server, "POST", "/v1/ahead", fmt.Sprintf(
			`{"source": {}, "parts": [{"path": "ahead://box/a/1.txt", "bytes": 10, "tag": %d, "at": %d, "size": %d}]}`, s.tag, at, size))
		return answer
	}
	ahead(2, 5)
	ahead(3, 2) // it is there
	fatal.Until(t, "the part is read", func() bool { return s.reads.Load() == 1 })
	if a, b := part(2, 2, 1), part(5, 1, 100); a != "234" || b != "56" || s.reads.Load() != 1 {
		t.Errorf("the parts are %q and %q, after %d reads", a, b, s.reads.Load())
	}
	if again := part(2, 2, 1); again != "234" || s.reads.Load() != 1 {
		t.Errorf("a part that was given is %q, after %d reads", again, s.reads.Load())
	}
	before := s.tag
	s.tag++
	if _, again := tell(t, d.Server, "POST", "/v1/part", fmt.Sprintf(
		`{"source": {"path": "ahead://box/a/1.txt"}, "bytes": 10, "tag": %d, "at": 2, "size": 2}`, before)); !strings.Contains(again, "changed") {
		t.Errorf("a part that was given before the object changed is %q", again)
	}
	s.busy.Store(1)
	ahead(0, 3)
	if got := part(0, 3, 0); got != "012" || s.busy.Load() != -1 {
		t.Errorf("a part whose read ahead failed is %q", got)
	}
	for _, bad := range []string{ahead(0, 1<<25), ahead(-1, 3)} {
		expect.Says(t, bad, "16777216 are the most")
	}
	gate := make(chan struct{})
	s.gate.Store(&gate)
	for k := range 100 { // no more than its memory holds
		tell(t, d.Server, "POST", "/v1/ahead", fmt.Sprintf(
			`{"source": {}, "parts": [{"path": "ahead://box/large", "bytes": %d, "tag": %d, "at": %d, "size": 4194304}]}`, 1<<30, s.tag, k<<22))
	}
	reads := s.reads.Load()
	close(gate)
	d.stop()
	if n := s.reads.Load(); n > reads || n > 20 {
		t.Errorf("%d parts of 4 MiB are read ahead, of 64 MiB", n)
	}
}

func TestPartsThatOverlapAreReadOnce(t *testing.T) {
	d, s := newDemand(t, time.Hour), newTexts("overlap")
	const size = 10_000
	s.all["overlap://box/x"] = strings.Repeat("0123456789", size/10)
	for k, place := range [][2]int{{2000, 1000}, {4000, 1000}, {1500, 1000}, {2500, 1000}, {3800, 600}, {1000, 600}} {
		askAhead(t, d, "overlap://box/x", s.tag, size, place[0], place[1])
		fatal.Until(t, "the part is read", func() bool { return int(s.reads.Load()) == k+1 })
	}
	if n := s.bytes.Load(); n > 3700+6*64 {
		t.Errorf("%d bytes are read of parts that have 3700", n)
	}
	for _, at := range []int{1000, 1500, 2000, 2500, 3000, 4000, 4500} {
		expect.Equal(t, askPart(t, d, "overlap://box/x", s.tag, size, at, 500), s.all["overlap://box/x"][:500], "the part at %d", at)
	}
	expect.Equal(t, s.reads.Load(), 6, "reads")
	before := s.bytes.Load()
	_, answer := tell(t, d.Server, "POST", "/v1/part", fmt.Sprintf(
		`{"source": {"path": "overlap://box/x"}, "bytes": %d, "tag": %d, "at": 500, "size": 100, "more": 3000}`, size, s.tag))
	if n := s.bytes.Load() - before; n != int64(len(answer)) || n < 500 || n > 500+64 {
		t.Errorf("%d bytes are read and %d given before a part that was read ahead", n, len(answer))
	}
}

func TestWhatARequestReadsNowIsReadByNoOther(t *testing.T) {
	for _, size := range []int{1000, 2 << 20} { // small ones stay, large ones are in memory that is used again
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			d, s := newDemand(t, time.Hour), newTexts(fmt.Sprintf("once%d", size))
			name, gate := fmt.Sprintf("once%d://box/x", size), make(chan struct{})
			var text strings.Builder
			for k := range 4 * size / 8 {
				fmt.Fprintf(&text, "%08d", k)
			}
			s.all[name] = text.String()
			s.gate.Store(&gate)
			var asked sync.WaitGroup
			check := func(at, bytes, more int) {
				_, got := tell(t, d.Server, "POST", "/v1/part", fmt.Sprintf(
					`{"source": {"path": %q}, "bytes": %d, "tag": %d, "at": %d, "size": %d, "more": %d}`, name, 4*size, s.tag, at, bytes, more))
				if len(got) < bytes || got != s.all[name][at:at+len(got)] {
					t.Errorf("%d bytes at %d are wrong", len(got), at)
				}
			}
			part := func(at, bytes int) { asked.Go(func() { check(at, bytes, 0) }) }
			part(0, size)
			fatal.Until(t, "the first part is read", func() bool { return s.reads.Load() == 1 })
			askAhead(t, d, name, s.tag, 4*size, size/2, size)
			fatal.Until(t, "the rest of the second one is read", func() bool { return s.reads.Load() >= 2 })
			part(0, size)
			fatal.Until(t, "the first part has two requests", func() bool { return server.AskedParts(d.Server) == 1 })
			part(size/4, size)
			fatal.Until(t, "so has the second one", func() bool { return server.AskedParts(d.Server) == 2 })
			part(size, size)
			fatal.Until(t, "what the last one lacks is read", func() bool { return s.reads.Load() >= 3 })
			close(gate)
			asked.Wait()
			if n := s.bytes.Load(); n > int64(2*size+64) {
				t.Errorf("%d bytes are read of %d", n, 2*size)
			}
			askAhead(t, d, name, s.tag, 4*size, 0, size)
			check(3*size, size/4, size/2)
			check(3*size+size/4, size/2, 0) // another worker asks for what the first one got, and did not read
			if n := s.bytes.Load(); n > int64(2*size+64+size*3/4) {
				t.Errorf("%d bytes are read of %d", n, size*11/4)
			}
		})
	}
}

func TestARequestWaitsForNoneThatReadsForLonger(t *testing.T) {
	d, s := newDemand(t, time.Hour), newTexts("longer")
	s.all["longer://box/x"] = strings.Repeat("0123456789", 100)
	quick, slow := make(chan struct{}), make(chan struct{})
	var asked, got sync.WaitGroup
	part := func(wait *sync.WaitGroup, gate chan struct{}, size int) {
		before := s.reads.Load()
		s.gate.Store(&gate)
		wait.Go(func() {
			if got := askPart(t, d, "longer://box/x", s.tag, 1000, 0, size); got != s.all["longer://box/x"][:size] {
				t.Errorf("the part of %d bytes is %q", size, got)
			}
		})
		fatal.Until(t, "the part is read", func() bool { return s.reads.Load() > before })
	}
	part(&got, quick, 500)
	part(&asked, slow, 1000)
	close(quick)
	limit := time.AfterFunc(time.Minute, func() { close(slow) })
	got.Wait()
	if !limit.Stop() {
		t.Fatal("it waited for another request, which copies its bytes")
	}
	close(slow)
	asked.Wait()
}

func TestWhatARequestFailsToReadOneOtherReads(t *testing.T) {
	d, s := newDemand(t, time.Hour), newTexts("lost")
	tag, first, second := s.tag, make(chan struct{}), make(chan struct{})
	var asked sync.WaitGroup
	s.gate.Store(&first)
	for k := range 3 {
		asked.Go(func() {
			expect.Says(t, askPart(t, d, "lost://box/a/1.txt", tag, 10, 0, 10), "changed")
		})
		fatal.Until(t, "the part has its requests", func() bool { return s.reads.Load() == 1 && server.AskedParts(d.Server) == min(k, 1) })
	}
	s.gate.Store(&second)
	s.tag++
	close(first)
	fatal.Until(t, "one reads it, and another waits", func() bool { return s.reads.Load() == 2 && server.AskedParts(d.Server) == 1 })
	close(second)
	asked.Wait()
}

func TestAPartThatNobodyAsksForIsNotKept(t *testing.T) {
	server.SetJanitorPause(t, time.Hour)
	server.SetPartAge(t, 0)
	server.SetPartLook(t, 0)
	d, s := newDemand(t, time.Hour), newTexts("late")
	askAhead(t, d, "late://box/a/1.txt", s.tag, 10, 2, 5)
	if got := askPart(t, d, "late://box/a/1.txt", s.tag, 10, 2, 1); got != "2" || s.reads.Load() > 2 {
		t.Errorf("the part is %q, after %d reads", got, s.reads.Load()) // 2 if the first one ended before this ask
	}
	before := s.tag
	s.tag++
	expect.Says(t, askPart(t, d, "late://box/a/1.txt", before, 10, 3, 4), "changed")
}

func TestAReadCountsAsALook(t *testing.T) {
	server.SetPartLook(t, time.Hour)
	d, s := newDemand(t, time.Hour), newTexts("seen")
	ask := func() string { return askPart(t, d, "seen://box/a/1.txt", 7<<60, 10, 2, 3) }
	askAhead(t, d, "seen://box/a/1.txt", s.tag, 10, 2, 3)
	first := ask()
	s.tag++ // a look would see it
	if again := ask(); first != "234" || again != first {
		t.Errorf("bytes are %q and, within the time of a look, %q", first, again)
	}
}

func TestPartsWaitForTheMemoryOfOthers(t *testing.T) {
	server.SetPartLimits(t, 50, 64)
	d, s := newDemand(t, time.Hour), newTexts("narrow")
	s.all["narrow://box/x"] = strings.Repeat("0123456789", 12)
	gate := make(chan struct{})
	s.gate.Store(&gate)
	var asked sync.WaitGroup
	for k := range 12 {
		asked.Go(func() {
			expect.Equal(t, askPart(t, d, "narrow://box/x", s.tag, 120, 10*k, 10), "0123456789", "part %d", k)
		})
	}
	fatal.Until(t, "parts are read", func() bool { return s.reads.Load() == 5 })
	time.Sleep(100 * time.Millisecond) // without a limit, the others are read by now
	expect.Equal(t, s.reads.Load(), 5, "parts of 10 bytes that are read at a time, of 50 bytes")
	close(gate)
	asked.Wait()
}

func TestLargePartsAreReadIntoTheSameMemory(t *testing.T) {
	const size, parts = 2 << 20, 64
	server.SetPartLimits(t, 4*size, 64)
	d, s := newDemand(t, time.Hour), newTexts("large")
	s.all["large://box/x"] = strings.Repeat("0123456789abcdef", size/16)
	body := fmt.Sprintf(`{"source": {"path": "large://box/x"}, "bytes": %d, "tag": %d, "size": %d}`, size, s.tag, size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var asked sync.WaitGroup
	for range parts {
		asked.Go(func() {
			expect.Equal(t, tellInto(t, io.Discard, d.Server, "POST", "/v1/part", body), http.StatusOK, "the answer to a part")
		})
	}
	asked.Wait()
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > parts*size/2 {
		t.Errorf("%d parts of 2 MiB, 4 at a time, took %d MiB of new memory", parts, made>>20)
	}
}

func TestStorageThatNobodyUsesIsClosed(t *testing.T) {
	server.SetPartLimits(t, 50, 3)
	d, s := newDemand(t, time.Hour), newTexts("many")
	ask := func(region int, bytes int) string {
		_, answer := tell(t, d.Server, "POST", "/v1/part", fmt.Sprintf(
			`{"source": {"path": "many://box/b.txt", "remote": {"region": "%d"}}, "bytes": 5, "tag": %d, "size": %d}`, region, s.tag, bytes))
		return answer
	}
	gate := make(chan struct{})
	s.gate.Store(&gate)
	var first sync.WaitGroup
	first.Go(func() {
		expect.Equal(t, ask(0, 5), "other", "storage that was in use gives")
	})
	fatal.Until(t, "a part is read", func() bool { return s.reads.Load() == 1 })
	s.gate.Store(nil)
	for k := range 10 {
		ask(1+k%5, 5)
		if k > 0 && s.opened.Load()-s.closed.Load() != min(int32(k)+2, 3) {
			t.Errorf("%d are open", s.opened.Load()-s.closed.Load())
		}
	}
	expect.Equal(t, s.opened.Load(), 11, "opened")
	close(gate)
	first.Wait()
	if ask(0, 5); s.opened.Load() != 11 {
		t.Error("storage in use was closed")
	}
}

// askAhead asks for size bytes at a place of an object soon, or now.
func askAhead(t *testing.T, d *demand, name string, tag int64, bytes, at, size int) {
	t.Helper()
	tell(t, d.Server, "POST", "/v1/ahead", fmt.Sprintf(
		`{"source": {}, "parts": [{"path": %q, "bytes": %d, "tag": %d, "at": %d, "size": %d}]}`, name, bytes, tag, at, size))
}

func askPart(t *testing.T, d *demand, name string, tag int64, bytes, at, size int) string {
	t.Helper()
	_, answer := tell(t, d.Server, "POST", "/v1/part", fmt.Sprintf(
		`{"source": {"path": %q}, "bytes": %d, "tag": %d, "at": %d, "size": %d}`, name, bytes, tag, at, size))
	return answer
}

func TestPartsReadAheadStayUntilTheyAreAskedFor(t *testing.T) {
	const size, room = 16 << 20, 4
	d, s := newDemand(t, time.Hour), newTexts("full")
	s.all["full://box/large"] = strings.Repeat("0123456789abcdef", (room+1)*size/16)
	for k := range int32(room + 1) { // for the last one there is no room
		askAhead(t, d, "full://box/large", s.tag, (room+1)*size, int(k)*size, size)
		fatal.Until(t, "the part is read", func() bool { return s.reads.Load() >= min(k+1, room) })
	}
	for k := range room + 1 {
		if got := askPart(t, d, "full://box/large", s.tag, (room+1)*size, k*size, size); len(got) != size {
			t.Fatalf("part %d has %d bytes", k, len(got))
		}
	}
	expect.Equal(t, s.reads.Load(), room+1, "reads of %d parts", room+1)
}

func TestAPartThatIsAskedForWaitsForNoOther(t *testing.T) {
	d, stuck, s := newDemand(t, time.Hour), newTexts("stuck"), newTexts("quick")
	gate := make(chan struct{})
	stuck.gate.Store(&gate)
	limit := time.AfterFunc(time.Minute, func() { close(gate) })
	for k := range 100 {
		askAhead(t, d, "stuck://box/large", stuck.tag, 1000, k, 1)
	}
	askAhead(t, d, "quick://box/a/1.txt", s.tag, 10, 2, 3)
	if got := askPart(t, d, "quick://box/a/1.txt", s.tag, 10, 2, 3); got != "234" || s.reads.Load() != 1 {
		t.Errorf("the part is %q, after %d reads", got, s.reads.Load())
	}
	if !limit.Stop() {
		t.Fatal("it waited for storage that does not answer")
	}
	close(gate)
}

func TestAPartOfAServerThatEndsIsAskedForAgain(t *testing.T) {
	d, s := newDemand(t, time.Hour), newTexts("ends")
	gate := make(chan struct{})
	s.gate.Store(&gate)
	go func() {
		for s.reads.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		d.stop()
	}()
	body := fmt.Sprintf(`{"source": {"path": "ends://box/b.txt"}, "bytes": 5, "tag": %d, "size": 5}`, s.tag)
	if code, answer := tell(t, d.Server, "POST", "/v1/part", body); code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", code, answer)
	}
}

func TestAServerWithAConfigurationReadsNoParts(t *testing.T) {
	s, _ := start(t, options(t, newMemory(1, 1), server.CacheOptions{}))
	for _, path := range []string{"/v1/objects", "/v1/part", "/v1/ahead"} {
		wantRequest(t, s, "POST", path, `{"source": {"path": "s3://b/x"}}`, http.StatusNotFound)
	}
}
