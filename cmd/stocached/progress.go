package main

import (
	"io"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress is a bar on a terminal; on anything else it is silent.
type progress struct {
	bars *mpb.Progress // nil: silent
	bar  *mpb.Bar
}

// newProgress begins a bar. size: total is bytes.
func newProgress(w io.Writer, what string, total uint64, size bool) *progress {
	if !isTerminal(w) {
		return &progress{}
	}
	counters := decor.CountersNoUnit("%d / %d")
	if size {
		counters = decor.CountersKibiByte("% .1f / % .1f")
	}
	bars := mpb.New(mpb.WithOutput(w), mpb.WithWidth(60))
	bar := bars.AddBar(int64(total), mpb.PrependDecorators(decor.Name(what+" ")),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5}), decor.Name("  "), counters, decor.Name("  "), decor.AverageETA(decor.ET_STYLE_GO)))
	return &progress{bars, bar}
}

// set says how much is done.
func (p *progress) set(done uint64) {
	if p.bars != nil {
		p.bar.SetCurrent(int64(done))
	}
}

// end takes what is there to the screen and ends the bar, complete or not.
func (p *progress) end() {
	if p.bars != nil {
		p.bar.Abort(false) // no effect on a complete one
		p.bars.Wait()
	}
}
