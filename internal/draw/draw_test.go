package draw

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/palette"
)

// inked counts the pixels of a part that are not white.
func inked(p *Pixels, r image.Rectangle) (n int) {
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			if p.Image.RGBAAt(x, y) != palette.White {
				n++
			}
		}
	}
	return n
}

// A line joins its points, and dashes leave gaps, also around a corner.
func TestLine(t *testing.T) {
	p := NewPixels(200, 100)
	p.Line([]Point{{10, 50}, {110, 50}, {110, 10}}, 4, 0, palette.Blue)
	for _, at := range [][2]int{{12, 50}, {60, 50}, {110, 30}, {110, 50}} {
		if got := p.Image.RGBAAt(at[0], at[1]); got != palette.Blue {
			t.Errorf("at %v: %v", at, got)
		}
	}
	if n := inked(p, image.Rect(0, 0, 200, 100)); n < 4*135 || n > 4*150 {
		t.Errorf("%d pixels for a line of 140 by 4", n)
	}
	p = NewPixels(200, 100)
	p.Line([]Point{{10, 50}, {35, 50}, {35, 50}, {110, 50}}, 4, 10, palette.Green)
	for x, want := range map[int]color.RGBA{12: palette.Green, 18: palette.Green, 22: palette.White, 28: palette.White, 32: palette.Green, 38: palette.Green, 42: palette.White,
		92: palette.Green, 102: palette.White} {
		if got := p.Image.RGBAAt(x, 50); got != want {
			t.Errorf("dashes at %d: %v, want %v", x, got, want)
		}
	}
}

// A text begins, has its middle, or ends at its place, in pixels and in SVG.
func TestText(t *testing.T) {
	s := NewSVG(400, 100)
	for align, part := range map[Align]image.Rectangle{Begin: image.Rect(200, 0, 400, 100),
		Middle: image.Rect(200, 0, 400, 100), End: image.Rect(0, 0, 200, 100)} {
		p := NewPixels(400, 100)
		p.Text(Bold, 200, 60, align, palette.Black, "memory")
		all, inside := inked(p, p.Image.Bounds()), inked(p, part)
		if align == Middle && (inside < all/4 || inside > 3*all/4) || align != Middle && inside < all*9/10 || all < 100 {
			t.Errorf("align %d: %d of %d pixels", align, inside, all)
		}
		s.Text(Bold, 200, 60, align, palette.Black, "a < b")
		var file bytes.Buffer
		if err := p.PNG(&file); err != nil {
			t.Fatal(err)
		}
		if back, err := png.Decode(&file); err != nil || back.Bounds() != p.Image.Bounds() {
			t.Error(err)
		}
	}
	var file strings.Builder
	if err := s.Write(&file); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`width="200" height="50" viewBox="0 0 400 100"`, `text-anchor="middle"`, `text-anchor="end"`,
		`font-size="30" fill="#1c2430" font-weight="bold"`, "a &lt; b</text>"} {
		if !strings.Contains(file.String(), want) {
			t.Errorf("no %s in\n%s", want, file.String())
		}
	}
}
