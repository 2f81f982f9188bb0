package top

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/stocached/stocached/internal/cli/live"
	"github.com/stocached/stocached/internal/cli/table"
)

// Characters of a curve, from low to high, and of a gauge: full and empty.
const (
	curve, gauge           = "▁▂▃▄▅▆▇█", "█░"
	curveASCII, gaugeASCII = "_.,-~+*#", "#."
)

func (m *Model) View() tea.View {
	v := tea.NewView(m.Text())
	v.AltScreen = true
	v.WindowTitle = "stocached top"
	return v
}

// Text is the screen: at most as many lines and columns as it has.
func (m *Model) Text() string {
	lines := m.head()
	body, marked := m.body()
	foot := m.foot()
	if room := max(m.height-len(lines)-len(foot), 1); !m.Plain && len(body) > room {
		titles := body[:0:0]
		if marked >= 0 { // the chosen cache stays on the screen, under the titles
			titles, body, room = body[:1:1], body[1:], room-1
			m.scrolled = marked - 1 - room/2
		}
		m.scrolled = max(min(m.scrolled, len(body)-room), 0)
		foot[len(foot)-1] = more(m.scrolled, len(body)-room-m.scrolled) + foot[len(foot)-1]
		body = append(titles, body[m.scrolled:m.scrolled+room]...)
	} else if !m.Plain {
		m.scrolled = 0
		body = append(body, make([]string, room-len(body))...)
	}
	lines = slices.Concat(lines, body, foot)
	if !m.Plain {
		lines = lines[:min(len(lines), m.height)]
	}
	for k, line := range lines {
		lines[k] = strings.TrimRight(ansi.Truncate(line, m.width, ""), " ")
	}
	return strings.Join(lines, "\n")
}

// more tells of lines that have no room, with the keys that show them.
func more(above, below int) string {
	var parts []string
	if above > 0 {
		parts = append(parts, fmt.Sprintf("up: %d", above))
	}
	if below > 0 {
		parts = append(parts, fmt.Sprintf("down: %d", below))
	}
	if parts == nil {
		return ""
	}
	return strings.Join(parts, ", ") + " more  "
}

// page is how far a page moves.
func (m *Model) page() int { return max(m.height-len(m.head())-len(m.foot())-2, 1) }

// style writes a text in a style, unless the screen is plain.
func (m *Model) style(text string, s lipgloss.Style) string {
	if m.Plain {
		return text
	}
	return s.Render(text)
}

var (
	bold  = lipgloss.NewStyle().Bold(true)
	faint = lipgloss.NewStyle().Faint(true)
)

func (m *Model) colour(text string, c color.RGBA) string {
	return m.style(text, lipgloss.NewStyle().Foreground(c))
}

// head is the state of the whole machine.
func (m *Model) head() []string {
	if m.frames == 0 {
		return []string{m.style("stocached top", bold), "", ""}
	}
	counts, memory := m.frame.Summary()
	parts := []string{m.style("stocached top", bold)}
	if m.paused {
		parts = append(parts, m.style("paused", bold))
	}
	if m.filter != "" && !m.filtering {
		parts = append(parts, fmt.Sprintf("only %q", m.filter))
	}
	if m.sorted != 0 || m.reversed {
		order := "by " + columns[m.sorted].Title
		if m.reversed {
			order += ", reversed"
		}
		parts = append(parts, order)
	}
	parts = append(append(parts, counts...), m.frame.At.Format("15:04:05"))
	lines := []string{strings.Join(parts, "  "), strings.Join(memory, ", ")}
	return append(append(lines, m.frame.OnDemand...), "")
}

// foot is what has just happened, or what one can do.
func (m *Model) foot() []string {
	if m.Plain {
		return m.problems()
	}
	if m.filtering {
		return []string{"show names with: " + m.filter + "_   (enter keeps it, escape ends it)"}
	}
	hint := "? help  q end"
	switch {
	case m.helping:
		hint = "escape back  q end"
	case m.opened != "":
		hint = "escape back  ? help  q end"
	case len(m.frame.Caches) > 0:
		hint = "? help  q end  enter open  s sort  / filter"
	}
	lines := m.problems()
	if m.note != "" {
		lines = append(lines, m.style(m.note, bold))
	}
	return append(lines, m.style(hint, faint))
}

