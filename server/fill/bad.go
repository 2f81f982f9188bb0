package fill

import (
	"log/slog"
	"sync"
	"time"
	"unique"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fewlines"
	"github.com/stocached/stocached/source"
)

const (
	keptReasons   = 10000 // reasons of bad samples, in memory; the others stay known without a reason
	unknownReason = "it did not decode before"
)

// origin is a source, with the samples that it does not decode. A read that outlives SetSource adds to those of its own
// source.
type origin struct {
	source.Source
	bad bad
}

// bad remembers samples that a source does not decode, so that it reads each of them once.
type bad struct {
	mu      sync.Mutex
	samples map[int]verdict
	bad     int // samples with CodeBad
	texts   int // samples with a text
	lines   fewlines.Limit
	formats fewlines.Limit // lines about formats
}

// verdict is why the source does not decode a sample.
type verdict struct {
	code   control.Code
	text   string // "": that of the format, or not kept
	format format // zero: no program decodes it either
}

// format is a KindError of any file. Few of them differ, so they need no bound.
type format = unique.Handle[source.KindError]

// known returns the answer for a sample that the source does not decode.
func (b *bad) known(from source.Source, index int) (r result, known bool) {
	b.mu.Lock()
	v, known := b.samples[index]
	b.mu.Unlock()
	if !known {
		return r, false
	}
	r = result{code: v.code, text: v.text, programs: v.format != (format{})}
	switch {
	case r.text != "":
	case r.programs:
		e := v.format.Value()
		e.Where = from.Where(index)
		r.text = e.Error()
	default:
		r.text = (&source.BadError{Where: from.Where(index), Reason: unknownReason}).Error()
	}
	return r, true
}

// add remembers a bad sample, and logs it unless the log has enough lines of this minute.
func (b *bad) add(log *slog.Logger, index int, e *source.BadError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, known := b.samples[index]; known && v.format == (format{}) {
		return
	}
	b.set(index, verdict{code: control.CodeBad, text: e.Error()})
	if about := b.lines.Add("sample", index, "file", e.Where, "reason", e.Reason); about != nil {
		log.Warn("a sample is bad; clients may leave it out", about...)
	}
}

// addFormat remembers and logs a sample of a format that only programs decode. To other clients a format without a name
// is a damaged file.
func (b *bad) addFormat(log *slog.Logger, index int, e *source.KindError) {
	any := *e
	any.Where = ""
	v := verdict{code: control.CodeKind, format: unique.Make(any)}
	switch {
	case e.Unknown && e.MayLeaveOut:
		v.code = control.CodeBad
	case e.Unknown:
		v.code = control.CodeDamaged
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.samples[index]; known {
		return
	}
	b.set(index, v)
	if about := b.formats.Add("sample", index, "file", e.Where, "reason", e.Reason); about != nil {
		log.Info("the server does not decode a file; programs in Python try it with Pillow", about...)
	}
}

// set remembers a sample. The caller holds mu.
func (b *bad) set(index int, v verdict) {
	if b.samples == nil {
		b.samples = map[int]verdict{}
	}
	before := b.samples[index]
	if before.text != "" {
		b.texts--
	}
	if before.code == control.CodeBad {
		b.bad--
	}
	if b.texts == keptReasons {
		v.text = ""
	}
	if v.text != "" {
		b.texts++
	}
	if v.code == control.CodeBad {
		b.bad++
	}
	b.samples[index] = v
}

// Bad returns how many samples were found to be bad.
func (f *Filler) Bad() int {
	b := &f.origin().bad
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bad
}

// Decoded takes the picture that a program has made of a file, in so long, and stores it.
func (f *Filler) Decoded(index int, sample []byte, took time.Duration) {
	b := &f.origin().bad
	b.mu.Lock()
	if v := b.samples[index]; v.format != (format{}) && v.code != control.CodeKind {
		b.set(index, verdict{code: control.CodeKind, format: v.format}) // so the file is a picture
	}
	b.mu.Unlock()
	f.store(index, sample, false, took)
}

// Damaged takes notice of a file that is damaged, as a program has found that was to decode it. If clients may not leave it
// out, programs try it again.
func (f *Filler) Damaged(index int, reason string) {
	from := f.origin()
	b := &from.bad
	b.mu.Lock()
	v := b.samples[index]
	b.mu.Unlock()
	if v.format == (format{}) {
		return
	}
	e := v.format.Value()
	e.Where = from.Where(index)
	if e.MayLeaveOut {
		b.add(f.log, index, &source.BadError{Where: e.Where, Reason: reason})
		return
	}
	e.Reason = reason
	b.mu.Lock()
	b.set(index, verdict{control.CodeDamaged, e.Error(), v.format})
	b.mu.Unlock()
}

// origin returns the source of later reads.
func (f *Filler) origin() *origin {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.source
}
