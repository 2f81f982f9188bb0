package advise

import (
	"fmt"
	"image"
	"image/color"
	"io"
	"math"
	"strconv"

	"github.com/stocached/stocached/internal/draw"
	"github.com/stocached/stocached/internal/palette"
)

// Size and edges of a picture in pixels.
const (
	width, height            = 1600, 1000
	left, right, top, bottom = 150, 60, 190, 120
)

// PNG draws the curve.
func PNG(w io.Writer, c *Curve) error {
	p := draw.NewPixels(width, height)
	picture{p, c}.draw()
	return p.PNG(w)
}

// SVG draws the curve.
func SVG(w io.Writer, c *Curve) error {
	s := draw.NewSVG(width, height)
	picture{s, c}.draw()
	return s.Write(w)
}

type picture struct {
	draw.Canvas
	*Curve
}

var lines = [policies]struct {
	name   string
	colour color.RGBA
	width  float64
	dash   float64
}{
	FirstCome: {"first-come, predicted", palette.Blue, 5, 0},
	Cost:      {"cost, predicted", palette.Green, 6, 0},
	Ideal:     {"ideal set", palette.Grey, 3, 10},
}

func (p picture) draw() {
	p.Text(draw.Bold, left, 62, draw.Begin, palette.Black, "Time of an epoch against the memory of its cache")
	p.Text(draw.Normal, left, 104, draw.Begin, palette.Grey, p.Name)
	p.legend()
	longest := max(p.Measured(), 1e-9)
	for k := range policies {
		seconds, _ := p.Epoch(k, 0)
		longest = max(longest, seconds)
	}
	step := round(longest / 6)
	longest = math.Ceil(longest/step*1.0001) * step
	x := func(part float64) float64 { return left + part*(width-left-right) }
	y := func(seconds float64) float64 { return height - bottom - seconds/longest*(height-top-bottom) }
	for s := 0.0; s <= longest*1.0001; s += step {
		at := int(y(s))
		p.Fill(image.Rect(left, at, width-right, at+2), palette.Pale)
		p.Text(draw.Small, left-14, at+8, draw.End, palette.Grey, number(s, step)+" s")
	}
	p.memory(x)
	if least, limit := p.Pace.Epoch(0); least > 0 {
		p.Line([]draw.Point{{X: x(0), Y: y(least)}, {X: x(1), Y: y(least)}}, 3, 16, palette.Vermilion)
		p.Text(draw.Small, left+14, int(y(least))-12, draw.Begin, palette.Vermilion, "limit: "+limit)
	}
	const fine = 200
	for _, k := range []Policy{FirstCome, Cost, Ideal} {
		var points []draw.Point
		for n := range fine + 1 {
			part := float64(n) / fine
			seconds, _ := p.Epoch(k, part)
			points = append(points, draw.Point{X: x(part), Y: y(seconds)})
		}
		p.Line(points, lines[k].width, lines[k].dash, lines[k].colour)
	}
	at := draw.Point{X: x(p.Today.Part), Y: y(p.Measured())}
	p.Fill(image.Rect(int(at.X)-11, int(at.Y)-11, int(at.X)+11, int(at.Y)+11), palette.White)
	p.Fill(image.Rect(int(at.X)-8, int(at.Y)-8, int(at.X)+8, int(at.Y)+8), palette.Black)
	align, beside := draw.Begin, 18
	if p.Today.Part > 0.8 {
		align, beside = draw.End, -18
	}
	const label = "today, measured" // the curves are predictions, so it may lie beside them
	behind := image.Rect(0, 0, p.Width(draw.Normal, label), 30).Add(image.Pt(int(at.X)+beside, int(at.Y)-40))
	if align == draw.End {
		behind = behind.Sub(image.Pt(behind.Dx(), 0))
	}
	p.Fill(behind, palette.White)
	p.Text(draw.Normal, int(at.X)+beside, int(at.Y)-16, align, palette.Black, label)
}

func (p picture) legend() {
	at := left
	for _, l := range lines {
		p.Line([]draw.Point{{X: float64(at), Y: 142}, {X: float64(at + 50), Y: 142}}, l.width, l.dash, l.colour)
		p.Text(draw.Small, at+62, 150, draw.Begin, palette.Black, l.name)
		at += 62 + p.Width(draw.Small, l.name) + 44
	}
}

// memory draws the lower axis, in a unit that fits the dataset.
func (p picture) memory(x func(part float64) float64) {
	unit, scale := "B", 1.0
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if float64(p.Bytes(1))/scale >= 4096 {
			unit, scale = next, scale*1024
		}
	}
	all := float64(p.Bytes(1)) / scale
	step := round(all / 6)
	for m := 0.0; m <= all*1.0001; m += step {
		p.Text(draw.Small, int(x(m/all)), height-bottom+36, draw.Middle, palette.Grey, number(m, step)+" "+unit)
	}
	p.Text(draw.Normal, (left+width-right)/2, height-bottom+86, draw.Middle, palette.Grey,
		fmt.Sprintf("memory for samples; %s %s hold all %d", number(all, step/10), unit, p.Samples))
}

// round returns the least of 1, 2 or 5 times a power of 10 that is not below x.
func round(x float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, f := range []float64{1, 2, 5} {
		if f*power >= x*0.9999 {
			return f * power
		}
	}
	return 10 * power
}

// number writes a multiple of a step with no more digits than it needs.
func number(x, step float64) string {
	return strconv.FormatFloat(x, 'f', max(0, int(math.Ceil(-math.Log10(step)-1e-9))), 64)
}
