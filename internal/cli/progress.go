package cli

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/clock"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress is a bar on a terminal; it writes nothing to other outputs, nor where a bar cannot be drawn again.
type progress struct {
	bars *mpb.Progress // nil: silent
	bar  *mpb.Bar
}

// newProgress begins a bar. size: total is in bytes.
func newProgress(w io.Writer, what string, total uint64, size bool) *progress {
	counters := decor.CountersNoUnit("%d / %d")
	if size {
		counters = decor.CountersKibiByte("% .1f / % .1f")
	}
	return beginProgress(w, what, total, counters, decor.AverageETA(decor.ET_STYLE_GO))
}

// pace is a bar of samples that also shows bytes a second and the time left. Both count only what
// was done since begin, because samples of an earlier run took no time.
type pace struct {
	*progress
	bytes atomic.Uint64 // read so far
	from  atomic.Uint64 // samples at begin
	began atomic.Int64  // since 1970, in nanoseconds
}

func newPace(w io.Writer, what string, samples uint64) *pace {
	p := &pace{}
	p.begin(0)
	p.progress = beginProgress(w, what, samples, decor.CountersNoUnit("%d / %d"),
		decor.Any(func(s decor.Statistics) string {
			return fmt.Sprintf("%v  %v", p.speed(), p.left(uint64(s.Current), uint64(s.Total)))
		}))
	return p
}

// begin restarts the clock, with samples that are already done.
func (p *pace) begin(from uint64) {
	p.from.Store(from)
	p.began.Store(int64(clock.Now()))
}

func (p *pace) elapsed() time.Duration { return clock.Now() - time.Duration(p.began.Load()) }

func (p *pace) speed() table.BytesPerSecond {
	return table.BytesPerSecond(float64(p.bytes.Load()) / p.elapsed().Seconds())
}

// left is the time for the rest at this pace; unknown before the first sample.
func (p *pace) left(done, total uint64) string {
	from := p.from.Load()
	if done <= from || total < done {
		return "-"
	}
	return time.Duration(float64(p.elapsed()) / float64(done-from) * float64(total-done)).Round(time.Second).String()
}

func beginProgress(w io.Writer, what string, total uint64, counters, last decor.Decorator) *progress {
	if !canRedraw(w) {
		return &progress{}
	}
	options := []mpb.ContainerOption{mpb.WithOutput(w), mpb.WithWidth(60)}
	if width, _, said := saidSize(w); !said { // as of script and of some CI: mpb would draw empty lines
		options = []mpb.ContainerOption{mpb.WithOutput(noTerminal{w}), mpb.WithWidth(width - 1), mpb.WithAutoRefresh()}
	}
	bars := mpb.New(options...)
	bar := bars.AddBar(int64(total), mpb.PrependDecorators(decor.Name(what+" ")),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5}), decor.Name("  "), counters, decor.Name("  "), last))
	return &progress{bars, bar}
}

// noTerminal hides from mpb that an output is a terminal, so that mpb does not ask for its size.
type noTerminal struct{ io.Writer }

// set sets how much is done.
func (p *progress) set(done uint64) {
	if p.bars != nil {
		p.bar.SetCurrent(int64(done))
	}
}

// of sets the total, as far as it is known. Only for bars that began with a total of 0.
func (p *progress) of(total uint64) {
	if p.bars != nil {
		p.bar.SetTotal(int64(total), false)
	}
}

// end draws the present state and ends the bar, complete or not.
func (p *progress) end() {
	if p.bars != nil {
		p.bar.Abort(false) // no effect on a complete one
		p.bars.Wait()
	}
}
