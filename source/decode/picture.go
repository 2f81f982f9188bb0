package decode

import (
	"context"
	"fmt"
)

// picture decodes a file into dst. Errors say what is wrong with the file.
func (s *scratch) picture(ctx context.Context, file []byte, o *options, dst []byte) error {
	f, err := formatOf(file)
	if err != nil {
		return err
	}
	img, size, err := s.image(ctx, f, file, o.MaxPixels)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	p := s.pixelsOf(img, size, f)
	h, w := o.Resize[0], o.Resize[1]
	out := dst
	if o.Layout == "hwc" {
		out = grow(&s.planes, 3*w*h)
	}
	var to [3][]byte
	for k := range to {
		to[k] = out[k*w*h : (k+1)*w*h]
	}
	s.resize(&p, to, w, h)
	for k := p.colours; k < 3; k++ {
		copy(to[k], to[0])
	}
	if o.Layout == "hwc" {
		interleave(dst, to)
	}
	return nil
}

// interleave makes pixels of planes.
func interleave(dst []byte, from [3][]byte) {
	r, g, b := from[0], from[1][:len(from[0])], from[2][:len(from[0])]
	for k := range r {
		pixel := dst[3*k:][:3]
		pixel[0], pixel[1], pixel[2] = r[k], g[k], b[k]
	}
}
