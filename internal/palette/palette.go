// Package palette has the colours of all that stocached shows: pages and stocached top. It is
// the only table of colours. Its tests say that people with colour blindness can tell them apart.
package palette

import (
	"fmt"
	"image/color"
	"strings"
)

// Colours by Okabe and Ito: people with colour blindness can tell them apart, on white and on black.
var (
	Blue      = color.RGBA{0x00, 0x72, 0xB2, 0xFF}
	Vermilion = color.RGBA{0xD5, 0x5E, 0x00, 0xFF}
	Green     = color.RGBA{0x00, 0x9E, 0x73, 0xFF}
	Yellow    = color.RGBA{0xF0, 0xE4, 0x42, 0xFF}
	SkyBlue   = color.RGBA{0x56, 0xB4, 0xE9, 0xFF}
	Purple    = color.RGBA{0xCC, 0x79, 0xA7, 0xFF}
	Orange    = color.RGBA{0xE6, 0x9F, 0x00, 0xFF}
)

// Lighter shades: another part of the same stage. Grey is what has no name of its own.
var (
	LightBlue   = color.RGBA{0x8F, 0xCF, 0xF3, 0xFF}
	LightYellow = color.RGBA{0xF7, 0xF1, 0x9E, 0xFF}
	LightGreen  = color.RGBA{0x6B, 0xC2, 0xA5, 0xFF}
	LightGrey   = color.RGBA{0x99, 0x9F, 0xA6, 0xFF}
	// Found marks what a search has found: nothing else has it.
	Found = color.RGBA{0xE6, 0x00, 0x7E, 0xFF}
)

// Theme has the colours of texts, lines and grounds.
type Theme struct {
	Paper color.RGBA // the ground
	Card  color.RGBA // the ground of a part
	Faint color.RGBA // the ground of a row
	Pale  color.RGBA // thin lines
	Grey  color.RGBA // texts that matter less
	Ink   color.RGBA // texts
}

// Light is for pictures and bright rooms, Dark for dark ones.
var (
	Light = Theme{
		Paper: color.RGBA{0xFF, 0xFF, 0xFF, 0xFF}, Card: color.RGBA{0xFA, 0xFB, 0xFC, 0xFF},
		Faint: color.RGBA{0xF5, 0xF7, 0xF9, 0xFF}, Pale: color.RGBA{0xE4, 0xE8, 0xEC, 0xFF},
		Grey: color.RGBA{0x6B, 0x74, 0x80, 0xFF}, Ink: color.RGBA{0x1C, 0x24, 0x30, 0xFF},
	}
	Dark = Theme{
		Paper: color.RGBA{0x14, 0x18, 0x1E, 0xFF}, Card: color.RGBA{0x1A, 0x1F, 0x26, 0xFF},
		Faint: color.RGBA{0x1B, 0x20, 0x27, 0xFF}, Pale: color.RGBA{0x2C, 0x33, 0x3C, 0xFF},
		Grey: color.RGBA{0x98, 0xA1, 0xAC, 0xFF}, Ink: color.RGBA{0xE6, 0xE9, 0xED, 0xFF},
	}
)

// Colours of what happens in a cache, over time. They can be read on both themes.
var (
	HitRate = Blue
	Cached  = Green
	Sets    = color.RGBA{0xB5, 0x5D, 0x91, 0xFF} // a darker purple: lines need the contrast
	Misses  = Vermilion                          // in no drawing together with what was evicted
	Evicted = Vermilion
	Memory  = color.RGBA{0x7F, 0x88, 0x93, 0xFF} // a grey between those of the themes
)

// Hex writes a colour as #rrggbb.
func Hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

// CSS writes the colours as variables of a page. The class dark of the page's root chooses the theme.
func CSS() string {
	var b strings.Builder
	theme := func(t Theme) {
		for _, v := range []struct {
			name string
			c    color.RGBA
		}{{"paper", t.Paper}, {"card", t.Card}, {"faint", t.Faint}, {"pale", t.Pale}, {"grey", t.Grey},
			{"ink", t.Ink}} {
			fmt.Fprintf(&b, "--%s: %s; ", v.name, Hex(v.c))
		}
	}
	b.WriteString(":root { color-scheme: light; ")
	theme(Light)
	for _, v := range []struct {
		name string
		c    color.RGBA
	}{{"hit-rate", HitRate}, {"cached", Cached}, {"misses", Misses}, {"sets", Sets}, {"evicted", Evicted}, {"memory", Memory},
		{"focus", SkyBlue}, {"found", Found}} {
		fmt.Fprintf(&b, "--%s: %s; ", v.name, Hex(v.c))
	}
	b.WriteString("}\n:root.dark { color-scheme: dark; ")
	theme(Dark)
	b.WriteString("}\n")
	return b.String()
}
