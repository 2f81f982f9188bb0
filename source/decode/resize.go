package decode

import (
	"image"
	"math"
)

// filter maps n items to others: item x of the result is the sum of size[x] items from first[x] on,
// each times its weight.
type filter struct {
	first   []int32
	size    []int32
	taps    int     // weights for each item
	weights []int32 // taps of each item, in units of 1 / (1 << precision)
}

const (
	precision = 22 // bits after the point, of 32: 8 are for a pixel and 2 for the sum of weights, which is 1 except for rounding
	half      = 1 << (precision - 1)
)

// cut says how a side of a picture is resized: to size pixels, of which kept pixels from first on
// are used. They begin at at in the result.
type cut struct{ size, first, kept, at int }

// cuts returns the cuts of both sides, as docs/spec/image.md defines them.
func (o *options) cuts(size image.Point) (across, down cut) {
	h, w := o.Resize[0], o.Resize[1]
	switch o.Fit {
	case "crop": // the least short side whose picture has the result inside
		for side := min(w, h); across.size < w || down.size < h; side++ {
			if size.X > size.Y {
				across.size, down.size = max(size.X*side/size.Y, 1), side
			} else {
				across.size, down.size = side, max(size.Y*side/size.X, 1)
			}
		}
	case "pad":
		across.size, down.size = w, h
		if size.X*h >= size.Y*w {
			down.size = max(size.Y*w/size.X, 1)
		} else {
			across.size = max(size.X*h/size.Y, 1)
		}
	default:
		across.size, down.size = w, h
	}
	middle := func(n int) int { return int(math.RoundToEven(float64(n) / 2)) }
	for c, n := range map[*cut]int{&across: w, &down: h} {
		c.kept = min(c.size, n)
		c.first, c.at = middle(c.size-c.kept), middle(n-c.kept)
	}
	return across, down
}

// resizeNeed returns the bytes that resize takes for a picture of that size in its file.
func (t turn) resizeNeed(size image.Point, across, down cut) int64 {
	turned := int64(0)
	if t != (turn{}) {
		turned = 3 * int64(across.kept) * int64(down.kept)
		across, down = t.cuts(across, down)
	}
	rows := int64(down.kept)*int64(size.Y)/int64(down.size) + 2*(int64(size.Y)/int64(down.size)+2)
	filters := 4 * int64(across.kept+down.kept) * (2 + 3 + 2*max(int64(size.X/across.size), int64(size.Y/down.size)))
	return turned + 3*int64(across.kept)*min(rows,
		int64(size.Y)) + 9*int64(size.X) + filters + 3*int64(across.kept)*int64(down.kept)
}

// set makes the filter that resizes n items to a part of the result: a triangle as wide as two items of the side
// that has fewer.
func (f *filter) set(n int, part cut) {
	out := part.kept
	scale := float64(n) / float64(part.size)
	width := max(scale, 1)
	f.taps = min(int(2*width)+3, n)
	grow(&f.first, out)
	grow(&f.size, out)
	grow(&f.weights, out*f.taps)
	for x := range out {
		center := (float64(part.first+x) + 0.5) * scale
		first, end := max(int(center-width+0.5), 0), min(int(center+width+0.5), n)
		weight := func(k int) float64 {
			d := (float64(k) - center + 0.5) * (1 / width)
			return max(0, 1-max(d, -d))
		}
		total := 0.0
		for k := first; k < end; k++ {
			total += weight(k)
		}
		weights := f.weights[x*f.taps:][:end-first]
		for k := range weights {
			weights[k] = int32(weight(first+k)/total*(1<<precision) + 0.5)
		}
		f.first[x], f.size[x] = int32(first), int32(end-first)
	}
}

// resize makes planes from a picture: first across, then down, rounded to bytes between the two.
func (s *scratch) resize(p *pixels, to [3][]byte, across, down cut) {
	s.across.set(p.w, across)
	s.down.set(p.h, down)
	w, h := across.kept, down.kept
	from, end := int(s.down.first[0]), int(s.down.first[h-1]+s.down.size[h-1]) // the rows that the result needs
	n := end - from
	rows := grow(&s.rows, p.colours*n*w)
	for y := range n {
		row := p.row(s, from+y)
		if p.step == 1 && p.colours == 3 {
			s.across.rowOf3(rows[y*w:][:w], rows[(n+y)*w:][:w], rows[(2*n+y)*w:][:w], row)
			continue
		}
		for k := range p.colours {
			s.across.row(rows[(k*n+y)*w:][:w], row[k], p.step)
		}
	}
	for y := range s.down.first {
		s.down.first[y] -= int32(from)
	}
	sums := grow(&s.sums, w)
	for k := range p.colours {
		for y := range h {
			s.down.column(to[k][y*w:][:w], sums, rows[k*n*w:], y)
		}
	}
}

// row filters a row.
func (f *filter) row(dst, src []byte, step int) {
	for x := range dst {
		weights := f.weights[x*f.taps:][:f.size[x]]
		at := int(f.first[x]) * step
		sum := int32(half)
		for _, w := range weights {
			sum += w * int32(src[at])
			at += step
		}
		dst[x] = clip(sum)
	}
}

// rowOf3 is a faster row for three colours whose bytes have no gaps.
func (f *filter) rowOf3(r, g, b []byte, from [3][]byte) {
	g, b = g[:len(r)], b[:len(r)]
	first, size := f.first[:len(r)], f.size[:len(r)]
	at := 0
	for x := range r {
		n := int(size[x])
		weights := f.weights[at : at+n]
		red, green, blue := from[0][first[x]:][:n], from[1][first[x]:][:n], from[2][first[x]:][:n]
		sumR, sumG, sumB := int32(half), int32(half), int32(half)
		for k, w := range weights {
			sumR += w * int32(red[k])
			sumG += w * int32(green[k])
			sumB += w * int32(blue[k])
		}
		r[x], g[x], b[x] = clip(sumR), clip(sumG), clip(sumB)
		at += f.taps
	}
}

// column filters all columns for row y.
func (f *filter) column(dst []byte, sums []int32, rows []byte, y int) {
	sums = sums[:len(dst)]
	for x := range sums {
		sums[x] = half
	}
	at := int(f.first[y]) * len(dst)
	for _, w := range f.weights[y*f.taps:][:f.size[y]] {
		row := rows[at:][:len(dst)]
		for x, v := range row {
			sums[x] += w * int32(v)
		}
		at += len(dst)
	}
	for x, sum := range sums {
		dst[x] = clip(sum)
	}
}

// clip returns a sum as a byte. Weights are rounded, so a sum may exceed 255 a little.
func clip(sum int32) byte { return byte(min(sum>>precision, 255)) }
