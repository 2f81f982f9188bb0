package draw

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/font"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"

	"github.com/stocached/stocached/internal/palette"
)

// Pixels is a Canvas of pixels.
type Pixels struct {
	faces
	Image *image.RGBA
}

// NewPixels returns a white canvas.
func NewPixels(width, height int) *Pixels {
	p := &Pixels{newFaces(), image.NewRGBA(image.Rect(0, 0, width, height))}
	p.Fill(p.Image.Bounds(), palette.White)
	return p
}

// PNG writes the picture.
func (p *Pixels) PNG(w io.Writer) error {
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	return encoder.Encode(w, p.Image)
}

func (p *Pixels) Fill(r image.Rectangle, c color.RGBA) {
	draw.Draw(p.Image, r, image.NewUniform(c), image.Point{}, draw.Src)
}

func (p *Pixels) Text(f Face, x, y int, a Align, c color.RGBA, text string) {
	switch a {
	case Middle:
		x -= p.Width(f, text) / 2
	case End:
		x -= p.Width(f, text)
	}
	d := font.Drawer{Dst: p.Image, Src: image.NewUniform(c), Face: p.faces[f], Dot: fixed.P(x, y)}
	d.DrawString(text)
}

// Line draws the union of a rectangle for each part.
func (p *Pixels) Line(points []Point, width, dash float64, c color.RGBA) {
	size := p.Image.Bounds().Size()
	r := vector.NewRasterizer(size.X, size.Y)
	along := 0.0 // the length so far
	for k := 1; k < len(points); k++ {
		a, b := points[k-1], points[k]
		length := math.Hypot(b.X-a.X, b.Y-a.Y)
		if length == 0 {
			continue
		}
		at := func(d float64) Point { return Point{a.X + (b.X-a.X)*d/length, a.Y + (b.Y-a.Y)*d/length} }
		if dash <= 0 {
			stroke(r, at(-width/4), at(length+width/4), width) // a little longer: parts overlap at corners
			continue
		}
		for begin := -math.Mod(along, 2*dash); begin < length; begin += 2 * dash {
			if end := min(begin+dash, length); end > 0 {
				stroke(r, at(max(begin, 0)), at(end), width)
			}
		}
		along += length
	}
	r.Draw(p.Image, p.Image.Bounds(), image.NewUniform(c), image.Point{})
}

func stroke(r *vector.Rasterizer, a, b Point, width float64) {
	length := math.Hypot(b.X-a.X, b.Y-a.Y)
	x, y := (b.Y-a.Y)/length*width/2, (a.X-b.X)/length*width/2
	r.MoveTo(float32(a.X+x), float32(a.Y+y))
	for _, to := range []Point{{b.X + x, b.Y + y}, {b.X - x, b.Y - y}, {a.X - x, a.Y - y}} {
		r.LineTo(float32(to.X), float32(to.Y))
	}
	r.ClosePath()
}
