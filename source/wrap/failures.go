package wrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/source"
)

// Failures are the failures of one opened source, and of the cache that it fills, that are not over, by kind. The log has
// the first of a kind at once, and then a line each minute. Safe for concurrent use.
type Failures struct {
	AllPass bool // those of the data, too, are over after a minute without one: readers open other data meanwhile

	log     *slog.Logger
	retries *source.Retries
	counts  atomic.Pointer[Counts] // counts of tries; nil: the source opens

	mu    sync.Mutex // protects the field below
	kinds [kinds]failing
}

// failing is one kind of failure.
type failing struct {
	since time.Time // the first one that is not over; zero: there is none
	last  time.Time // the last one
	told  time.Time // the last line of the log
	Failing
	before Failing // at the last line of the log
}

// Failing describes failures of one kind that are not over. Fields are never renamed.
type Failing struct {
	Kind  ErrorKind `json:"kind"`
	Reads uint64    `json:"reads"`        // failed, after all tries; of kinds memory and store: sets that did
	Tries uint64    `json:"tries"`        // failed, and were followed by another
	For   float64   `json:"seconds"`      // since the first one
	Last  float64   `json:"last_seconds"` // since the last one
	Error string    `json:"error"`        // the last one
}

// String describes the failure in one line. It stays true when the failure has stopped and is not over yet.
func (f Failing) String() string {
	ago := func(seconds float64) time.Duration { return time.Duration(seconds) * time.Second }
	what := fmt.Sprintf("reads fail (%s)", f.Kind)
	counts := fmt.Sprintf("reads that failed: %d, tries that failed: %d", f.Reads, f.Tries)
	if k := indexOf(f.Kind); k >= 0 && errorKinds[k].cache { // a newer server may have another kind
		what, counts = errorKinds[k].state, fmt.Sprintf("sets that failed: %d", f.Reads)
	}
	return fmt.Sprintf("%s: first %v ago, last %v ago (%s): %s", what, ago(f.For), ago(f.Last), counts, f.Error)
}

const (
	tellEvery = time.Minute // between two lines of the log about one kind
	overAfter = time.Minute // without a failure, one that does not last is over
)

// NewFailures returns the failures of a source that is about to open with Context.
func NewFailures(log *slog.Logger) *Failures {
	f := &Failures{log: log}
	f.retries = source.NewRetries(func(err error) {
		k := kindIndex(context.Background(), err)
		if c := f.counts.Load(); c != nil {
			c.tries[k].Add(1)
		}
		f.add(k, Failing{Tries: 1, Error: err.Error()})
	})
	return f
}

// Context returns the context in which the source opens.
func (f *Failures) Context(ctx context.Context) context.Context {
	return source.WithRetries(ctx, f.retries)
}

// Count makes c count the tries that f hears of from now on.
func (f *Failures) Count(c *Counts) { f.counts.Store(c) }

// Retrying returns how many reads have failed and will be tried again.
func (f *Failures) Retrying() int64 { return f.retries.Reads() }

// Failed takes notice of a read that failed after all tries. A bad sample is none: clients leave it out. Nor is one whose
// format programs decode.
func (f *Failures) Failed(ctx context.Context, err error) {
	bad, kind := (*source.BadError)(nil), (*source.KindError)(nil)
	if !errors.As(err, &bad) && !(errors.As(err, &kind) && (kind.MayLeaveOut || !kind.Unknown)) {
		f.add(kindIndex(ctx, err), Failing{Reads: 1, Error: err.Error()})
	}
}

// GivenUp takes notice of reads that took too long.
func (f *Failures) GivenUp(reads int, why string) {
	f.add(kindIndex(context.Background(), source.ErrUnavailable), Failing{Reads: uint64(reads), Error: why})
}

// Short takes notice that memory is short, and of sets that found no place since the last call.
func (f *Failures) Short(sets uint64, why string) {
	f.add(indexOf(KindMemory), Failing{Reads: sets, Error: why})
}

// Unstored takes notice of a sample that was read, and that the cache refused.
func (f *Failures) Unstored(err error) {
	f.add(indexOf(KindStore), Failing{Reads: 1, Error: err.Error()})
}

