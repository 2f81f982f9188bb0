package timeline

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

const ms = 1_000_000 // ns

// made is a loader whose timeline a test makes.
type made struct{ *Loader }

func newMade(settings map[string]any) made {
	return made{&Loader{PID: 1, WorldSize: 1, CPUs: 64, Settings: settings,
		Clock: Clock{"0123456789abcdef", 1000, 1_700_000_000_000_000_000}}}
}

func (m made) add(number int, name string, s Span) {
	for _, t := range m.Tracks {
		if t.Number == number {
			t.Spans = append(t.Spans, s)
			return
		}
	}
	m.Tracks = append(m.Tracks, &Track{Number: number, Name: name, Spans: []Span{s}})
}

func (m made) loop(kind Kind, epoch, batch int, from, to int64, samples, hits int) {
	s := Span{Kind: kind, Start: from, End: to, Epoch: int32(epoch), Batch: int32(batch), Index: -1, Samples: -1,
		Hits: -1, Misses: -1, Bytes: -1}
	if kind == Wait {
		s.Samples, s.Hits, s.Misses, s.Bytes = int32(samples), int32(hits), int32(samples-hits), int64(samples)*1000
	}
	m.add(loopTrack, "training loop", s)
}

func (m made) load(worker, epoch, batch, index int, from, to int64) {
	m.add(firstWorker+worker, fmt.Sprintf("worker %d", worker),
		Span{Kind: Load, Start: from, End: to, Epoch: int32(epoch), Batch: int32(batch), Index: int64(index),
			Samples: -1, Hits: -1, Misses: -1, Bytes: -1})
}

func (m made) stage(kind Kind, number, epoch, batch int, from, to int64) {
	m.add(number, kind.String(), Span{Kind: kind, Start: from, End: to, Epoch: int32(epoch), Batch: int32(batch),
		Index: -1, Samples: 8, Hits: -1, Misses: -1, Bytes: -1})
}

