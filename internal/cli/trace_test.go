package cli

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/timeline"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// recording is a timeline of the Python recorder: three epochs of 15 batches by three workers, with
// 0, 3/8 and 3/4 of the samples cached.
const recording = "../../internal/timeline/testdata/run.json"

// Ensure that people see where the time went.
func TestTrace(t *testing.T) {
	out := ok(t, "trace", recording)
	contains(t, out, "RANK  EPOCH  TIME",
		"0     1      317ms  15       240      757        0.3750    5.0 %    3        72.3 %\n",
		"WHERE THE TIME WENT of epoch 2\n", "busy with steps for 302ms (97.9 %), and waited 6.56ms (2.1 %)",
		"\nTRACKS\n", "0     worker 2       21     100ms   32.3 %\n", "\nSLOWEST SAMPLES\n",
		"77      30.1ms  0      13     0     worker 2\n")
	out = ok(t, "trace", recording, "--epoch", "0")
	contains(t, out, "WHERE THE TIME WENT of epoch 0\n")
}

// Ensure that programs get the same as one object.
func TestTraceJSON(t *testing.T) {
	o := decode[struct {
		Epochs, Stages, Tracks, Slowest []jsonObject
		About                           jsonObject
	}](t, ok(t, "trace", recording, "--json"))
	if len(o.Epochs) != 3 || len(o.Stages) != 8 || len(o.Tracks) != 5 || len(o.Slowest) != slowest {
		t.Fatalf("%+v", o)
	}
	wantFields(t, o.Epochs[1], jsonObject{"rank": 0, "epoch": 1, "batches": 15, "samples": 240, "hit_rate": 0.375,
		"workers": 3})
	wantFields(t, o.About, jsonObject{"rank": 0, "epoch": 2})
	wantFields(t, o.Stages[0], jsonObject{"stage": "load"})
	wantFields(t, o.Stages[2], jsonObject{"stage": "delay", "work_seconds": 0, "wait_seconds": 0})
	wantFields(t, o.Stages[7], jsonObject{"stage": "other", "work_seconds": nil})
	wantFields(t, o.Tracks[0], jsonObject{"track": "training loop", "spans": 30})
	wantFields(t, o.Slowest[0], jsonObject{"index": 77, "epoch": 0, "worker": "worker 2"})
	loader := o.Epochs[0]["step_seconds"].(float64) +
		o.Epochs[0]["wait_seconds"].(float64) - o.Epochs[0]["seconds"].(float64)
	if loader > 1e-9 || loader < -1e-9 {
		t.Errorf("steps and waits are not the time: %v", loader)
	}
}

// Ensure that the ending of the file's name chooses the kind of drawing, that the file is complete,
// and that a part can be chosen.
func TestTraceDraws(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	read := func(name string) []byte {
		t.Helper()
		b := fatal.Value(os.ReadFile(path(name)))(t)
		return b
	}
	for _, name := range []string{"all.html", "all.json", "UPPER.HTML"} {
		code, _, stderr := cli(t, "trace", recording, "-o", path(name))
		if code != exitOK || stderr != path(name)+" written\n" {
			t.Errorf("%s: exit %d, %q", name, code, stderr)
		}
	}
	ok(t, "trace", recording, "--epoch", "1", "--from", "0.05", "--to", "0.06", "-o", path("part.html"))
	if whole, part := len(read("all.html")), len(read("part.html")); part > whole-10_000 {
		t.Errorf("a part has %d bytes, the whole %d", part, whole)
	}
	if !bytes.Equal(read("UPPER.HTML"), read("all.html")) {
		t.Error("pages of the same differ")
	}
	if again, want := ok(t, "trace", path("all.json")), ok(t, "trace", recording); again != want {
		t.Errorf("what was written says\n%s\nand not\n%s", again, want)
	}
	if st, err := os.Stat(path("all.html")); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", st, err)
	}
	fails(t, exitNotFound, []string{"no such file"}, "trace", recording, "-o", path("none/a.html"))
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Errorf("%d files, %v", len(entries), err)
	}
}