// add adds failures of a kind.
func (f *Failures) add(k int, more Failing) {
	if errorKinds[k].ours {
		return
	}
	now := time.Now()
	f.mu.Lock()
	one := &f.kinds[k]
	first := one.since.IsZero()
	if first {
		*one = failing{since: now, told: now, Failing: Failing{Kind: errorKinds[k].kind}}
	}
	one.Reads, one.Tries, one.Error, one.last = one.Reads+more.Reads, one.Tries+more.Tries, more.Error, now
	if first {
		one.before = one.Failing
	}
	f.mu.Unlock()
	if first { // without the lock: a log may be slow
		f.log.Error(cmp.Or(errorKinds[k].begins, "reads of the source fail"), "kind", errorKinds[k].kind, "tried_again", more.Tries > 0, "error", more.Error)
	}
	f.Tell()
}

// Tell writes the lines of the log that are due. Its owner calls it each second or so.
func (f *Failures) Tell() {
	now := time.Now()
	var lines []func()
	f.mu.Lock()
	for k := range f.kinds {
		one := &f.kinds[k]
		switch {
		case one.since.IsZero():
		case f.over(k, now):
			about := []any{"kind", one.Kind, "reads", one.Reads, "tries", one.Tries, "for", one.last.Sub(one.since).Round(time.Second)}
			lines = append(lines, func() { f.log.Info(cmp.Or(errorKinds[k].ends, "reads of the source no longer fail"), about...) })
			*one = failing{}
		case now.Sub(one.told) >= tellEvery && (one.Reads != one.before.Reads || one.Tries != one.before.Tries):
			about := []any{"kind", one.Kind, "reads", one.Reads - one.before.Reads, "tries", one.Tries - one.before.Tries,
				"tried_again_now", f.Retrying(), "for", now.Sub(one.since).Round(time.Second), "error", one.Error}
			lines = append(lines, func() { f.log.Error(cmp.Or(errorKinds[k].goesOn, "reads of the source have failed"), about...) })
			one.told, one.before = now, one.Failing
		}
	}
	f.mu.Unlock()
	for _, line := range lines {
		line()
	}
}

// over says whether a failure is over. The caller holds mu.
func (f *Failures) over(k int, now time.Time) bool {
	return (f.AllPass || !errorKinds[k].lasts) && now.Sub(f.kinds[k].last) >= overAfter && (errorKinds[k].cache || f.Retrying() == 0)
}

// Now returns the failures that are not over.
func (f *Failures) Now() []Failing {
	now, all := time.Now(), []Failing{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.kinds {
		if one := f.kinds[k]; !one.since.IsZero() && !f.over(k, now) {
			one.For, one.Last = now.Sub(one.since).Seconds(), now.Sub(one.last).Seconds()
			all = append(all, one.Failing)
		}
	}
	return all
}

// Seconds returns for how long each kind lasts, of failures that are not over; 0 for the others.
func Seconds(now []Failing) map[ErrorKind]float64 {
	seconds := map[ErrorKind]float64{}
	for _, kind := range FailureKinds() {
		seconds[kind] = 0
	}
	for _, one := range now {
		seconds[one.Kind] = max(one.For, 1e-3)
	}
	return seconds
}

// FailureKinds are the kinds that Failures have.
func FailureKinds() (all []ErrorKind) {
	for _, k := range errorKinds {
		if !k.ours {
			all = append(all, k.kind)
		}
	}
	return all
}

// watch is the gate of Watch.
type watch struct {
	counts *Counts
	failed *Failures // nil: only counts
}

// Watch counts the reads of a source in c, and gives those that fail to f, if it is not nil. Around the source itself it
// counts each try. Around Retry and the other wrappers it counts what a reader sees. From now on c also counts the tries
// that f hears of.
func Watch(s source.Source, c *Counts, f *Failures) source.Source {
	if f != nil {
		f.Count(c)
	}
	return through(s, watch{c, f})
}

func (w watch) pass(ctx context.Context, closing <-chan struct{}, r read) (int, error) {
	n, err := w.counts.pass(ctx, closing, r)
	if err != nil {
		w.told(ctx, err)
	}
	return n, err
}

// told takes notice of an error.
func (w watch) told(ctx context.Context, err error) {
	if w.failed != nil {
		w.failed.Failed(ctx, err)
	}
}
