// Package draw draws pictures: rectangles, lines and texts, on pixels (PNG) or as SVG. A picture is
// drawn by one function for both, on a Canvas.
package draw

import (
	"image"
	"image/color"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
)

// Canvas is what is drawn on. Sizes are in pixels: twice the intended size, for screens of high
// resolution.
type Canvas interface {
	// Fill fills a rectangle.
	Fill(r image.Rectangle, c color.RGBA)
	// Line joins points by straight lines. dash: the length of dashes and of gaps; 0: none.
	Line(points []Point, width, dash float64, c color.RGBA)
	// Text writes with its base line at y. x is its start, middle or end.
	Text(f Face, x, y int, a Align, c color.RGBA, text string)
	// Width is that of a text.
	Width(f Face, text string) int
}

// Point is a place on a canvas.
type Point struct{ X, Y float64 }

// Align says what of a text is at x.
type Align uint8

const (
	Begin Align = iota
	Middle
	End
)

// Face is a font in a size.
type Face uint8

const (
	Small Face = iota
	Normal
	Bold
)

var sizes = [...]float64{Small: 21, Normal: 25, Bold: 30}

// faces measure and draw texts. They are not for concurrent use.
type faces [len(sizes)]font.Face

func newFaces() (f faces) {
	for k, size := range sizes {
		data := goregular.TTF
		if Face(k) == Bold {
			data = gobold.TTF
		}
		parsed, err := opentype.Parse(data)
		if err == nil {
			f[k], err = opentype.NewFace(parsed, &opentype.FaceOptions{Size: size, DPI: 72, Hinting: font.HintingFull})
		}
		if err != nil {
			panic(err) // the fonts are part of the program
		}
	}
	return f
}

// Width is that of a text in pixels.
func (f *faces) Width(face Face, text string) int { return font.MeasureString(f[face], text).Round() }
