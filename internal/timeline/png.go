package timeline

import (
	"fmt"
	"image"
	"image/color"
	"io"
	"math"
	"strconv"

	"github.com/stocached/stocached/internal/draw"
)

// Sizes of a picture in pixels: twice the intended size, for screens of high resolution.
const (
	width      = 2000
	edge       = 48
	labelWidth = 300
	shareWidth = 110
	titleLine  = 56
	legendLine = 60
	headLine   = 58
	rowHeight  = 50
	rowGap     = 12
	axisHeight = 64
	maxHeight  = 12000 // some 180 workers; more rows are drawn thinner
	leastRow   = 8
)

// PNG draws the spans between two moments: a row for each track, the training loop above its
// workers.
func PNG(w io.Writer, t *Trace, from, to int64) error {
	p := newPicture(t, from, to)
	p.draw(t.between(from, to))
	return p.PNG(w)
}

type picture struct {
	*draw.Pixels
	from, to int64
	left     int // of the bars
	right    int
	row      int     // height of one
	perNS    float64 // pixels
}

func newPicture(t *Trace, from, to int64) *picture {
	p := &picture{from: from, to: max(to, from+1), left: edge + labelWidth, right: width - edge - shareWidth,
		row: rowHeight}
	p.perNS = float64(p.right-p.left) / float64(p.to-p.from)
	rows := 0
	for _, l := range t.Loaders {
		rows += len(l.Tracks)
	}
	fixedHeight := edge + edge/4 + titleLine + legendLine + axisHeight + len(t.Loaders)*headLine
	if all := maxHeight - fixedHeight; rows > 0 && rows*(rowHeight+rowGap) > all {
		p.row = max(all/rows-rowGap/4, leastRow)
	}
	p.Pixels = draw.NewPixels(width, fixedHeight+rows*(p.row+p.gap()))
	return p
}

func (p *picture) gap() int {
	if p.row < rowHeight {
		return rowGap / 4
	}
	return rowGap
}

func (p *picture) draw(t *Trace) {
	y := edge
	p.Text(draw.Bold, edge, y+30, draw.Begin, black, t.title(p.from, p.to))
	p.Text(draw.Normal, width-edge, y+30, draw.End, grey, t.subtitle(p.from, p.to))
	y += titleLine
	p.legend(t, y)
	y += legendLine
	top := y
	bottom := y
	for _, l := range t.Loaders {
		bottom += headLine + len(l.Tracks)*(p.row+p.gap())
	}
	p.axis(top, bottom)
	uses := t.Uses(p.from, p.to)
	for _, l := range t.Loaders {
		p.Text(draw.Normal, edge, y+38, draw.Begin, grey, l.heading())
		p.Text(draw.Small, width-edge, y+38, draw.End, grey, "busy")
		y += headLine
		for _, track := range l.Tracks {
			p.track(t, track, y, uses[0].Share)
			uses = uses[1:]
			y += p.row + p.gap()
		}
	}
}

// title says how long the training loops waited between two moments.
func (t *Trace) title(from, to int64) string {
	var step, wait int64
	for _, l := range t.Loaders {
		if loop := l.Loop(); loop != nil {
			for k := range loop.Spans {
				switch s := &loop.Spans[k]; s.Kind {
				case Step:
					step += max(min(s.End, to)-max(s.Start, from), 0)
				case Wait:
					wait += max(min(s.End, to)-max(s.Start, from), 0)
				}
			}
		}
	}
	if step+wait == 0 {
		return "Timeline"
	}
	whose := "The training loop waited %s of its time"
	if len(t.Loaders) > 1 {
		whose = "The training loops waited %s of their time"
	}
	return fmt.Sprintf(whose, percent(float64(wait)/float64(step+wait)))
}

func (t *Trace) subtitle(from, to int64) string {
	return fmt.Sprintf("%s spans in %s", thousands(float64(t.Spans())), duration(seconds(to-from)))
}

// heading names the loader and its settings.
func (l *Loader) heading() string {
	text := l.Name()
	if n, ok := l.setting("num_workers"); ok {
		text += fmt.Sprintf("   num_workers=%d", n)
	}
	if n, ok := l.setting("batch_size"); ok {
		text += fmt.Sprintf("   batch_size=%d", n)
	}
	if n, ok := l.setting("prefetch_factor"); ok {
		text += fmt.Sprintf("   prefetch_factor=%d", n)
	}
	return text
}

// legend shows the colours of the kinds in the picture.
func (p *picture) legend(t *Trace, y int) {
	x := edge
	there := t.kinds()
	for k := range kinds {
		if !there[k] {
			continue
		}
		p.Fill(image.Rect(x, y+10, x+28, y+34), colours[k])
		p.Text(draw.Small, x+38, y+30, draw.Begin, black, k.String())
		x += 38 + p.Width(draw.Small, k.String()) + 34
	}
}

