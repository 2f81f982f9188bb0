package decode

import (
	"context"
	"fmt"
	"image"

	"github.com/stocached/stocached/internal/size"
)

// picture decodes a file into dst when memory for it is free. Errors say what is wrong with the
// file.
func (s *scratch) picture(ctx context.Context, file []byte, o *options, dst []byte) error {
	f, err := formatOf(file)
	if err != nil {
		return err
	}
	side, err := s.size(ctx, f, file, o.MaxPixels)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	across, down := o.cuts(side)
	if s.memory != nil {
		need := f.need(file, side) + resizeNeed(side, across, down)
		if need > s.memory.limit {
			return fmt.Errorf("%s: %d x %d pixels take up to %s to decode, more than the %s that memory, %s, "+
				"has for pictures; raise it (decode: {memory: ...})",
				f.name, side.X, side.Y,
				size.Text(uint64(need)), size.Text(uint64(s.memory.limit)), size.Text(uint64(o.Memory)))
		}
		if err := s.memory.acquire(ctx, need); err != nil {
			return err
		}
		defer s.memory.release(need)
	}
	img, err := s.image(ctx, f, file, side)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	s.put(img, side, f, o, across, down, dst)
	return nil
}

// put resizes the pixels of an image into dst.
func (s *scratch) put(img image.Image, side image.Point, f *format, o *options, across, down cut, dst []byte) {
	p := s.pixelsOf(img, side, f)
	h, w := o.Resize[0], o.Resize[1]
	out := dst
	if o.Layout == "hwc" {
		out = grow(&s.planes, 3*w*h)
	}
	var to [3][]byte
	for k := range to {
		to[k] = out[k*w*h : (k+1)*w*h]
	}
	s.resize(&p, to, across, down)
	for k := p.colours; k < 3; k++ {
		copy(to[k], to[0])
	}
	if o.Layout == "hwc" {
		interleave(dst, to)
	}
}

// interleave makes pixels from planes.
func interleave(dst []byte, from [3][]byte) {
	r, g, b := from[0], from[1][:len(from[0])], from[2][:len(from[0])]
	for k := range r {
		pixel := dst[3*k:][:3]
		pixel[0], pixel[1], pixel[2] = r[k], g[k], b[k]
	}
}
