package timeline

import (
	"image/color"

	"github.com/stocached/stocached/internal/palette"
)

// Colours of kinds.
var colours = [kinds]color.RGBA{
	Step:         palette.Blue,
	Wait:         palette.Vermilion,
	Load:         palette.Green,
	Augment:      palette.Yellow,
	Gather:       palette.SkyBlue,
	Collate:      palette.LightBlue, // the same stage as Gather
	Transfer:     palette.Purple,
	Fetch:        palette.Orange,
	BatchAugment: palette.LightYellow, // also a random part
	Source:       palette.LightGreen,  // within a load
	Delay:        palette.Grey,
	Other:        palette.LightGrey,
}

// inks are the colours of text on spans: white on dark kinds.
var inks = [kinds]color.RGBA{
	Step: white, Wait: white, Load: white, Augment: black, Gather: black, Collate: black, Transfer: black,
	Fetch: black, BatchAugment: black, Source: black, Delay: white, Other: black,
}

var white, black, grey, pale, faint = palette.White, palette.Black, palette.Grey, palette.Pale, palette.Faint

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
