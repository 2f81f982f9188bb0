package decode

import "image"

// subsampling returns how many pixels share a sample of Cb and Cr.
func subsampling(r image.YCbCrSubsampleRatio) (across, down int) {
	switch r {
	case image.YCbCrSubsampleRatio422:
		return 2, 1
	case image.YCbCrSubsampleRatio420:
		return 2, 2
	case image.YCbCrSubsampleRatio440:
		return 1, 2
	case image.YCbCrSubsampleRatio411:
		return 4, 1
	case image.YCbCrSubsampleRatio410:
		return 4, 2
	}
	return 1, 1
}

// rgb returns a row of an image in RGB. If two pixels share a sample of Cb and Cr, each takes a
// quarter of the next sample on its side, like the usual decoders. Repeated samples would move
// colours visibly along edges, by up to 60 of 255 in small pictures.
func (s *scratch) rgb(m *image.YCbCr, to *matrix, y int) [3][]byte {
	across, down := subsampling(m.SubsampleRatio)
	w, h := m.Rect.Dx(), m.Rect.Dy()
	samples, lines := (w+across-1)/across, (h+down-1)/down
	line := y / down
	other := line // the nearest line on the pixel's side
	if down == 2 && across != 4 {
		other = min(max(line+y%2*2-1, 0), lines-1)
	}
	buffer := grow(&s.lines, 5*w)
	cb, cr, colours := buffer[:w], buffer[w:2*w], [3][]byte{buffer[2*w : 3*w], buffer[3*w : 4*w], buffer[4*w:]}
	sums := grow(&s.sums, samples)
	for _, c := range [2]struct{ dst, src []byte }{{cb, m.Cb}, {cr, m.Cr}} {
		spread(c.dst, sums, c.src[line*m.CStride:][:samples], c.src[other*m.CStride:][:samples], across)
	}
	to.convert(m.Y[y*m.YStride:][:w], cb, cr, colours[0], colours[1], colours[2])
	return colours
}

// spread computes the chroma of each pixel: three quarters of its own line, one quarter of the
// other, and the same across.
func spread(dst []byte, sums []int32, line, other []byte, across int) {
	if across == 4 {
		for x := range dst {
			dst[x] = line[x/4]
		}
		return
	}
	for k, v := range line {
		sums[k] = 3*int32(v) + int32(other[k])
	}
	last := len(sums) - 1
	if across == 1 {
		for x := range dst {
			dst[x] = byte((sums[x] + 2) >> 2)
		}
		return
	}
	left := sums[0]
	for k, sum := range sums[:last] {
		pair := dst[2*k:][:2]
		pair[0], pair[1] = byte((3*sum+left+8)>>4), byte((3*sum+sums[k+1]+7)>>4)
		left = sum
	}
	dst[2*last] = byte((3*sums[last] + left + 8) >> 4)
	if 2*last+1 < len(dst) { // an even width: no sample follows on the right
		dst[2*last+1] = byte((4*sums[last] + 7) >> 4)
	}
}
