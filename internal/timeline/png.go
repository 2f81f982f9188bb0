package timeline

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"strconv"
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
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
	p, err := newPicture(t, from, to)
	if err != nil {
		return err
	}
	p.draw(t.between(from, to))
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	return encoder.Encode(w, p.image)
}

type picture struct {
	image    *image.RGBA
	from, to int64
	left     int // of the bars
	right    int
	row      int     // height of one
	perNS    float64 // pixels
	small    font.Face
	normal   font.Face
	bold     font.Face
}

var fonts = sync.OnceValues(func() (f [2]*opentype.Font, err error) {
	for k, data := range [][]byte{goregular.TTF, gobold.TTF} {
		if f[k], err = opentype.Parse(data); err != nil {
			return f, err
		}
	}
	return f, nil
})

func newPicture(t *Trace, from, to int64) (*picture, error) {
	f, err := fonts()
	if err != nil {
		return nil, err
	}
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
	p.image = image.NewRGBA(image.Rect(0, 0, width, fixedHeight+rows*(p.row+p.gap())))
	for _, face := range []struct {
		to   *font.Face
		font *opentype.Font
		size float64
	}{{&p.small, f[0], 21}, {&p.normal, f[0], 25}, {&p.bold, f[1], 30}} {
		if *face.to, err = opentype.NewFace(face.font,
			&opentype.FaceOptions{Size: face.size, DPI: 72, Hinting: font.HintingFull}); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *picture) gap() int {
	if p.row < rowHeight {
		return rowGap / 4
	}
	return rowGap
}

func (p *picture) draw(t *Trace) {
	p.fill(p.image.Bounds(), white)
	y := edge
	p.text(p.bold, edge, y+30, black, t.title(p.from, p.to))
	p.textRight(p.normal, width-edge, y+30, grey, t.subtitle(p.from, p.to))
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
		p.text(p.normal, edge, y+38, grey, l.heading())
		p.textRight(p.small, width-edge, y+38, grey, "busy")
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
		p.fill(image.Rect(x, y+10, x+28, y+34), palette[k])
		x = p.text(p.small, x+38, y+30, black, k.String()) + 34
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
		p.fill(image.Rect(x, top+headLine-8, x+1, bottom), pale)
		label := strconv.FormatFloat(float64(at)/divisor, 'f', digits, 64)
		if at+step > p.to-p.from {
			label += " " + unit
		}
		w := font.MeasureString(p.small, label).Round()
		p.text(p.small, x-w/2, bottom+32, grey, label)
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
		p.text(p.normal, edge, y+p.row/2+9, black, p.fit(p.normal, track.Name, labelWidth-16))
		p.textRight(p.small, width-edge, y+p.row/2+8, grey, percent(share))
	}
	row := image.Rect(p.left, y, p.right, y+p.row)
	p.fill(row, faint)
	narrow := newCoverage(p.right - p.left)
	for k := range track.Spans {
		s := &track.Spans[k]
		if s.End <= p.from || s.Start >= p.to {
			continue
		}
		x0, x1 := float64(max(s.Start, p.from)-p.from)*p.perNS, float64(min(s.End, p.to)-p.from)*p.perNS
		c := batchShade(palette[s.Kind], s.Batch)
		if x1-x0 < 5 {
			narrow.add(x0, x1, c)
			continue
		}
		bar := image.Rect(p.left+int(x0+0.5), y, p.left+int(x1+0.5)-1, y+p.row)
		p.fill(bar, c)
		if label := t.label(s); label != "" && p.row >= 24 {
			if w := font.MeasureString(p.small, label).Round(); w+12 <= bar.Dx() {
				p.text(p.small, bar.Min.X+(bar.Dx()-w)/2, y+p.row/2+7, inks[s.Kind], label)
			}
		}
	}
	for x, n := range narrow.share {
		if n > 0 {
			c := narrow.colour(x)
			under := p.image.RGBAAt(p.left+x, y)
			p.fill(image.Rect(p.left+x, y, p.left+x+1, y+p.row), mix(under, c, min(0.25+0.75*n, 1)))
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

func (p *picture) fill(r image.Rectangle, c color.RGBA) {
	draw.Draw(p.image, r, image.NewUniform(c), image.Point{}, draw.Src)
}

// text writes from x on, with its base line at y, and returns the end.
func (p *picture) text(face font.Face, x, y int, c color.RGBA, text string) int {
	d := font.Drawer{Dst: p.image, Src: image.NewUniform(c), Face: face, Dot: fixed.P(x, y)}
	d.DrawString(text)
	return d.Dot.X.Round()
}

func (p *picture) textRight(face font.Face, x, y int, c color.RGBA, text string) {
	p.text(face, x-font.MeasureString(face, text).Round(), y, c, text)
}

// fit cuts a text that is wider than room.
func (p *picture) fit(face font.Face, text string, room int) string {
	if font.MeasureString(face, text).Round() <= room {
		return text
	}
	runes := []rune(text)
	for len(runes) > 0 && font.MeasureString(face, string(runes)+"…").Round() > room {
		runes = runes[:len(runes)-1]
	}
	return string(runes) + "…"
}
