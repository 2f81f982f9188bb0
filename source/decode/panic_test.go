package decode

import (
	"context"
	"image"
	"io"
	"strings"
	"testing"
)

// Ensure that a decoder's panic, and a picture of another size than in the header, are errors.
func TestBadDecoder(t *testing.T) {
	o := options{Resize: []int{2, 2}, Layout: "chw", MaxPixels: 100}
	for want, decode := range map[string]func(io.Reader) (image.Image, error){
		"TEST: the decoder panicked: runtime error: index out of range": func(io.Reader) (image.Image,
			error) {
			return nil, []error{}[len(want0)]
		},
		"TEST: bounds (0,0)-(5,5) in a picture of 4 x 4": func(io.Reader) (image.Image,
			error) {
			return image.NewGray(image.Rect(0, 0, 5, 5)), nil
		},
		"TEST: bounds (0,0)-(0,0) in a picture of 4 x 4": func(io.Reader) (image.Image,
			error) {
			return image.NewGray(image.Rectangle{}), nil
		},
	} {
		before := formats
		formats = append(formats, format{"TEST", "test", nil, func(io.Reader) (image.Config, error) { return image.Config{Width: 4, Height: 4}, nil }, decode})
		err := new(scratch).picture(context.Background(), []byte("test"), &o, make([]byte, 12))
		formats = before
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

const want0 = "not an index"

// Ensure that images of types that no decoder here returns are converted pixel by pixel.
func TestAnything(t *testing.T) {
	m := image.NewAlpha16(image.Rect(0, 0, 2, 1))
	m.Pix = []byte{0xFF, 0xFF, 0xFF, 0xFF}
	s := new(scratch)
	p := s.pixelsOf(m, image.Pt(2, 1), &formats[0])
	if got := p.row(s, 0); got[0][0] != 255 || got[2][3] != 255 {
		t.Errorf("%v", got)
	}
}

// Ensure that weights add up: many rounded ones make no white pixel darker or black.
func TestWeights(t *testing.T) {
	for _, n := range []int{1, 2, 3, 255, 1000, 65535} {
		for _, out := range []int{1, 2, 7, 256, 8192} {
			var f filter
			f.set(n, cut{size: out, kept: out})
			src, dst := make([]byte, n), make([]byte, out)
			for k := range src {
				src[k] = 255
			}
			f.row(dst, src, 1)
			for x, v := range dst {
				if v != 255 || f.first[x] < 0 || int(f.first[x]+f.size[x]) > n || f.size[x] < 1 || int(f.size[x]) > f.taps {
					t.Fatalf("%d of %d: %d, from %d items on %d", x, out, v, f.size[x], f.first[x])
				}
			}
		}
	}
}