func (m made) trace() *Trace {
	t := &Trace{Loaders: []*Loader{m.Loader}}
	for _, track := range m.Tracks {
		m.Events += len(track.Spans)
	}
	t.order()
	return t
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// Ensure that a recording of a real loop is read correctly: every span, its numbers, and the
// settings.
func TestReadRecording(t *testing.T) {
	tr := fatal.Value(ReadFile("testdata/run.json"))(t)
	l := tr.Loaders[0]
	if len(tr.Loaders) != 1 || tr.Spans() != l.Events || l.Events != 585 || l.WorldSize != 1 || l.CPUs != 2 ||
		l.Clock.Boot == "" || l.Clock.UnixNS < 1_700_000_000_000_000_000 {
		t.Errorf("%d loaders, %d spans, %+v", len(tr.Loaders), tr.Spans(), l)
	}
	if want := map[string]any{"batch_size": 16.0, "num_workers": 3.0, "prefetch_factor": 1.0,
		"size": "64MiB"}; !reflect.DeepEqual(l.Settings, want) {
		t.Errorf("settings %v", l.Settings)
	}
	var names []string
	for _, track := range l.Tracks {
		names = append(names, track.Name)
	}
	expect.Equal(t, strings.Join(names, ", "), "training loop, gather, worker 0, worker 1, worker 2", "tracks")
	epochs := tr.Epochs()
	fatal.Equal(t, len(epochs), 3, "epochs")
	for n, want := range []int{0, 90, 180} { // cached samples at the start of the epoch
		e := epochs[n]
		if e.Number != n || e.Batches != 15 || e.Samples != 240 || e.Hits != want || e.Misses != 240-want ||
			e.Workers != 3 {
			t.Errorf("epoch %d: %+v", n, e)
		}
		if e.Step < 15*0.020 || e.Seconds() > seconds(e.To-e.From)+1e-3 {
			t.Errorf("epoch %d: %v s of steps, %v s of %v", n, e.Step, e.Seconds(), seconds(e.To-e.From))
		}
	}
	if slow := tr.Slowest(3); len(slow) != 3 || slow[0].Span.Index != 77 || slow[0].Span.Length() < 30*ms ||
		slow[1].Span.Length() < slow[2].Span.Length() {
		t.Errorf("slowest %+v", slow)
	}
}

// Ensure that a written trace is read back unchanged, compressed or not, with our own names and
// without unknown numbers.
func TestWriteAndRead(t *testing.T) {
	m := newMade(map[string]any{"num_workers": 1.0, "dataset": "a \"name\" with \\ and ü"})
	m.Dropped, m.DroppedFrom = 3, new(float64)
	*m.DroppedFrom = 12.125
	m.loop(Wait, 0, 0, 0, 5*ms, 8, 3)
	m.loop(Step, 0, 0, 5*ms, 9*ms+125, -1, -1)
	m.load(0, 0, 0, 1<<40, 250, 4*ms)
	m.add(firstOther, "mine\x1b[2J", Span{Kind: Other, Start: 1000, End: 1000, Epoch: -1, Batch: -1, Index: -1,
		Samples: -1, Hits: -1, Misses: -1, Bytes: -1})
	tr := m.trace()
	tr.names = []string{"</script>"}
	m.Tracks[len(m.Tracks)-1].Name = "mine\ufffd[2J"
	var plain bytes.Buffer
	fatal.If(t, Write(&plain, tr))
	if !json.Valid(plain.Bytes()) {
		t.Fatalf("no JSON:\n%s", plain.String())
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(plain.Bytes())
	z.Close()
	for name, file := range map[string][]byte{"plain": plain.Bytes(), "packed": packed.Bytes()} {
		got, err := Read(bytes.NewReader(file))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, tr) {
			t.Errorf("%s: got %+v\nwant %+v", name, got.Loaders[0], tr.Loaders[0])
			for k := range got.Loaders[0].Tracks {
				t.Logf("%+v\n%+v", got.Loaders[0].Tracks[k], tr.Loaders[0].Tracks[k])
			}
		}
	}
}

const header = `{"displayTimeUnit":"ms","otherData":{"format":"stocached trace","version":1,"ranks":[{"pid":1,"rank":0}]},"traceEvents":[`
const thread = `{"ph":"M","pid":1,"tid":10001,"name":"thread_name","args":{"name":"training loop"}}`

// Ensure that each kind of broken or foreign file is an ErrFormat with the reason.
func TestReadRefuses(t *testing.T) {
	span := `{"ph":"X","pid":1,"tid":10001,"ts":1,"dur":2,"name":"step","args":{}}`
	for _, c := range []struct{ file, want string }{
		{"", "empty"},
		{"hello", "not JSON"},
		{header + "]}x", "after 0 events"},
		{header + "]}[]", "after its end"},
		{"\x89PNG\r\n", "not JSON"},
		{"\x1f\x8bxx", "gzip"},
		{"[]", "where"},
		{"{}", "without otherData"},
		{`{"a":1,"b":[{}]}`, "without otherData"},
		{`{"traceEvents":[]}`, "another program"},
		{`{"otherData":{"version":"x"},"traceEvents":[]}`, "another program"},
		{`{"otherData":{"format":"stocached trace","version":2}}`, "version 2"},
		{`{"otherData":{"format":"stocached trace","version":1,"ranks":[]}}`, "no loader"},
		{`{"otherData":{"format":"stocached trace","version":1,"ranks":[{"pid":0}]}}`, "pids"},
		{`{"otherData":{"format":"stocached trace","version":1,"ranks":[{"pid":1},{"pid":1}]}}`, "pids"},
		{`{"otherData":{"format":"stocached trace","version":1,"ranks":[null]}}`, "pids"},
		{`{"otherData":{"format":"stocached trace","version":1,"ranks":[{"pid":"x"}]}}`, "otherData"},
		{header, "ends in the middle, after 0 events"},
		{header + thread + "," + span, "ends in the middle, after 2 events"},
		{header + thread + "," + span[:20], "ends in the middle, after 1 events"},
		{header + thread + "]", "ends in the middle"},
		{header + `{"ph":"X","pid":2}]}`, "event 1: pid 2"},
		{header + thread + `,{"ph":"B","pid":1}]}`, `event 2: phase "B"`},
		{header + span + "]}", "tid 10001, which no thread_name"},
		{header + thread + "," + thread + "]}", "each once"},
		{header + strings.Replace(thread, "10001", "20001", 1) + "]}", "tid 20001"},
		{header + thread + `,{"ph":"X","pid":1,"tid":10001,"ts":1,"dur":2}]}`, "without a name"},
		{header + thread + `,{"ph":"X","pid":1,"tid":10001,"ts":1,"name":"step"}]}`, "ts, and dur"},
		{header + thread + `,{"ph":"X","pid":1,"tid":10001,"ts":1,"dur":-1,"name":"step"}]}`, "ts, and dur"},
		{header + thread + `,{"ph":"X","pid":1,"tid":10001,"ts":1e300,"dur":1,"name":"step"}]}`, "thirty years"},
		{header + thread + `,{"ph":"X","pid":1,"tid":10001,"ts":1,"dur":1,"name":"step","args":{"batch":-5}}]}`,
			"numbers below 0"},
		{header + thread + `,{"ph":"X","pid":1,"tid":10001,"ts":1,"dur":1,"name":"step","args":{"batch":"x"}}]}`,
			"after 1 events"},
		{header + thread + `,{"ph":"X","pid":1,"tid":10001,"ts":1,"dur":1,"name":"step","args":{"epoch":99999999999}}]}`, "after 1 events"},
	} {
		_, err := Read(strings.NewReader(c.file))
		if err == nil || !strings.Contains(err.Error(), ErrFormat.Error()) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.90q: %v; want %q in it", c.file, err, c.want)
		}
	}
	if _, err := ReadFile(t.TempDir()); err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}

