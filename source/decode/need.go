package decode

import (
	"bytes"
	"encoding/binary"
	"image"
	"iter"
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

// helperNeed returns the most bytes that a picture takes if the helper decodes or resizes it: in this
// process, in the helper and in their shared memory.
func (f *format) helperNeed(file []byte, size image.Point, across, down cut, result int) int64 {
	pixels := int64(size.X) * int64(size.Y)
	// Rows, resized across; the file may be turned. Buffers of 32 rows.
	need := 4*max(int64(across.kept+32)*int64(size.Y), int64(down.kept+32)*int64(size.X))*5/4 +
		32*4*int64(size.X+size.Y+across.kept+down.kept) + 2*int64(result)
	if f.name != "JPEG" {
		return need + f.need(file, size) + 3*pixels
	}
	need += int64(len(file))
	_, frame, progressive := frameOf(file)
	if progressive || scanOf(file) != len(frame)/3 { // libjpeg keeps all coefficients
		need += 2 * jpegSamples(frame, size)
	}
	return need
}

// jpegNeed counts the planes and, for a progressive file, 4 bytes for each coefficient.
func jpegNeed(file []byte, size image.Point) int64 {
	pixels := int64(size.X) * int64(size.Y)
	_, frame, progressive := frameOf(file)
	if len(frame) == 0 {
		return 27 * pixels // the decoder will fail
	}
	need := jpegSamples(frame, size)
	if progressive {
		need *= 5
	}
	switch {
	case len(frame) == 3*4: // CMYK, then RGB
		need += (4 + 3) * pixels
	case bytes.Contains(file, []byte("Adobe")) || len(frame) == 3*3 && frame[0] == 'R' && frame[3] == 'G' && frame[6] == 'B':
		// it may be RGB, not YCbCr
		need += 4 * pixels
	}
	return need
}

// jpegSamples counts the samples of all colours in whole blocks.
func jpegSamples(frame []byte, size image.Point) (samples int64) {
	colours := len(frame) / 3
	h, v := 1, 1 // factors of the first colour, which has the most samples
	if colours > 1 {
		h, v = max(int(frame[1]>>4), 1), max(int(frame[1]&15), 1)
	}
	units := int64((size.X+8*h-1)/(8*h)) * int64((size.Y+8*v-1)/(8*v))
	if colours == 1 {
		return 64 * units
	}
	for k := range colours {
		samples += 64 * units * int64(frame[3*k+1]>>4) * int64(frame[3*k+1]&15)
	}
	return samples
}

// segments are those of a JPEG up to its first scan: each marker, and its content.
func segments(file []byte) iter.Seq2[byte, []byte] {
	return func(yield func(byte, []byte) bool) {
		for at := 2; at+4 <= len(file); {
			marker, length := file[at+1], int(binary.BigEndian.Uint16(file[at+2:]))
			switch {
			case file[at] != 0xff || marker == 0xff || marker == 0 || marker >= 0xd0 && marker <= 0xd9:
				// not a marker with a length
				at++
			case !yield(marker, file[at+4:][:min(max(length-2, 0), len(file)-at-4)]) || marker == 0xda:
				return
			default:
				at += 2 + length
			}
		}
	}
}

// frameOf finds the frame header of a JPEG: the size, three bytes for each colour, and whether the
// file is progressive. All are zero if no frame comes before the first scan.
func frameOf(file []byte) (size image.Point, colours []byte, progressive bool) {
	for marker, rest := range segments(file) {
		if marker >= 0xc0 && marker <= 0xc2 && len(rest) >= 6 {
			size = image.Pt(int(binary.BigEndian.Uint16(rest[3:])), int(binary.BigEndian.Uint16(rest[1:])))
			return size, rest[6:][:min(3*int(rest[5]), (len(rest)-6)/3*3)], marker == 0xc2
		}
	}
	return size, nil, false
}

// scanOf returns the number of colours in the first scan of a JPEG.
func scanOf(file []byte) int {
	for marker, rest := range segments(file) {
		if marker == 0xda && len(rest) > 0 {
			return int(rest[0])
		}
	}
	return 0
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
