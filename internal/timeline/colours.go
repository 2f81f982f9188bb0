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
	Delay:        palette.Light.Grey,
	Other:        palette.LightGrey,
}

// inks are the colours of text on spans: white on dark kinds.
var inks = [kinds]color.RGBA{
	Step: white, Wait: white, Load: white, Augment: black, Gather: black, Collate: black, Transfer: black,
	Fetch: black, BatchAugment: black, Source: black, Delay: white, Other: black,
}

var white, black = palette.Light.Paper, palette.Light.Ink
