package top

import (
	"flag"
	"fmt"
	"html"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"

	"github.com/stocached/stocached/internal/cli/live"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/palette"
	"github.com/stocached/stocached/internal/verify/fatal"
)

var update = flag.Bool("update", false, "write docs/images/top.svg again; then look at it")

// Ensure that the picture of the guide is what this version shows in 80 columns: a job that fills its cache, one that
// evicts and one that reads nothing. A change of the screen changes the picture; look at it then.
func TestPicture(t *testing.T) {
	m := model()
	m.Resize(80, 12)
	for k := range 24 {
		warm, moved := float64(k)/30, 40+30*math.Cos(float64(k))
		frame := at(k,
			shown("faces", 3, warm, warm, 900*(1-warm), 0, uint64(96*warm*(1<<20))),
			shown("photos", 8, 0.5+0.1*math.Sin(float64(k)), 0.25, moved, moved, 480<<20),
			shown("tokens", 0, math.NaN(), 1, 0, 0, 12<<20))
		frame.At, frame.Memory.Caches = frame.At.UTC(), table.Bytes(588<<20)
		m.Take(frame)
	}
	press(t, m, "down")
	got := picture(m.Text(), 80)
	const path = "../../../docs/images/top.svg"
	if *update {
		fatal.If(t, os.WriteFile(path, []byte(got), 0o644))
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != got {
		t.Errorf("%s differs from the screen (%v): go test ./internal/cli/top -run Picture -update, then look at it", path, err)
	}
}

func shown(name string, clients uint64, hitRate, cached, sets, evicted float64, memory uint64) live.Cache {
	c := live.Cache{UUID: name, Name: name}
	c.Fields.Add("name", name)
	c.Fields.Add("clients_live", table.Count(clients))
	c.Fields.Add("interval_hit_rate", table.Ratio(hitRate))
	c.Fields.Add("cached_fraction", table.Ratio(cached))
	c.Fields.Add("stored_per_second", table.PerSecond(sets))
	c.Fields.Add("evicted_per_second", table.PerSecond(evicted))
	c.Fields.Add("allocated_bytes", table.Bytes(memory))
	return c
}

var style = regexp.MustCompile(`\x1b\[([0-9;]*)m`)

// picture draws a screen with its colours, on a dark terminal.
func picture(screen string, columns int) string {
	const wide, high = 8.4, 18
	lines := strings.Split(screen, "\n")
	ink, paper := palette.Hex(palette.Dark.Ink), palette.Hex(palette.Dark.Paper)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" font-family="monospace" font-size="14">`+
		"\n<title>stocached top</title><rect width=\"100%%\" height=\"100%%\" fill=\"%s\"/>\n", wide*float64(columns)+24, high*len(lines)+20, paper)
	for k, line := range lines {
		at, y := 0, high*k+24
		fill, more := ink, ""
		for line != "" {
			if code := style.FindStringSubmatchIndex(line); code != nil && code[0] == 0 {
				fill, more = styled(line[code[2]:code[3]], fill, more, ink, paper)
				line = line[code[1]:]
				continue
			}
			text := line
			if next := strings.IndexByte(line, '\x1b'); next >= 0 {
				text = line[:next]
			}
			line = line[len(text):]
			width := ansi.StringWidth(text)
			x := 12 + wide*float64(at)
			at += width
			if strings.TrimSpace(text) == "" {
				continue
			}
			fill := fill
			if strings.Contains(more, reversed) {
				fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`, x, y-14, wide*float64(width), high, fill)
				fill = paper
			}
			fmt.Fprintf(&b, `<text xml:space="preserve" x="%.1f" y="%d" textLength="%.1f" fill="%s"%s>%s</text>`+"\n", x, y,
				wide*float64(width), fill, strings.Replace(more, reversed, "", 1), html.EscapeString(text))
		}
	}
	return b.String() + "</svg>\n"
}

const reversed = " reversed"

// styled changes a style by the codes of an escape sequence.
func styled(codes, fill, more, ink, paper string) (newFill, newMore string) {
	var r, g, b uint8
	if codes == "" || codes == "0" {
		return ink, ""
	}
	if _, err := fmt.Sscanf(codes, "38;2;%d;%d;%d", &r, &g, &b); err == nil {
		return fmt.Sprintf("#%02x%02x%02x", r, g, b), more
	}
	for code := range strings.SplitSeq(codes, ";") {
		switch has := map[string]string{"1": ` font-weight="bold"`, "4": ` text-decoration="underline"`, "7": reversed}[code]; {
		case code == "2":
			fill = palette.Hex(palette.Dark.Grey)
		case !strings.Contains(more, has):
			more += has
		}
	}
	return fill, more
}
