package wrap_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest/faults"
	"github.com/stocached/stocached/source/wrap"

	"golang.org/x/sys/unix"
)

// failingRecords are 8 records whose reads fail as rules say, with the failures and their log.
func failingRecords(t *testing.T, rules ...faults.Rule) (source.Source, *wrap.Failures, *wrap.Counts, func() string) {
	inner, _ := records(t, 8, 24)
	log, counts := &bytes.Buffer{}, &wrap.Counts{}
	f := wrap.NewFailures(slog.New(slog.NewTextHandler(log, nil)))
	tried, err := wrap.Apply(faults.Wrap(inner, rules...), map[string]any{"retry": map[string]any{"tries": 100}},
		source.RetriesOf(f.Context(context.Background())))
	fatal.If(t, err)
	return wrap.Watch(tried, counts, f), f, counts, func() string {
		said := log.String()
		log.Reset()
		return said
	}
}

// Ensure that the log has the first failed try at once, then a line each minute, and the end, and that reads that wait
// for another try are counted.
func TestFailuresOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, counts, said := failingRecords(t, faults.Rule{Samples: []int{1, 2}, Err: unix.ECONNREFUSED})
		for i := range 3 {
			go func() {
				if _, err := readOne(s, i); (err == nil) != (i == 0) {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		log := said()
		if strings.Count(log, "reads of the source fail") != 1 || !strings.Contains(log, "kind=unavailable") ||
			!strings.Contains(log, "tried_again=true") || !strings.Contains(log, "connection refused") {
			t.Error(log)
		}
		now := f.Now()
		if len(now) != 1 || now[0].Kind != wrap.KindUnavailable || now[0].Reads != 0 || now[0].Tries != 2 || f.Retrying() != 2 {
			t.Errorf("%+v, %d reads are tried again", now, f.Retrying())
		}
		lines := 0
		for range 150 {
			time.Sleep(time.Second)
			f.Tell()
			lines += strings.Count(said(), "reads of the source ")
		}
		// 30 s of tries, and a minute later the end: no minute passes in which the log is silent about it
		if lines != 2 || len(f.Now()) != 0 || f.Retrying() != 0 {
			t.Errorf("%d lines, %+v", lines, f.Now())
		}
		if c := counts.Snapshot(); c.Errors[wrap.KindUnavailable] != 2 || c.Tries[wrap.KindUnavailable] < 4 {
			t.Errorf("%+v", c)
		}
	})
}

// Ensure that damage of the data stays a failure until the source is opened again, and that each kind has its own.
func TestFailuresThatLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _, said := failingRecords(t, faults.Rule{Samples: []int{0}, Err: source.ErrChanged},
			faults.Rule{Samples: []int{1}, Err: source.ErrCorrupt}, faults.Rule{Samples: []int{2}, Err: fs.ErrNotExist},
			faults.Rule{Samples: []int{3}, Err: fs.ErrPermission}, faults.Rule{Samples: []int{4}, Err: source.ErrDecode},
			faults.Rule{Samples: []int{5}, Err: errors.New("odd")}, faults.Rule{Samples: []int{6}, Err: context.Canceled},
			faults.Rule{Samples: []int{7}, Err: &source.BadError{Where: "a.jpg", Reason: "cut"}})
		for i := range 8 {
			for range 2 {
				if _, err := readOne(s, i); err == nil {
					t.Error(i)
				}
			}
		}
		kinds := func() (all []string) {
			for _, one := range f.Now() {
				all = append(all, string(one.Kind))
			}
			return all
		}
		expect.Equal(t, strings.Join(kinds(), " "), "changed decode damaged missing denied other", "")
		if log := said(); strings.Count(log, "reads of the source fail") != 6 {
			t.Error(log)
		}
		time.Sleep(2 * time.Minute)
		f.Tell()
		expect.Equal(t, strings.Join(kinds(), " "), "changed decode damaged missing", "")
		if f.AllPass = true; len(f.Now()) != 0 {
			t.Error(kinds())
		}
	})
}

// Ensure that the line for operators says when the last failure was: a storage that is back is no longer said to fail.
func TestFailureInWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := wrap.NewFailures(slog.New(slog.DiscardHandler))
		f.GivenUp(2, "it hangs")
		f.Short(7, "0 bytes free")
		time.Sleep(10 * time.Second)
		f.GivenUp(1, "it hangs again")
		time.Sleep(40 * time.Second)
		for k, want := range []string{
			"reads fail (unavailable): first 50s ago, last 40s ago (reads that failed: 3, tries that failed: 0): it hangs again",
			"memory is short: first 50s ago, last 50s ago (sets that failed: 7): 0 bytes free",
		} {
			if now := f.Now(); len(now) != 2 || now[k].String() != want {
				t.Errorf("%v", now)
			}
		}
		newer := wrap.Failing{Kind: "new", Reads: 1, Error: "it is"} // a server of a later version says it
		if got := newer.String(); got != "reads fail (new): first 0s ago, last 0s ago (reads that failed: 1, tries that failed: 0): it is" {
			t.Error(got)
		}
	})
}