// Ensure that a file cut off at any byte is refused.
func TestReadCutOff(t *testing.T) {
	whole := fatal.Value(os.ReadFile("testdata/run.json"))(t)
	text := bytes.TrimSpace(whole)
	for n := 0; n < len(text); n += 1 + n/20 {
		if _, err := Read(bytes.NewReader(text[:n])); err == nil || !strings.Contains(err.Error(), ErrFormat.Error()) {
			t.Errorf("the first %d of %d bytes: %v", n, len(text), err)
		}
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(whole)
	z.Close()
	for _, n := range []int{5, 30, packed.Len() / 2, packed.Len() - 4} {
		if _, err := Read(bytes.NewReader(packed.Bytes()[:n])); err == nil ||
			!strings.Contains(err.Error(), ErrFormat.Error()) {
			t.Errorf("the first %d of %d packed bytes: %v", n, packed.Len(), err)
		}
	}
}

// Ensure that Read never panics, and that a trace that it accepts is written and read again
// unchanged.
func FuzzRead(f *testing.F) {
	f.Add([]byte(header + thread + `,{"ph":"X","pid":1,"tid":10001,"ts":1,"dur":2,"name":"step","args":{"epoch":1}}]}`))
	f.Add([]byte(header + "]}"))
	f.Fuzz(func(t *testing.T, file []byte) {
		tr, err := Read(bytes.NewReader(file))
		if err != nil {
			return
		}
		tr.Epochs()
		tr.Slowest(3)
		from, to := tr.Bounds()
		tr.Uses(from, to)
		var again bytes.Buffer
		fatal.If(t, Write(&again, tr))
		if _, err := Read(&again); err != nil {
			t.Fatalf("written, it is not read: %v\n%s", err, again.String())
		}
	})
}

// Ensure that loaders are placed by the clock of their boot, or by the time of day on different
// machines, and stay distinct.
func TestMerge(t *testing.T) {
	one := func(rank int, clock Clock) *Trace {
		m := newMade(nil)
		m.Rank, m.Clock = rank, clock
		m.DroppedFrom = new(float64)
		m.loop(Step, 0, 0, 1000, 2000, -1, -1)
		m.add(firstOther, "extra", Span{Kind: Other, Start: 500, End: 600, Epoch: -1, Batch: -1, Index: -1,
			Samples: -1, Hits: -1, Misses: -1, Bytes: -1})
		tr := m.trace()
		tr.names = []string{fmt.Sprintf("by %d", rank)}
		return tr
	}
	// Rank 1 began 1 ms before rank 0 on the same machine, whose time of day was then set back
	// by a second. Rank 2 began on another machine, 2 ms after rank 0.
	got, err := Merge(one(0, Clock{"a", 5_000_000, 1e18}), one(1, Clock{"a", 4_000_000, 1e18 + 1e9}),
		one(2, Clock{"b", 77, 1e18 + 2_000_000}))
	fatal.If(t, err)
	for k, want := range []struct {
		start int64
		name  string
	}{{1_001_000, "by 0"}, {1000, "by 1"}, {3_001_000, "by 2"}} {
		l := got.Loaders[k]
		if l.Rank != k || l.PID != k+1 || l.Loop().Spans[0].Start != want.start || l.Loop().Spans[0].Length() != 1000 {
			t.Errorf("rank %d: pid %d, %+v, want a start of %d", l.Rank, l.PID, l.Loop().Spans[0], want.start)
		}
		expect.Equal(t, got.Name(&l.Tracks[len(l.Tracks)-1].Spans[0]), want.name, "rank %d: the name of its span", k)
	}
	expect.Equal(t, *got.Loaders[0].DroppedFrom, 1000, "dropped from, in us")
	if a, b := got.Loaders[0].Clock, got.Loaders[1].Clock; a != (Clock{"a", 4_000_000, 1e18 - 1_000_000}) ||
		b.MonotonicNS != a.MonotonicNS {
		t.Errorf("clocks %+v, %+v", a, b)
	}
	var file bytes.Buffer
	fatal.If(t, Write(&file, got))
	if again, err := Read(&file); err != nil || again.Spans() != 6 || len(again.Loaders) != 3 {
		t.Errorf("read again: %v", err)
	}
	if _, err := Merge(one(0, Clock{"a", 1, 2}), one(0, Clock{"a", 1, 2})); err == nil ||
		!strings.Contains(err.Error(), "twice") {
		t.Errorf("a file given twice: %v", err)
	}
	if empty, err := Merge(); err != nil || empty.Spans() != 0 {
		t.Errorf("nothing: %v", err)
	}
}

// Ensure that times between ticks of the merged files become multiples of a tick, which adjacent
// spans need.
func TestMergeKeepsTicks(t *testing.T) {
	a, b := newMade(nil), newMade(nil)
	a.Clock, b.Clock = Clock{"a", 1_000_000_123, 1e18}, Clock{"a", 1_000_001_777, 1e18}
	b.Rank = 1
	a.loop(Step, 0, 0, 125, 250, -1, -1)
	b.loop(Step, 0, 0, 125, 250, -1, -1)
	got := fatal.Value(Merge(a.trace(), b.trace()))(t)
	if s := got.Loaders[1].Loop().Spans[0]; s.Start != 125+1625 || s.Length() != 125 {
		t.Errorf("%+v", s)
	}
}
