package decode

import (
	"context"
	"fmt"

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
	var turned turn
	if f.name == "JPEG" {
		turned = turnOf(file)
	}
	across, down := o.cuts(turned.shown(side))
	inHelper := s.helpers != nil && f.name == "JPEG"
	var need, garbage int64
	if s.helpers != nil {
		need = f.helperNeed(file, side, across, down, len(dst))
	} else {
		need = f.need(file, side) + turned.resizeNeed(side, across, down)
	}
	if !inHelper {
		garbage = need
	}
	if s.memory != nil {
		if need > s.memory.limit {
			return &memoryError{fmt.Errorf("%s: %d x %d pixels take up to %s to decode, more than the %s that memory, %s, "+
				"has for pictures; raise it (decode: {memory: ...})",
				f.name, side.X, side.Y,
				size.Text(uint64(need)), size.Text(uint64(s.memory.limit)), size.Text(uint64(o.Memory)))}
		}
		if err := s.memory.acquire(ctx, need); err != nil {
			return err
		}
		defer s.memory.release(need, garbage)
	}
	if inHelper {
		err = s.helpers.picture(ctx, o.request(opDecode), len(file), func(to []byte) { copy(to, file) }, dst, need > mostKept)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		return nil
	}
	img, err := s.image(ctx, f, file, side)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	p := s.pixelsOf(img, side, f)
	if s.helpers != nil {
		return s.resizeInHelper(ctx, &p, o, across, down, dst, need > mostKept)
	}
	s.put(&p, turned, o, across, down, dst)
	return nil
}

// put resizes pixels into dst.
func (s *scratch) put(p *pixels, turned turn, o *options, across, down cut, dst []byte) {
	w, h := across.kept, down.kept
	out := dst
	if o.Layout == "hwc" || o.Fit == "pad" {
		out = grow(&s.planes, 3*w*h)
	}
	to := planes(out, w*h)
	if turned == (turn{}) {
		s.resize(p, to, across, down)
	} else {
		from := planes(grow(&s.turned, 3*w*h), w*h)
		x, y := turned.cuts(across, down)
		s.resize(p, from, x, y)
		for k := range p.colours {
			turned.turn(to[k], from[k], x.kept, y.kept)
		}
	}
	for k := p.colours; k < 3; k++ {
		copy(to[k], to[0])
	}
	if o.Layout == "hwc" || o.Fit == "pad" {
		o.place(dst, to, across, down)
	}
}

// resizeInHelper is put, in another process.
func (s *scratch) resizeInHelper(ctx context.Context, p *pixels, o *options, across, down cut, dst []byte, large bool) error {
	r := o.request(opResize)
	r.Width, r.Height = uint32(across.kept), uint32(down.kept)
	r.PictureWidth, r.PictureHeight = uint32(p.w), uint32(p.h)
	r.ResizedWidth, r.ResizedHeight = uint32(across.size), uint32(down.size)
	r.WindowX, r.WindowY = uint32(across.first), uint32(down.first)
	out := dst
	if o.Fit == "pad" { // the helper does not pad here
		r.Layout = 0
		out = grow(&s.planes, 3*across.kept*down.kept)
	}
	if err := s.helpers.picture(ctx, r, 3*p.w*p.h, func(to []byte) { s.write(p, to) }, out, large); err != nil {
		return err
	}
	if o.Fit == "pad" {
		o.place(dst, planes(out, across.kept*down.kept), across, down)
	}
	return nil
}

// write makes three planes of pixels.
func (s *scratch) write(p *pixels, dst []byte) {
	to := planes(dst, p.w*p.h)
	for y := range p.h {
		row := p.row(s, y)
		for k := range to {
			line, from := to[k][y*p.w:][:p.w], row[min(k, p.colours-1)]
			if p.step == 1 {
				copy(line, from)
				continue
			}
			for x := range line {
				line[x] = from[x*p.step]
			}
		}
	}
}

func planes(all []byte, n int) (each [3][]byte) {
	for k := range each {
		each[k] = all[k*n:][:n]
	}
	return each
}

// place puts planes into a picture, which is black around them.
func (o *options) place(dst []byte, from [3][]byte, across, down cut) {
	h, w, n := o.Resize[0], o.Resize[1], across.kept
	if n < w || down.kept < h {
		clear(dst)
	}
	for y := range down.kept {
		row := [3][]byte{from[0][y*n:][:n], from[1][y*n:][:n], from[2][y*n:][:n]}
		at := (down.at+y)*w + across.at
		if o.Layout == "hwc" {
			interleave(dst[3*at:], row)
			continue
		}
		for k := range row {
			copy(dst[k*w*h+at:], row[k])
		}
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
