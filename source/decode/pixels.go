package decode

import (
	"image"
	"image/color"
)

// pixels are those of a decoded image: one colour (grey), or three (RGB).
type pixels struct {
	w, h    int
	colours int
	// step is the distance of two bytes of a colour in a row, stride that of two rows, apart that
	// of two colours.
	bytes               []byte
	step, stride, apart int
	// chroma and matrix are set if the pixels are not RGB yet.
	chroma *image.YCbCr
	matrix *matrix
}

// row returns row y of each colour. It is valid until the next call.
func (p *pixels) row(s *scratch, y int) (colours [3][]byte) {
	if p.chroma != nil {
		return s.rgb(p.chroma, p.matrix, y)
	}
	for k := range p.colours {
		colours[k] = p.bytes[y*p.stride+k*p.apart:]
	}
	return colours
}

// pixelsOf returns the pixels of an image: in place if their bytes have equal distances, else a
// copy in RGB. It drops alpha.
func (s *scratch) pixelsOf(img image.Image, size image.Point, f *format) pixels {
	p := pixels{w: size.X, h: size.Y, colours: 3}
	if img.Bounds() == (image.Rectangle{Max: size}) {
		switch m := img.(type) {
		case *image.YCbCr:
			p.chroma, p.matrix, p.step = m, f.matrix, 1
			return p
		case *image.NYCbCrA:
			p.chroma, p.matrix, p.step = &m.YCbCr, f.matrix, 1
			return p
		case *image.Gray:
			p.colours = 1
			return p.packed(m.Pix, 1, m.Stride, 0)
		case *image.Gray16:
			p.colours = 1
			return p.packed(m.Pix, 2, m.Stride, 0)
		case *image.RGBA: // decoders return it for images without alpha
			return p.packed(m.Pix, 4, m.Stride, 1)
		case *image.NRGBA:
			return p.packed(m.Pix, 4, m.Stride, 1)
		case *image.RGBA64:
			return p.packed(m.Pix, 8, m.Stride, 2)
		case *image.NRGBA64:
			return p.packed(m.Pix, 8, m.Stride, 2)
		}
	}
	rgb := grow(&s.pixels, 3*size.X*size.Y)
	if img.Bounds() != (image.Rectangle{Max: size}) { // the first frame of a GIF may cover less
		clear(rgb)
	}
	switch m := img.(type) {
	case *image.Paletted:
		paletted(rgb, size.X, m)
	case *image.CMYK:
		cmyk(rgb, size.X, m)
	default:
		anything(rgb, size.X, m)
	}
	return p.packed(rgb, 3, 3*size.X, 1)
}

func (p pixels) packed(bytes []byte, step, stride, apart int) pixels {
	p.bytes, p.step, p.stride, p.apart = bytes, step, stride, apart
	return p
}

func paletted(rgb []byte, width int, m *image.Paletted) {
	var table [256][3]byte
	for k, c := range m.Palette[:min(len(m.Palette), 256)] {
		n := color.NRGBAModel.Convert(c).(color.NRGBA)
		table[k] = [3]byte{n.R, n.G, n.B}
	}
	for y := m.Rect.Min.Y; y < m.Rect.Max.Y; y++ {
		row := m.Pix[m.PixOffset(m.Rect.Min.X, y):][:m.Rect.Dx()]
		to := rgb[3*(y*width+m.Rect.Min.X):]
		for x, index := range row {
			copy(to[3*x:3*x+3], table[index][:])
		}
	}
}

// cmyk converts ink to light: each ink, and black, absorbs its share.
func cmyk(rgb []byte, width int, m *image.CMYK) {
	for y := m.Rect.Min.Y; y < m.Rect.Max.Y; y++ {
		for x := m.Rect.Min.X; x < m.Rect.Max.X; x++ {
			c := m.CMYKAt(x, y)
			light := 255 - uint32(c.K)
			to := rgb[3*(y*width+x):][:3]
			for k, ink := range [3]byte{c.C, c.M, c.Y} {
				to[k] = byte(((255-uint32(ink))*light + 127) / 255)
			}
		}
	}
}

// anything converts the pixels of an image of any type.
func anything(rgb []byte, width int, m image.Image) {
	b := m.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c := color.NRGBAModel.Convert(m.At(x, y)).(color.NRGBA)
			to := rgb[3*(y*width+x):][:3]
			to[0], to[1], to[2] = c.R, c.G, c.B
		}
	}
}
