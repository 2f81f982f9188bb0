// Package top is the screen of stocached top. Model (model.go) is a model of bubbletea: it takes frames of
// package live and keys, and knows no caches. view.go draws it, columns.go has the list, keys.go the keys.
package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/stocached/stocached/internal/cli/live"
	"github.com/stocached/stocached/internal/cli/table"
)

// Options of a Model.
type Options struct {
	Look     live.Look
	Interval time.Duration
	Plain    bool // no colours and no other escape sequences
	ASCII    bool // no other characters
}

// Model is the state of the screen. Its zero size is 80 columns by 24 lines.
type Model struct {
	Options
	frame   live.Frame
	history live.History
	frames  int // so far

	width, height int
	chosen        string // uuid of the cache under the cursor
	opened        string // uuid of the cache that fills the screen; "": the list does
	sorted        int    // number of the column in columns
	reversed      bool
	filter        string
	filtering     bool // keys go to the filter
	helping       bool
	paused        bool
	scrolled      int    // lines of the opened cache, or of the help, above the screen
	note          string // tells what has just happened
	looking       bool   // a look is under way
}

// New makes a model that has not looked yet.
func New(o Options) *Model { return &Model{Options: o, width: 80, height: 24} }

// Resize sets the size of the screen, in columns and lines.
func (m *Model) Resize(width, height int) { m.width, m.height = max(width, 1), max(height, 1) }

// looked is a new frame.
type looked live.Frame

// due says that the interval after a frame is over. It has the number of the frame: pausing and going on
// begins no second row of looks.
type due int

func (m *Model) Init() tea.Cmd { return m.look() }

// look reads the caches, beside the screen.
func (m *Model) look() tea.Cmd {
	if m.looking {
		return nil
	}
	m.looking = true
	opened := map[string]bool{m.opened: true}
	return func() tea.Msg { return looked(m.Look(opened)) }
}

func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.Resize(msg.Width, msg.Height)
	case looked:
		m.looking = false
		m.Take(live.Frame(msg))
		n := due(m.frames)
		return m, tea.Tick(m.Interval, func(time.Time) tea.Msg { return n })
	case due:
		if !m.paused && int(msg) == m.frames {
			return m, m.look()
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, nil
}

// Take shows a frame.
func (m *Model) Take(f live.Frame) {
	name := ""
	if c := m.find(m.opened); c != nil {
		name = c.Text("name")
	}
	m.frame = f
	m.frames++
	m.history.Add(&f)
	if m.opened != "" && m.find(m.opened) == nil {
		m.opened, m.note = "", name+" is gone"
	}
	m.keepChosen()
}

// keepChosen chooses the first cache if the chosen one is not listed.
func (m *Model) keepChosen() {
	rows := m.rows()
	for _, c := range rows {
		if c.UUID == m.chosen {
			return
		}
	}
	if m.chosen = ""; len(rows) > 0 {
		m.chosen = rows[0].UUID
	}
}

// find returns a cache of the frame; nil: it has gone.
func (m *Model) find(uuid string) *live.Cache {
	for k := range m.frame.Caches {
		if c := &m.frame.Caches[k]; c.UUID == uuid {
			return c
		}
	}
	return nil
}

// rows are the caches of the list, in its order.
func (m *Model) rows() (rows []*live.Cache) {
	for k := range m.frame.Caches {
		c := &m.frame.Caches[k]
		if strings.Contains(strings.ToLower(c.Name), strings.ToLower(m.filter)) {
			rows = append(rows, c)
		}
	}
	by, unknown := &columns[m.sorted], table.Text(nil)
	slices.SortStableFunc(rows, func(a, b *live.Cache) (order int) {
		x, y := a.Text(by.Field), b.Text(by.Field)
		switch {
		case x == unknown && y == unknown:
			return 0
		case x == unknown: // it comes last, in either direction
			return 1
		case y == unknown:
			return -1
		case by.Words:
			order = strings.Compare(x, y)
		default:
			order = cmp.Compare(b.Number(by.Field), a.Number(by.Field)) // the largest first
		}
		if m.reversed {
			return -order
		}
		return order
	})
	return rows
}

// move moves the cursor of the list, or scrolls what fills the screen.
func (m *Model) move(by int) {
	if m.opened != "" || m.helping {
		m.scrolled = max(m.scrolled+by, 0) // the view limits it
		return
	}
	rows := m.rows()
	at := slices.IndexFunc(rows, func(c *live.Cache) bool { return c.UUID == m.chosen })
	if at >= 0 {
		m.chosen = rows[min(max(at+by, 0), len(rows)-1)].UUID
	}
}
