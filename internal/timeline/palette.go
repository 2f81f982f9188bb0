package timeline

import "image/color"

// Colours of kinds, by Okabe and Ito: people with colour blindness can tell them apart, on white
// and on black.
var palette = [kinds]color.RGBA{
	Step:         {0x00, 0x72, 0xB2, 0xFF}, // blue
	Wait:         {0xD5, 0x5E, 0x00, 0xFF}, // vermilion
	Load:         {0x00, 0x9E, 0x73, 0xFF}, // green
	Augment:      {0xF0, 0xE4, 0x42, 0xFF}, // yellow
	Gather:       {0x56, 0xB4, 0xE9, 0xFF}, // sky blue
	Collate:      {0x8F, 0xCF, 0xF3, 0xFF}, // a lighter blue: the same stage
	Transfer:     {0xCC, 0x79, 0xA7, 0xFF}, // purple
	Fetch:        {0xE6, 0x9F, 0x00, 0xFF}, // orange
	BatchAugment: {0xF7, 0xF1, 0x9E, 0xFF}, // a lighter yellow: also a random part
	Other:        {0x99, 0x9F, 0xA6, 0xFF}, // grey
}

// inks are the colours of text on spans: white on dark kinds.
var inks = [kinds]color.RGBA{
	Step: white, Wait: white, Load: white, Augment: black, Gather: black, Collate: black, Transfer: black,
	Fetch: black, BatchAugment: black, Other: black,
}

var (
	white = color.RGBA{0xFF, 0xFF, 0xFF, 0xFF}
	black = color.RGBA{0x1C, 0x24, 0x30, 0xFF}
	grey  = color.RGBA{0x6B, 0x74, 0x80, 0xFF}
	pale  = color.RGBA{0xE4, 0xE8, 0xEC, 0xFF}
	faint = color.RGBA{0xF5, 0xF7, 0xF9, 0xFF}
)

// mix returns a with the part `share` of b.
func mix(a, b color.RGBA, share float64) color.RGBA {
	at := func(a, b uint8) uint8 { return uint8(float64(a) + (float64(b)-float64(a))*share + 0.5) }
	return color.RGBA{at(a.R, b.R), at(a.G, b.G), at(a.B, b.B), 0xFF}
}

// batchShade tells spans of neighbouring batches apart: odd batches are a little lighter.
func batchShade(c color.RGBA, batch int32) color.RGBA {
	if batch >= 0 && batch%2 == 1 {
		return mix(c, white, 0.22)
	}
	return c
}
