package fill

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fewlines"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/wrap"
)

type named struct{ source.Source }

func (named) Where(i int) string { return fmt.Sprintf("%d.jpg", i) }

// Ensure that the log has a line for each bad sample, but few lines a minute, and that the next line
// says how many samples have none.
func TestBadLines(t *testing.T) { synctest.Test(t, badLines) }

func badLines(t *testing.T) {
	var text bytes.Buffer
	log, b := slog.New(slog.NewTextHandler(&text, nil)), new(bad)
	lines := func(want ...string) {
		t.Helper()
		got := strings.Split(strings.TrimSpace(text.String()), "\n")
		if text.Reset(); len(got) != len(want) {
			t.Fatalf("%d lines, want %d: %q", len(got), len(want), got)
		}
		for k, part := range want {
			expect.Says(t, got[k], part)
		}
	}
	var first []string
	for i := range 3 * fewlines.PerMinute {
		for range 2 {
			b.add(log, i, &source.BadError{Where: fmt.Sprintf("%d.jpg", i), Reason: "it is cut"})
		}
		first = append(first, fmt.Sprintf(`sample=%d file=%d.jpg reason="it is cut"`, i, i))
	}
	lines(first[:fewlines.PerMinute]...)
	time.Sleep(time.Minute)
	b.add(log, 100, &source.BadError{Where: "100.jpg", Reason: "no"})
	b.add(log, 101, &source.BadError{Where: "101.jpg", Reason: "no"})
	lines(fmt.Sprintf("sample=100 file=100.jpg reason=no not_logged=%d", 2*fewlines.PerMinute),
		"sample=101 file=101.jpg reason=no")
	if r, bad := b.known(named{}, 7); !bad || r.code != control.CodeBad || r.text != "7.jpg: it is cut" {
		t.Errorf("%+v, %v", r, bad)
	}
	if _, bad := b.known(named{}, 99); bad {
		t.Error("sample 99 is bad")
	}
}

// Ensure that memory for reasons is bounded, and that all bad samples stay known.
func TestManyBadSamples(t *testing.T) {
	b := new(bad)
	for i := range keptReasons + 5 {
		b.add(slog.New(slog.DiscardHandler), i, &source.BadError{Where: "x", Reason: "it is cut"})
	}
	last := keptReasons + 4
	for i, want := range map[int]string{keptReasons - 1: "x: it is cut",
		last: fmt.Sprintf("%d.jpg: %s", last, unknownReason)} {
		if r, bad := b.known(named{}, i); !bad || r.text != want {
			t.Errorf("sample %d: %q, %v; want %q", i, r.text, bad, want)
		}
	}
}

// Ensure that samples that the cache refuses are a failure of the server, with one line of the log and not one for each.
func TestSamplesThatTheCacheRefuses(t *testing.T) {
	segment := fatal.Value(shm.NewHeap(shm.Options{Samples: 100, SampleBytes: 4}))(t)
	c := fatal.Value(cache.Attach(segment, cache.Options{Label: "server"}))(t)
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	failures := wrap.NewFailures(log)
	f := New(c, named{}, 1, nil, new(Stats), failures.Unstored, log)
	defer f.Close(0)
	for i := range 100 {
		if there, _ := f.store(i, make([]byte, 5), i%2 == 0, 0); there {
			t.Error(i)
		}
	}
	now := failures.Now()
	if strings.Count(text.String(), "\n") != 1 || !strings.Contains(text.String(), "could not be stored") ||
		!strings.Contains(text.String(), "sample 0 with 5 bytes") {
		t.Error(text.String())
	}
	if len(now) != 1 || now[0].Kind != wrap.KindStore || now[0].Reads != 100 || !strings.Contains(now[0].Error, "sample 99") {
		t.Errorf("%+v", now)
	}
}

// Ensure that a read of a source that was replaced in the meantime says nothing of the new one's samples.
func TestBadSamplesOfTheSourceBefore(t *testing.T) {
	f := &Filler{log: slog.New(slog.DiscardHandler), source: &origin{Source: named{}}}
	before := f.origin()
	f.SetSource(named{}, nil)
	for _, err := range []error{&source.BadError{Where: "3.jpg", Reason: "it is cut"}, &source.KindError{Where: "3.gif", Reason: "a GIF file"}} {
		if r := f.unread(before, 3, err); r.code != control.CodeBad && r.code != control.CodeKind {
			t.Errorf("%v: %+v", err, r)
		}
		if r, known := f.origin().bad.known(named{}, 3); known {
			t.Errorf("%v: %+v", err, r)
		}
	}
}
