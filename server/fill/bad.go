package fill

import (
	"log/slog"
	"sync"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/source"
)

const (
	keptReasons   = 10000 // of bad samples, in memory; the others stay known without a reason
	linesAMinute  = 10    // of bad samples, in the log
	unknownReason = "it did not decode before"
)

// bad remembers samples that are bad, so that the source reads each of them once.
type bad struct {
	mu      sync.Mutex
	reasons map[int]string // "": not kept
	minute  time.Time      // when the present minute of the log began
	lines   int            // in it
	left    int            // samples that no line names
}

// known returns the answer for a sample that is known to be bad.
func (b *bad) known(from source.Source, index int) (r result, bad bool) {
	b.mu.Lock()
	reason, bad := b.reasons[index]
	b.mu.Unlock()
	if bad && reason == "" {
		reason = (&source.BadError{Where: from.Where(index), Reason: unknownReason}).Error()
	}
	return result{code: control.CodeBad, text: reason}, bad
}

// add remembers a bad sample, and logs it unless the log has enough lines of this minute.
func (b *bad) add(log *slog.Logger, index int, e *source.BadError, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.reasons[index]; known {
		return
	}
	if b.reasons == nil {
		b.reasons = map[int]string{}
	}
	b.reasons[index] = ""
	if len(b.reasons) <= keptReasons {
		b.reasons[index] = e.Error()
	}
	if now.Sub(b.minute) >= time.Minute {
		b.minute, b.lines = now, 0
	}
	if b.lines == linesAMinute {
		b.left++
		return
	}
	b.lines++
	about := []any{"sample", index, "file", e.Where, "reason", e.Reason}
	if b.left > 0 {
		about = append(about, "not_logged", b.left)
	}
	b.left = 0
	log.Warn("a sample is bad; clients may leave it out", about...)
}

// forget forgets all samples.
func (b *bad) forget() {
	b.mu.Lock()
	b.reasons = nil
	b.mu.Unlock()
}

// Bad returns how many samples were found to be bad.
func (f *Filler) Bad() int {
	f.bad.mu.Lock()
	defer f.bad.mu.Unlock()
	return len(f.bad.reasons)
}