// problems are what could not be read: one on a screen, in at most three lines.
func (m *Model) problems() (lines []string) {
	all := m.frame.Problems
	if more := len(all) - 1; more > 0 && !m.Plain {
		all = []string{fmt.Sprintf("(and %d more) %s", more, all[0])}
	}
	for _, one := range all {
		wrapped := strings.Split(ansi.Wrap("! "+one, m.width, "/"), "\n")
		if !m.Plain {
			wrapped = wrapped[:min(len(wrapped), 3)]
		}
		lines = append(lines, wrapped...)
	}
	return lines
}

// body is the list, the opened cache or the help. marked is the line of the chosen cache; -1: the lines
// scroll.
func (m *Model) body() (lines []string, marked int) {
	switch {
	case m.helping:
		return m.help(), -1
	case m.opened != "":
		return m.cache(m.find(m.opened)), -1
	case m.frames == 0:
		return []string{"reading the caches ..."}, -1
	}
	rows := m.rows()
	if len(m.frame.Caches) == 0 {
		return []string{live.None(m.frame.Directory)}, -1
	}
	if len(rows) == 0 {
		return []string{fmt.Sprintf("no name has the text %q; escape shows all caches", m.filter)}, -1
	}
	return m.list(rows)
}

// help explains keys and columns, in the width of the screen.
func (m *Model) help() (lines []string) {
	entries := []struct{ name, help string }{{"Keys", ""}}
	for _, k := range keys {
		entries = append(entries, struct{ name, help string }{"  " + k.shown, k.help})
	}
	entries = append(entries, []struct{ name, help string }{
		{"Columns", ""},
		{"  live", "live clients; read-only ones are not counted"},
		{"  hit rate", "hits / (hits + misses) of the last interval; -: no client asked"},
		{"  cached", "samples in the cache / samples of the dataset"},
		{"  evicted/s", "samples that went for others"},
		{"  curves", "have a character for each interval, the last one on the right. Those of hit rate and cached go " +
			"from 0 to 1, the others from 0 to the largest value that they show"},
	}...)
	for _, e := range entries {
		indent := 20
		if m.width < 60 {
			lines, indent = append(lines, e.name), 4
			e.name = ""
		}
		for k, line := range strings.Split(ansi.Wordwrap(e.help, max(m.width-indent, 10), ""), "\n") {
			if k > 0 {
				e.name = ""
			}
			if e.name+line != "" {
				lines = append(lines, pad(e.name, indent)+line)
			}
		}
	}
	return lines
}

// list has the titles and a line for each cache.
func (m *Model) list(rows []*live.Cache) (lines []string, marked int) {
	cells := m.fit()
	var titles []string
	for _, c := range cells {
		switch {
		case c.past:
			titles = append(titles, strings.Repeat(" ", c.width))
		case c.Words:
			titles = append(titles, pad(strings.ToUpper(c.Title), c.width))
		default:
			titles = append(titles, before(strings.ToUpper(c.Title), c.width))
		}
		if !c.past && c.column == &columns[m.sorted] {
			titles[len(titles)-1] = m.style(titles[len(titles)-1], bold.Underline(true))
		} else {
			titles[len(titles)-1] = m.style(titles[len(titles)-1], bold)
		}
	}
	lines = append(lines, "  "+strings.Join(titles, " "))
	marked = -1
	for _, cache := range rows {
		var texts []string
		for _, c := range cells {
			switch {
			case c.past:
				texts = append(texts, m.curve(cache.UUID, live.Number(c.Field), c.width))
			case c.Words:
				texts = append(texts, pad(m.cut(cache.Text(c.Field), c.width), c.width))
			default:
				texts = append(texts, before(cache.Text(c.Field), c.width))
			}
		}
		mark := "  "
		if cache.UUID == m.chosen && !m.Plain {
			mark, marked = m.style("> ", bold), len(lines)
			texts[0] = m.style(texts[0], bold.Reverse(true))
		}
		lines = append(lines, mark+strings.Join(texts, " "))
	}
	return lines, marked
}

// cut shortens a text at its end, and marks that it did.
func (m *Model) cut(text string, width int) string { return ansi.Truncate(text, width, m.cutMark()) }

func (m *Model) cutMark() string {
	if m.ASCII {
		return "~"
	}
	return "…"
}

// pad fills a text with spaces on the right, before on the left.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-ansi.StringWidth(text), 0))
}
func before(text string, width int) string {
	return strings.Repeat(" ", max(width-ansi.StringWidth(text), 0)) + text
}

