package draw

import (
	"encoding/xml"
	"fmt"
	"image"
	"image/color"
	"io"
	"strings"

	"github.com/stocached/stocached/internal/palette"
)

// SVG is a Canvas that becomes a file of SVG, without scripts and links.
type SVG struct {
	faces
	width, height int
	body          strings.Builder
}

// NewSVG returns a white canvas.
func NewSVG(width, height int) *SVG {
	s := &SVG{faces: newFaces(), width: width, height: height}
	s.Fill(image.Rect(0, 0, width, height), palette.White)
	return s
}

// Write writes the picture in its intended size, half the number of pixels.
func (s *SVG) Write(w io.Writer) error {
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		"font-family=\"Go, Arial, sans-serif\">\n%s</svg>\n", s.width/2, s.height/2, s.width, s.height, s.body.String())
	return err
}

func (s *SVG) Fill(r image.Rectangle, c color.RGBA) {
	fmt.Fprintf(&s.body, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", r.Min.X, r.Min.Y, r.Dx(), r.Dy(),
		palette.Hex(c))
}

func (s *SVG) Line(points []Point, width, dash float64, c color.RGBA) {
	fmt.Fprintf(&s.body, `<polyline fill="none" stroke="%s" stroke-width="%g"`, palette.Hex(c), width)
	if dash > 0 {
		fmt.Fprintf(&s.body, ` stroke-dasharray="%g"`, dash)
	}
	s.body.WriteString(` points="`)
	for k, p := range points {
		if k > 0 {
			s.body.WriteByte(' ')
		}
		fmt.Fprintf(&s.body, "%.1f,%.1f", p.X, p.Y)
	}
	s.body.WriteString("\"/>\n")
}

func (s *SVG) Text(f Face, x, y int, a Align, c color.RGBA, text string) {
	fmt.Fprintf(&s.body, `<text x="%d" y="%d" font-size="%g" fill="%s"`, x, y, sizes[f], palette.Hex(c))
	if f == Bold {
		s.body.WriteString(` font-weight="bold"`)
	}
	if a != Begin {
		fmt.Fprintf(&s.body, ` text-anchor="%s"`, [...]string{Middle: "middle", End: "end"}[a])
	}
	s.body.WriteByte('>')
	_ = xml.EscapeText(&s.body, []byte(text)) // a strings.Builder returns no error
	s.body.WriteString("</text>\n")
}
