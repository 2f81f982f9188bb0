package palette

import (
	"image/color"
	"io/fs"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// linear returns the light of a colour's channels.
func linear(c color.RGBA) (v [3]float64) {
	for k, n := range [3]uint8{c.R, c.G, c.B} {
		if s := float64(n) / 255; s <= 0.04045 {
			v[k] = s / 12.92
		} else {
			v[k] = math.Pow((s+0.055)/1.055, 2.4)
		}
	}
	return v
}

// contrast is that of WCAG: 1 to 21.
func contrast(a, b color.RGBA) float64 {
	light := func(c color.RGBA) float64 {
		v := linear(c)
		return 0.2126*v[0] + 0.7152*v[1] + 0.0722*v[2] + 0.05
	}
	x, y := light(a), light(b)
	return max(x, y) / min(x, y)
}

// seen are the matrices by which Machado, Oliveira and Fernandes (2009) simulate whole colour blindness.
var seen = map[string][3][3]float64{
	"all":          {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

// lab returns a colour in CIE L*a*b*, as people of one kind see it.
func lab(c color.RGBA, kind string) (l, a, b float64) {
	var v [3]float64
	rgb := linear(c)
	for k, row := range seen[kind] {
		v[k] = min(max(row[0]*rgb[0]+row[1]*rgb[1]+row[2]*rgb[2], 0), 1)
	}
	f := func(t float64) float64 {
		if t > 216.0/24389 {
			return math.Cbrt(t)
		}
		return (24389.0/27*t + 16) / 116
	}
	x := f((0.4124564*v[0] + 0.3575761*v[1] + 0.1804375*v[2]) / 0.95047)
	y := f(0.2126729*v[0] + 0.7151522*v[1] + 0.0721750*v[2])
	z := f((0.0193339*v[0] + 0.1191920*v[1] + 0.9503041*v[2]) / 1.08883)
	return 116*y - 16, 500 * (x - y), 200 * (y - z)
}

func distance(a, b color.RGBA, kind string) float64 {
	l1, a1, b1 := lab(a, kind)
	l2, a2, b2 := lab(b, kind)
	return math.Sqrt((l1-l2)*(l1-l2) + (a1-a2)*(a1-a2) + (b1-b2)*(b1-b2))
}

// least is the smallest distance of two colours in a drawing. 2.3 is what an eye just notices side by side.
const least = 15

// Ensure that the colours of one drawing can be told apart with each kind of colour blindness, and those of
// lines seen on both themes.
func TestColourBlindness(t *testing.T) {
	for name, group := range map[string][]color.RGBA{
		"Okabe and Ito": {Blue, Vermilion, Green, Yellow, SkyBlue, Purple, Orange},
		"of caches":     {HitRate, Cached, Sets, Evicted},
	} {
		for kind := range seen {
			for k, a := range group {
				for _, b := range group[:k] {
					if d := distance(a, b, kind); d < least {
						t.Errorf("%s, %s: %s and %s are %.1f apart", name, kind, Hex(a), Hex(b), d)
					}
				}
			}
		}
	}
	for _, theme := range []Theme{Light, Dark} {
		for _, c := range []color.RGBA{HitRate, Cached, Sets, Evicted, Memory} {
			for _, ground := range []color.RGBA{theme.Paper, theme.Card} {
				if r := contrast(c, ground); r < 3 {
					t.Errorf("a line of %s on %s has contrast %.2f", Hex(c), Hex(ground), r)
				}
			}
		}
		for _, ground := range []color.RGBA{theme.Paper, theme.Card, theme.Faint} {
			if ink, grey := contrast(theme.Ink, ground), contrast(theme.Grey, ground); ink < 7 || grey < 4.4 {
				t.Errorf("texts on %s have contrast %.2f and %.2f", Hex(ground), ink, grey)
			}
		}
	}
	red, green := color.RGBA{0xD0, 0x40, 0x40, 0xFF}, color.RGBA{0x6F, 0x70, 0x35, 0xFF} // what this test is for
	if d := distance(red, green, "deuteranopia"); d > least || distance(red, green, "all") < 3*least {
		t.Errorf("red and green are %.1f apart", d)
	}
}

// Ensure that a page gets every colour of both themes.
func TestCSS(t *testing.T) {
	css := CSS()
	for _, want := range []string{"--paper: #ffffff", "--paper: #14181e", "--hit-rate: #0072b2", "--ink: #1c2430",
		":root.dark {"} {
		expect.Says(t, css, want)
	}
}

// Ensure that no other file of a page or a chart has colours of its own.
func TestOneTable(t *testing.T) {
	table := fatal.Value(os.ReadFile("palette.go"))(t)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`color\.RGBA\{0x(..), 0x(..), 0x(..), 0xFF\}`).FindAllStringSubmatch(
		string(table), -1) {
		known[strings.ToLower("#"+m[1]+m[2]+m[3])] = true
	}
	root := os.DirFS("../..")
	files := 0
	for _, pattern := range []string{"internal/timeline/*.html", "internal/cli/web/page/*.css",
		"internal/cli/web/page/*.js", "internal/cli/web/page/*.html", "demo/chart.py"} {
		found := fatal.Value(fs.Glob(root, pattern))(t)
		for _, name := range found {
			if strings.Contains(name, "uPlot") {
				continue // another project's file, whose colours the page overrides
			}
			files++
			text := fatal.Value(fs.ReadFile(root, name))(t)
			for _, hex := range regexp.MustCompile(`#[0-9a-fA-F]{6}\b`).FindAllString(string(text), -1) {
				if !known[strings.ToLower(hex)] {
					t.Errorf("%s has the colour %s, which is not in palette.go", name, hex)
				}
			}
		}
	}
	if files < 3 {
		t.Errorf("only %d files were looked at", files)
	}
}
