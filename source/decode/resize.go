package decode

// filter says how n items become others: item x of the result is the sum of size items from first[x] on, each times its weight.
type filter struct {
	first   []int32
	size    []int32
	taps    int     // weights kept for an item
	weights []int32 // taps of each item, in units of 1 / (1 << precision)
}

const (
	precision = 22 // 8 bits of a pixel and 2 for the sum of weights (which are 1, but for rounding) leave as many of 32
	half      = 1 << (precision - 1)
)

// set makes the filter that resizes n items to out: a triangle, as wide as two items on the side that has fewer of them.
func (f *filter) set(n, out int) {
	scale := float64(n) / float64(out)
	width := max(scale, 1)
	f.taps = min(int(2*width)+3, n)
	grow(&f.first, out)
	grow(&f.size, out)
	grow(&f.weights, out*f.taps)
	for x := range out {
		center := (float64(x) + 0.5) * scale
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

// resize makes planes of w x h bytes of a picture: across first, then down, rounded to bytes between.
func (s *scratch) resize(p *pixels, to [3][]byte, w, h int) {
	s.across.set(p.w, w)
	s.down.set(p.h, h)
	rows := grow(&s.rows, p.colours*p.h*w)
	for y := range p.h {
		from := p.row(s, y)
		if p.step == 1 && p.colours == 3 {
			s.across.rowOf3(rows[y*w:][:w], rows[(p.h+y)*w:][:w], rows[(2*p.h+y)*w:][:w], from)
			continue
		}
		for k := range p.colours {
			s.across.row(rows[(k*p.h+y)*w:][:w], from[k], p.step)
		}
	}
	sums := grow(&s.sums, w)
	for k := range p.colours {
		for y := range h {
			s.down.column(to[k][y*w:][:w], sums, rows[k*p.h*w:], y)
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

// rowOf3 is row for three colours whose bytes have no gaps, in less time.
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

// clip returns a sum as a byte. Weights are rounded, so many together may give a little more than 255.
func clip(sum int32) byte { return byte(min(sum>>precision, 255)) }
