package simulate

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/policy"
)

func TestReadLines(t *testing.T) {
	trace := fatal.Value(Read(strings.NewReader("# a comment\n7\r\n  3 \n\n7\n900000000000\n3"), 2, 0))(t)
	if !reflect.DeepEqual(trace, &Trace{Samples: 3, Epochs: [][][]uint32{{{0, 1}}, {{0, 2, 1}}}}) {
		t.Errorf("%+v", trace)
	}
}

func TestReadCompressed(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	fatal.Value(w.Write([]byte("7\n3\n7\n")))(t)
	fatal.If(t, w.Close())
	if trace, err := Read(bytes.NewReader(zipped.Bytes()), 0, 0); err != nil || trace.Reads() != 3 {
		t.Errorf("%+v, %v", trace, err)
	}
	if _, err := Read(bytes.NewReader(zipped.Bytes()[:zipped.Len()-3]), 0, 0); err == nil {
		t.Error("a file that was cut off")
	}
}

// Ensure that what is no trace is refused, with the place.
func TestReadGarbage(t *testing.T) {
	garbage := make([]byte, 24*100)
	for k := range garbage {
		garbage[k] = byte(policy.Random(3, uint64(k)))
	}
	for what, c := range map[string]struct {
		content, want string
		epochs        int
	}{
		"empty":       {"", "empty", 0},
		"comments":    {"# nothing\n\n", "no index", 0},
		"words":       {"1\n2\nthree\n", `line 3 is "three"`, 0},
		"negative":    {"1\n-2\n", `line 2 is "-2"`, 0},
		"too large":   {"18446744073709551616\n", "line 1", 0},
		"a long line": {strings.Repeat("7", 100_000), "not a trace", 0},
		"garbage":     {string(garbage), "line", 0},
		"gzip":        {"\x1f\x8bxxxxxxxx", "gzip", 0},
		"JSON":        {`{"a": 1}`, "timeline", 0},
		"more epochs": {"1\n2\n", "3 epochs", 3},
	} {
		_, err := Read(strings.NewReader(c.content), c.epochs, 0)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrTrace) && !errors.Is(err, ErrInvalid) &&
			!errors.Is(err, timeline.ErrFormat) {
			t.Errorf("%s: %v", what, err)
		}
	}
	dir := t.TempDir()
	expect.Fails(ReadFile(dir, 0, 0))(t, ErrTrace, "folder")
	expect.Fails(ReadFile(filepath.Join(dir, "none"), 0, 0))(t, fs.ErrNotExist)
	file := filepath.Join(dir, "words")
	fatal.If(t, os.WriteFile(file, []byte("words\n"), 0o600))
	if _, err := ReadFile(file, 0, 0); err == nil || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
}

// A recorded timeline: three epochs of 240 samples. The hits of the second and third have no names, so these are
// shuffled.
func TestTimeline(t *testing.T) {
	trace, err := ReadFile("../timeline/testdata/run.json", 0, 1)
	fatal.If(t, err)
	if trace.Samples != 240 || len(trace.Epochs) != 3 || !trace.once() || len(trace.Seconds) != 240 ||
		len(trace.Notes) != 1 || !strings.Contains(trace.Notes[0], "all samples of 1 epochs: those from 2 on") ||
		trace.SampleBytes == 0 || trace.Batch == 0 {
		t.Errorf("%d samples, %d epochs, notes %q, %d bytes", trace.Samples, len(trace.Epochs), trace.Notes, trace.SampleBytes)
	}
	for sample, s := range trace.Seconds {
		if s < 1e-5 || s > 1 {
			t.Errorf("sample %d took %g s", sample, s)
		}
	}
	trace, err = ReadFile("../timeline/testdata/run.json", 4, 1)
	if err != nil || len(trace.Epochs) != 4 || !trace.once() {
		t.Fatal(len(trace.Epochs), err)
	}
	cost, first := run(t, trace, "cost", 60, Options{}), run(t, trace, "first-come", 60, Options{})
	if first[3].Hits != 60 || cost[3].TimeSaved() < first[3].TimeSaved() {
		t.Error(cost, first)
	}
}

// Epochs whose hits have no names, and timelines without names.
func TestTimelineWithoutNames(t *testing.T) {
	span := func(epoch int32, kind timeline.Kind, index, start int64) timeline.Span {
		return timeline.Span{Kind: kind, Epoch: epoch, Index: index, Start: start, End: start + 1000}
	}
	wait := span(1, timeline.Wait, -1, 0)
	wait.Samples, wait.Hits = 2, 1
	track := &timeline.Track{Spans: []timeline.Span{wait, span(1, timeline.Load, 4, 0)}}
	recorded := &timeline.Trace{Loaders: []*timeline.Loader{{PID: 1, Tracks: []*timeline.Track{track}}}}
	expect.Fails(Timeline(recorded, 0, 0))(t, ErrTrace, "empty cache")
	track.Spans = append(track.Spans, span(0, timeline.Load, 4, 5), span(0, timeline.Gather, 9, 3))
	trace, err := Timeline(recorded, 0, 0) // what was never loaded costs as others do
	if err != nil || len(trace.Epochs) != 2 || !slices.Equal(trace.Epochs[0][0], []uint32{0, 1}) || !trace.once() ||
		trace.Seconds[0] != 1e-6 || trace.Seconds[1] != 1e-6 {
		t.Errorf("%+v, %v", trace, err)
	}
	track.Spans = append(track.Spans, span(0, timeline.Gather, 9, 8)) // by weight
	trace, err = Timeline(recorded, 0, 0)
	if err != nil || len(trace.Epochs) != 1 || len(trace.Notes) != 1 || !strings.Contains(trace.Notes[0], "1 epochs are left out") {
		t.Errorf("%+v, %v", trace, err)
	}
}
