package decode

import (
	"bytes"
	"encoding/binary"
	"image"
)

// need returns the most bytes that decoding a picture takes, garbage of decoders included. Only the
// file's headers are read.
func (f *format) need(file []byte, size image.Point) int64 {
	pixels := int64(size.X) * int64(size.Y)
	switch f.name {
	case "JPEG":
		return jpegNeed(file, size)
	case "PNG":
		return pngNeed(file, pixels)
	case "WebP":
		return webpNeed(file, size)
	}
	return (1 + 1 + 3) * pixels // GIF: indices of colours, a copy in the order of lines, and RGB
}

// jpegNeed counts the planes and, for a progressive file, 4 bytes for each coefficient.
func jpegNeed(file []byte, size image.Point) int64 {
	pixels := int64(size.X) * int64(size.Y)
	frame, progressive := frameOf(file)
	if len(frame) == 0 {
		return 27 * pixels // the decoder will fail
	}
	colours := len(frame) / 3
	h, v := 1, 1 // of the first colour, which has the most samples
	if colours > 1 {
		h, v = max(int(frame[1]>>4), 1), max(int(frame[1]&15), 1)
	}
	units := int64((size.X+8*h-1)/(8*h)) * int64((size.Y+8*v-1)/(8*v))
	samples := int64(0)
	for k := range colours {
		samples += 64 * units * int64(frame[3*k+1]>>4) * int64(frame[3*k+1]&15)
	}
	if colours == 1 {
		samples = 64 * units
	}
	need := samples
	if progressive {
		need += 4 * samples
	}
	switch {
	case colours == 4: // CMYK, then RGB
		need += (4 + 3) * pixels
	case bytes.Contains(file, []byte("Adobe")) || colours == 3 && frame[0] == 'R' && frame[3] == 'G' && frame[6] == 'B':
		// it may be RGB, not YCbCr
		need += 4 * pixels
	}
	return need
}

// frameOf finds the frame header of a JPEG: three bytes for each colour, and whether the file is
// progressive. colours is nil if no frame comes before the first scan.
func frameOf(file []byte) (colours []byte, progressive bool) {
	for at := 2; at+4 <= len(file); {
		marker, length := file[at+1], int(binary.BigEndian.Uint16(file[at+2:]))
		switch {
		case file[at] != 0xff || marker == 0xff || marker == 0 || marker >= 0xd0 && marker <= 0xd9:
			// not a marker with a length
			at++
		case marker == 0xda:
			return nil, false
		case marker >= 0xc0 && marker <= 0xc2:
			if at+10 > len(file) {
				return nil, false
			}
			return file[at+10:][:min(3*int(file[at+9]), (len(file)-at-10)/3*3)], marker == 0xc2
		default:
			at += 2 + length
		}
	}
	return nil, false
}

// pngNeed counts the bytes of pixels, with the alpha channel that transparency may add, and twice
// if the file is interlaced.
func pngNeed(file []byte, pixels int64) int64 {
	if len(file) < 29 {
		return 0 // the decoder will fail
	}
	deep, colour := file[24] == 16, file[25]
	transparent := bytes.Contains(file, []byte("tRNS"))
	each := int64(4)
	if colour == 0 && !transparent {
		each = 1
	}
	if deep {
		each *= 2
	}
	if colour == 3 {
		each = 1
	}
	need := each * pixels
	if file[28] != 0 {
		need *= 2
	}
	if colour == 3 {
		need += 3 * pixels // RGB
	}
	return need
}

// webpNeed counts the planes of a lossy file, and the pixels of a lossless one before and after
// their transforms. Code trees come on top; even a file of few pixels may have many.
func webpNeed(file []byte, size image.Point) int64 {
	const (
		treeBytes = 2100      // for each byte of the file, at most
		mostTrees = 218 << 20 // 2,600 groups, the most that the decoder accepts
	)
	pixels := int64(size.X) * int64(size.Y)
	lossy := 384*int64((size.X+15)/16)*int64((size.Y+15)/16)*17/16 + 2*int64(len(file))
	lossless := 9*pixels + min(treeBytes*int64(len(file)), mostTrees)
	switch {
	case len(file) >= 16 && string(file[12:16]) == "VP8 ":
		return lossy
	case len(file) >= 16 && string(file[12:16]) == "VP8L":
		return lossless
	}
	return lossy + lossless + pixels // lossy colours and lossless alpha
}
