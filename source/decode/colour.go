package decode

import "math"

// matrix converts YCbCr to RGB, in units of 1 / (1 << 16).
type matrix struct {
	y                  [256]int32
	crR, crG, cbG, cbB [256]int32
}

// full is JPEG's matrix: all of 0..255. studio is that of WebP and video: Y of 16..235, Cb and Cr
// of 16..240 (ITU-R BT.601).
var full, studio = newMatrix(0, 255, 255), newMatrix(16, 219, 224)

// newMatrix makes the matrix for Y from black on with the range luma, and Cb and Cr around 128 with
// the range chroma.
func newMatrix(black, luma, chroma float64) *matrix {
	const red, blue = 0.299, 0.114 // shares of luma; green has the rest
	const green = 1 - red - blue
	m := new(matrix)
	for k := range 256 {
		unit := func(v float64) int32 { return int32(math.Round(v * (1 << 16))) }
		y, c := (float64(k)-black)*255/luma, (float64(k)-128)*255/chroma
		m.y[k] = unit(y) + 1<<15 // rounds
		m.crR[k] = unit(c * 2 * (1 - red))
		m.cbB[k] = unit(c * 2 * (1 - blue))
		m.crG[k] = unit(-c * 2 * (1 - red) * red / green)
		m.cbG[k] = unit(-c * 2 * (1 - blue) * blue / green)
	}
	return m
}

// convert converts Y, Cb and Cr to R, G and B.
func (m *matrix) convert(y, cb, cr, r, g, b []byte) {
	cb, cr, r, g, b = cb[:len(y)], cr[:len(y)], r[:len(y)], g[:len(y)], b[:len(y)]
	for x, luma := range y {
		light, blue, red := m.y[luma], cb[x], cr[x]
		r[x] = clip16(light + m.crR[red])
		g[x] = clip16(light + m.cbG[blue] + m.crG[red])
		b[x] = clip16(light + m.cbB[blue])
	}
}

func clip16(v int32) byte {
	if uint32(v) < 1<<24 { // nearly all values
		return byte(v >> 16)
	}
	return byte(^(v >> 31)) // 0 for negative values, else 255
}