// Ensure that the ranks of a job are merged, and that the one that waits most is analysed.
func TestTraceOfRanks(t *testing.T) {
	second, err := timeline.ReadFile(recording)
	fatal.If(t, err)
	second.Loaders[0].Rank, second.Loaders[0].Clock.MonotonicNS = 1, second.Loaders[0].Clock.MonotonicNS+500_000_000
	for _, track := range second.Loaders[0].Tracks { // it has no third epoch, so its last is the second
		track.Spans = slices.DeleteFunc(track.Spans, func(s timeline.Span) bool { return s.Epoch == 2 })
	}
	second.Loaders[0].Dropped, second.Loaders[0].DroppedFrom = 5, new(float64)
	*second.Loaders[0].DroppedFrom = 0.9e6
	path := filepath.Join(t.TempDir(), "second.json.gz")
	err = writeFile(path, func(w io.Writer) error {
		z := gzip.NewWriter(w)
		defer z.Close()
		return timeline.Write(z, second)
	})
	fatal.If(t, err)
	code, out, stderr := cli(t, "trace", recording, path)
	fatal.Equal(t, code, exitOK, "exit: %s", stderr)
	contains(t, out, "1     1      317ms", "WHERE THE TIME WENT of epoch 1, rank 1, which waits most\n",
		"\n1     worker 0 ")
	contains(t, stderr, "rank 1: 5 spans were beyond the recorder's limit", "the figures end 1.400 s after its start")
	fails(t, exitUsage, []string{"recording of rank 0 comes twice"}, "trace", recording, recording)
}

// Ensure that invalid input or choices are refused with the reason, and that nothing is written
// then.
func TestTraceRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		fatal.If(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	out := filepath.Join(dir, "out.html")
	fails(t, exitUsage, []string{"0 arguments, expected the file of a trace"}, "trace")
	fails(t, exitNotFound, []string{"none.json"}, "trace", filepath.Join(dir, "none.json"))
	fails(t, exitCorrupt, []string{"is a folder"}, "trace", dir)
	fails(t, exitCorrupt, []string{"foreign.json: not a timeline of stocached: it holds trace events of " +
		"another program"}, "trace", file("foreign.json", `{"traceEvents":[]}`), "-o", out)
	fails(t, exitUsage, []string{"must end in .html or .json"}, "trace", recording, "-o", "picture.png")
	fails(t, exitUsage, []string{"no epoch 7; it has 0 to 2"}, "trace", recording, "--epoch", "7", "-o", out)
	fails(t, exitUsage, []string{"1.065 seconds to choose from"}, "trace", recording, "--from", "3", "-o", out)
	fails(t, exitUsage, []string{"--from 0.5 --to 0.2"}, "trace", recording, "--from", "0.5", "--to", "0.2", "-o", out)
	fails(t, exitUsage, []string{"--from -1"}, "trace", recording, "--from", "-1", "-o", out)
	if _, err := os.Stat(out); err == nil {
		t.Error("something was written")
	}
	empty := file("nothing.json",
		`{"otherData":{"format":"stocached trace","version":1,"ranks":[{"pid":1}]},"traceEvents":[]}`)
	contains(t, ok(t, "trace", empty), "0 spans, none of them a step or wait of a training loop")
	for _, name := range []string{"a.html", "a.json"} {
		ok(t, "trace", empty, "-o", filepath.Join(dir, name))
	}
}

// Ensure that files are completed.
func TestTraceCompletion(t *testing.T) {
	for flag, want := range map[string]string{"": "json\ngz\n:8\n", "--output=": "html\njson\n:8\n",
		"--epoch=": ":4\n"} {
		if got := ok(t, "__complete", "trace", flag); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q", flag, got)
		}
	}
}
