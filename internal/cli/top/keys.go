package top

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
)

// key is what a key does, and what the help says of it.
type key struct {
	names []string // as bubbletea names them
	shown string
	help  string
	do    func(m *Model) tea.Cmd
}

// far is further than any list goes.
const far = 1 << 30

// keys are all keys outside of the filter. init fills it: what keys do uses the help.
var keys []key

func init() {
	simple := func(do func(m *Model)) func(m *Model) tea.Cmd {
		return func(m *Model) tea.Cmd {
			do(m)
			return nil
		}
	}
	keys = []key{
		{[]string{"up", "k"}, "up, k", "choose the cache above, or scroll", simple(func(m *Model) { m.move(-1) })},
		{[]string{"down", "j"}, "down, j", "choose the cache below, or scroll", simple(func(m *Model) { m.move(1) })},
		{[]string{"pgup"}, "page up", "a screen up", simple(func(m *Model) { m.move(-m.page()) })},
		{[]string{"pgdown", "space"}, "page down, space", "a screen down", simple(func(m *Model) { m.move(m.page()) })},
		{[]string{"home", "g"}, "home, g", "to the first line", simple(func(m *Model) { m.move(-far) })},
		{[]string{"end", "G"}, "end, G", "to the last line", simple(func(m *Model) { m.move(far) })},
		{[]string{"enter"}, "enter", "open the chosen cache: all series, epochs and clients", simple((*Model).open)},
		{[]string{"esc", "backspace", "left"}, "escape, left", "go back; in the list: show all caches again", simple((*Model).back)},
		{[]string{"s"}, "s", "sort by the next column on the screen", simple(func(m *Model) { m.sort(1) })},
		{[]string{"S"}, "S", "sort by the column before", simple(func(m *Model) { m.sort(-1) })},
		{[]string{"r"}, "r", "reverse the order", simple(func(m *Model) { m.reversed = !m.reversed })},
		{[]string{"/"}, "/", "show only caches whose name has a text; enter keeps it, escape ends it",
			simple(func(m *Model) { m.opened, m.helping, m.filtering = "", false, true })},
		{[]string{"p"}, "p", "pause, or go on", (*Model).pause},
		{[]string{"?", "h"}, "?, h", "show or leave this help", simple(func(m *Model) { m.helping, m.scrolled = !m.helping, 0 })},
		{[]string{"q", "ctrl+c"}, "q, Ctrl-C", "end", func(*Model) tea.Cmd { return tea.Quit }},
	}
}

// Help is the text of the help, a line for each key.
func Help() string {
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "  %-18s%s\n", k.shown, k.help)
	}
	return strings.TrimRight(b.String(), "\n")
}

// press takes a key.
func (m *Model) press(msg tea.KeyPressMsg) tea.Cmd {
	m.note = ""
	name := msg.String()
	if m.filtering && name != "ctrl+c" {
		m.typed(name, msg.Text)
		return nil
	}
	for _, k := range keys {
		for _, n := range k.names {
			if n == name {
				return k.do(m)
			}
		}
	}
	return nil
}

// typed takes a key for the filter.
func (m *Model) typed(name, text string) {
	switch name {
	case "enter":
		m.filtering = false
	case "esc":
		m.filter, m.filtering = "", false
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	default:
		m.filter += text
	}
	m.keepChosen()
}

// open shows one cache. The next look compares its epochs.
func (m *Model) open() {
	if !m.helping && m.opened == "" {
		m.opened, m.scrolled = m.chosen, 0
	}
}

func (m *Model) back() {
	switch {
	case m.helping:
		m.helping = false
	case m.opened != "":
		m.opened = ""
	default:
		m.filter = ""
	}
	m.scrolled = 0
	m.keepChosen()
}

// sort takes the next column, or the one before, of those on the screen.
func (m *Model) sort(by int) {
	m.reversed = false
	for range columns {
		if m.sorted = (m.sorted + by + len(columns)) % len(columns); m.shown(&columns[m.sorted]) {
			return
		}
	}
}

func (m *Model) pause() tea.Cmd {
	if m.paused = !m.paused; m.paused {
		return nil
	}
	return m.look()
}
