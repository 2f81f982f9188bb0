package timeline

import (
	"image/color"

	"github.com/stocached/stocached/internal/draw"
)

// Colours of kinds.
var palette = [kinds]color.RGBA{
	Step:         draw.Blue,
	Wait:         draw.Vermilion,
	Load:         draw.Green,
	Augment:      draw.Yellow,
	Gather:       draw.SkyBlue,
	Collate:      {0x8F, 0xCF, 0xF3, 0xFF}, // a lighter blue: the same stage
	Transfer:     draw.Purple,
	Fetch:        draw.Orange,
	BatchAugment: {0xF7, 0xF1, 0x9E, 0xFF}, // a lighter yellow: also a random part
	Source:       {0x6B, 0xC2, 0xA5, 0xFF}, // a lighter green: within a load
	Other:        {0x99, 0x9F, 0xA6, 0xFF}, // grey
}

// inks are the colours of text on spans: white on dark kinds.
var inks = [kinds]color.RGBA{
	Step: white, Wait: white, Load: white, Augment: black, Gather: black, Collate: black, Transfer: black,
	Fetch: black, BatchAugment: black, Source: black, Other: black,
}

var white, black, grey, pale, faint = draw.White, draw.Black, draw.Grey, draw.Pale, draw.Faint

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