// curve draws the last values of a series.
func (m *Model) curve(uuid string, n, width int) string {
	values := m.history.Of(uuid).Values[n]
	values = values[max(len(values)-width, 0):]
	steps := []rune(curve)
	if m.ASCII {
		steps = []rune(curveASCII)
	}
	top := 1.0
	if live.All[n].Scale != live.Fraction {
		top = 0
		for _, v := range values {
			if v > top { // not if it is unknown
				top = v
			}
		}
	}
	b := []rune(strings.Repeat(" ", width-len(values)))
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			b = append(b, ' ')
		case top == 0:
			b = append(b, steps[0])
		default:
			b = append(b, steps[min(max(int(v/top*float64(len(steps))), 0), len(steps)-1)])
		}
	}
	return m.colour(string(b), live.All[n].Colour)
}

// cache shows one cache.
func (m *Model) cache(c *live.Cache) (lines []string) {
	add := func(format string, a ...any) { lines = append(lines, fmt.Sprintf(format, a...)) }
	add("%s  %s samples, policy %s", m.style(c.Text("name"), bold), c.Text("samples"), c.Text("policy"))
	if path := c.Text("path"); path != "-" {
		add("%s", m.style(path, faint))
	}
	switch server := c.Text("server"); server {
	case "-":
	case "answers":
		add("server: queue %s, source reads %s, shared reads %s, errors %s", c.Text("queue_depth"),
			c.Text("source_reads"), c.Text("shared_reads"), c.Text("source_errors"))
	default:
		add("server: %s", server)
	}
	width := max(m.width-37, 8)
	add("%s", m.style(fmt.Sprintf("%-10s%11s%14s  %s", "", "NOW", "TOTAL", "THE LAST INTERVALS"), bold))
	for _, row := range []struct{ title, now, total string }{
		{"hit rate", "interval_hit_rate", "hit_rate"},
		{"cached", "cached_fraction", "ready"},
		{"hits/s", "hits_per_second", "hits"},
		{"misses/s", "misses_per_second", "misses"},
		{"sets/s", "stored_per_second", "stored"},
		{"evicted/s", "evicted_per_second", "evicted"},
		{"full", "interval_full", "full"},
	} {
		past := ""
		if n := live.Number(row.now); n >= 0 {
			past = m.curve(c.UUID, n, width)
		}
		add("%-10s%11s%14s  %s", row.title, c.Text(row.now), c.Text(row.total), past)
	}
	part := c.Number("allocated_bytes") / c.Number("segment_bytes")
	add("%-10s%11s%14s  %s", "memory", c.Text("allocated_bytes"), "of "+c.Text("segment_bytes"),
		m.gauge(part, min(width, 30)))
	add("")
	lines = append(lines, m.epochs(c)...)
	return append(lines, m.clients(c)...)
}

// gauge draws a part of a whole.
func (m *Model) gauge(part float64, width int) string {
	steps := []rune(gauge)
	if m.ASCII {
		steps = []rune(gaugeASCII)
	}
	full := 0
	if !math.IsNaN(part) {
		full = min(max(int(part*float64(width)+0.5), 0), width)
	}
	memory := live.All[live.Number("allocated_bytes")].Colour
	return m.colour(strings.Repeat(string(steps[0]), full)+strings.Repeat(string(steps[1]), width-full), memory)
}

// epochs compares what an epoch should do with what the last one did.
func (m *Model) epochs(c *live.Cache) (lines []string) {
	if why := c.Text("no_prediction"); why != "-" {
		return append(strings.Split(ansi.Wordwrap("nothing to predict yet: "+why, m.width, ""), "\n"), "")
	}
	for _, row := range c.Epochs() {
		lines = append(lines, fmt.Sprintf("%-10s%11s%14s", row[0], row[1], row[2]))
	}
	lines[0] = m.style(lines[0], bold)
	return append(lines, "")
}

// clients has a line for each live client.
func (m *Model) clients(c *live.Cache) (lines []string) {
	if len(c.Clients) == 0 {
		return []string{"no live clients"}
	}
	lines = append(lines, m.style(fmt.Sprintf("%8s %-6s %-16s %9s %9s %9s %14s", "PID", "KIND", "CLIENT", "HITS/S", "MISSES/S",
		"SETS/S", "HITS"), bold))
	for _, one := range c.Clients {
		text := func(field string) string { return table.Text(one.Value(field)) }
		lines = append(lines, fmt.Sprintf("%8s %-6s %s %9s %9s %9s %14s", text("pid"), text("kind"),
			pad(m.cut(text("label"), 16), 16), text("hits_per_second"), text("misses_per_second"), text("stored_per_second"),
			text("hits")))
	}
	return lines
}
