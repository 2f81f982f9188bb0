package fill

import (
	"log/slog"
	"sync"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fewlines"
	"github.com/stocached/stocached/source"
)

const (
	keptReasons   = 10000 // reasons of bad samples, in memory; the others stay known without a reason
	unknownReason = "it did not decode before"
)

// bad remembers samples that are bad, so that the source reads each of them once.
type bad struct {
	mu      sync.Mutex
	reasons map[int]string // "": not kept
	lines   fewlines.Limit
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
func (b *bad) add(log *slog.Logger, index int, e *source.BadError) {
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
	if about := b.lines.Add("sample", index, "file", e.Where, "reason", e.Reason); about != nil {
		log.Warn("a sample is bad; clients may leave it out", about...)
	}
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
