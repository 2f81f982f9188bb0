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
	// Text writes with its base line at y. x is its begin, middle or end.
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

// Colours by Okabe and Ito: people with colour blindness can tell them apart, on white and on black.
var (
	Blue      = color.RGBA{0x00, 0x72, 0xB2, 0xFF}
	Vermilion = color.RGBA{0xD5, 0x5E, 0x00, 0xFF}
	Green     = color.RGBA{0x00, 0x9E, 0x73, 0xFF}
	Yellow    = color.RGBA{0xF0, 0xE4, 0x42, 0xFF}
	SkyBlue   = color.RGBA{0x56, 0xB4, 0xE9, 0xFF}
	Purple    = color.RGBA{0xCC, 0x79, 0xA7, 0xFF}
	Orange    = color.RGBA{0xE6, 0x9F, 0x00, 0xFF}
)

// Colours of texts, lines and grounds.
var (
	White = color.RGBA{0xFF, 0xFF, 0xFF, 0xFF}
	Black = color.RGBA{0x1C, 0x24, 0x30, 0xFF}
	Grey  = color.RGBA{0x6B, 0x74, 0x80, 0xFF}
	Pale  = color.RGBA{0xE4, 0xE8, 0xEC, 0xFF}
	Faint = color.RGBA{0xF5, 0xF7, 0xF9, 0xFF}
)
