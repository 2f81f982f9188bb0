package decode

import (
	"encoding/binary"
	"image"
)

// turn says how the picture of a JPEG file is shown: its columns and rows are reversed, then they
// change places.
type turn struct{ transpose, flipX, flipY bool }

// turns are those of the orientations 1 to 8.
var turns = [8]turn{{}, {false, true, false}, {false, true, true}, {false, false, true},
	{true, false, false}, {true, false, true}, {true, true, true}, {true, true, false}}

// turnOf returns how a JPEG is shown. It finds what cimage/src/orientation.c finds.
func turnOf(file []byte) turn {
	for marker, data := range segments(file) {
		if marker == 0xe1 {
			if o := orientation(data); o > 1 {
				return turns[o-1]
			}
		}
	}
	return turn{}
}

// orientation is the tag 0x112 of the first directory in EXIF data, the content of a marker APP1; 1 if
// there is none.
func orientation(data []byte) int {
	if len(data) < 14 || string(data[:6]) != "Exif\x00\x00" {
		return 1
	}
	tiff := data[6:]
	var order binary.ByteOrder
	switch string(tiff[:4]) {
	case "II*\x00":
		order = binary.LittleEndian
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 1
	}
	at := uint64(order.Uint32(tiff[4:]))
	if at+2 > uint64(len(tiff)) {
		return 1
	}
	entries := tiff[at+2:]
	for range order.Uint16(tiff[at:]) {
		if len(entries) < 12 {
			return 1
		}
		if order.Uint16(entries) == 0x112 && order.Uint16(entries[2:]) == 3 { // a number of 16 bits
			if o := int(order.Uint16(entries[8:])); o >= 1 && o <= 8 {
				return o
			}
			return 1
		}
		entries = entries[12:]
	}
	return 1
}

// shown is the size of a picture that is turned.
func (t turn) shown(size image.Point) image.Point {
	if t.transpose {
		return image.Pt(size.Y, size.X)
	}
	return size
}

// cuts returns the cuts of the sides as the file has them, from those as they are shown.
func (t turn) cuts(across, down cut) (cut, cut) {
	if t.transpose {
		across, down = down, across
	}
	if t.flipX {
		across.first = across.size - across.first - across.kept
	}
	if t.flipY {
		down.first = down.size - down.first - down.kept
	}
	return across, down
}

// turn writes a plane of w x h pixels as it is shown.
func (t turn) turn(dst, src []byte, w, h int) {
	for y := range h {
		row, at, step := src[y*w:][:w], y, 1
		if t.flipY {
			at = h - 1 - y
		}
		if t.transpose {
			step = h
		} else {
			at *= w
		}
		if t.flipX {
			at, step = at+(w-1)*step, -step
		}
		for _, v := range row {
			dst[at] = v
			at += step
		}
	}
}