func (t *Trace) kinds() (there [kinds]bool) {
	for _, l := range t.Loaders {
		for _, track := range l.Tracks {
			for k := range track.Spans {
				there[track.Spans[k].Kind] = true
			}
		}
	}
	return there
}

// axis draws times at the bottom, and a line at each.
func (p *picture) axis(top, bottom int) {
	step := tickStep(p.to-p.from, 8)
	unit, divisor, digits := tickUnit(step)
	for at := int64(0); at <= p.to-p.from; at += step {
		x := p.left + int(float64(at)*p.perNS)
		p.Fill(image.Rect(x, top+headLine-8, x+1, bottom), pale)
		label := strconv.FormatFloat(float64(at)/divisor, 'f', digits, 64)
		if at+step > p.to-p.from {
			label += " " + unit
		}
		p.Text(draw.Small, x, bottom+32, draw.Middle, grey, label)
	}
}

// tickStep returns a round number of nanoseconds of which length has at most n.
func tickStep(length int64, n int) int64 {
	for step := int64(1); ; step *= 10 {
		for _, s := range []int64{step, 2 * step, 5 * step} {
			if length/s <= int64(n) {
				return s
			}
		}
	}
}

func tickUnit(step int64) (unit string, divisor float64, digits int) {
	unit, divisor = "s", 1e9
	switch {
	case step < 1e3:
		unit, divisor = "ns", 1
	case step < 1e6:
		unit, divisor = "us", 1e3
	case step < 1e9:
		unit, divisor = "ms", 1e6
	}
	return unit, divisor, max(0, int(math.Ceil(-math.Log10(float64(step)/divisor)-1e-9)))
}

func (p *picture) track(t *Trace, track *Track, y int, share float64) {
	if p.row >= 24 {
		p.Text(draw.Normal, edge, y+p.row/2+9, draw.Begin, black, p.fit(draw.Normal, track.Name, labelWidth-16))
		p.Text(draw.Small, width-edge, y+p.row/2+8, draw.End, grey, percent(share))
	}
	row := image.Rect(p.left, y, p.right, y+p.row)
	p.Fill(row, faint)
	narrow := newCoverage(p.right - p.left)
	for k := range track.Spans {
		s := &track.Spans[k]
		if s.End <= p.from || s.Start >= p.to {
			continue
		}
		x0, x1 := float64(max(s.Start, p.from)-p.from)*p.perNS, float64(min(s.End, p.to)-p.from)*p.perNS
		c := batchShade(colours[s.Kind], s.Batch)
		if x1-x0 < 5 {
			narrow.add(x0, x1, c)
			continue
		}
		bar := image.Rect(p.left+int(x0+0.5), y, p.left+int(x1+0.5)-1, y+p.row)
		p.Fill(bar, c)
		if label := t.label(s); label != "" && p.row >= 24 {
			if w := p.Width(draw.Small, label); w+12 <= bar.Dx() {
				p.Text(draw.Small, bar.Min.X+bar.Dx()/2, y+p.row/2+7, draw.Middle, inks[s.Kind], label)
			}
		}
	}
	for x, n := range narrow.share {
		if n > 0 {
			c := narrow.colour(x)
			under := p.Image.RGBAAt(p.left+x, y)
			p.Fill(image.Rect(p.left+x, y, p.left+x+1, y+p.row), mix(under, c, min(0.25+0.75*n, 1)))
		}
	}
}

// label returns the text on a span that is wide enough.
func (t *Trace) label(s *Span) string {
	switch {
	case s.Kind == Load || s.Kind == Augment:
		if s.Index >= 0 {
			return strconv.FormatInt(s.Index, 10)
		}
	case s.Kind == Other:
		return t.Name(s)
	case s.Batch >= 0:
		return strconv.Itoa(int(s.Batch))
	}
	return ""
}

// coverage says how much of each pixel column is covered by spans too narrow to be drawn one by
// one, and in which colour.
type coverage struct {
	share   []float64
	r, g, b []float64
}

func newCoverage(n int) *coverage {
	return &coverage{make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)}
}

func (c *coverage) add(x0, x1 float64, colour color.RGBA) {
	for x := int(x0); x < len(c.share) && float64(x) < x1; x++ {
		part := max(min(x1, float64(x+1))-max(x0, float64(x)), 1e-4)
		c.share[x] += part
		c.r[x] += part * float64(colour.R)
		c.g[x] += part * float64(colour.G)
		c.b[x] += part * float64(colour.B)
	}
}

func (c *coverage) colour(x int) color.RGBA {
	n := c.share[x]
	return color.RGBA{uint8(c.r[x]/n + 0.5), uint8(c.g[x]/n + 0.5), uint8(c.b[x]/n + 0.5), 0xFF}
}

// fit cuts a text that is wider than room.
func (p *picture) fit(face draw.Face, text string, room int) string {
	if p.Width(face, text) <= room {
		return text
	}
	runes := []rune(text)
	for len(runes) > 0 && p.Width(face, string(runes)+"…") > room {
		runes = runes[:len(runes)-1]
	}
	return string(runes) + "…"
}
