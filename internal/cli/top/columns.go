package top

import (
	"slices"

	"github.com/charmbracelet/x/ansi"

	"github.com/stocached/stocached/internal/cli/live"
)

// room is what a column of live.Columns takes on the screen.
type room struct {
	width int
	turn  int // those with low numbers get room first
	past  int // width of its recent past beside it
	later int // the turn of the past
}

// The curves and all that comes before them in turn fill 80 columns.
var rooms = map[string]room{
	"name":               {9, 0, 0, 0},
	"clients_live":       {4, 6, 0, 0},
	"interval_hit_rate":  {8, 1, 4, 3},
	"cached_fraction":    {6, 2, 4, 10},
	"hits_per_second":    {9, 11, 0, 0},
	"stored_per_second":  {7, 5, 4, 8},
	"evicted_per_second": {9, 7, 4, 9},
	"allocated_bytes":    {9, 4, 0, 0},
	"policy":             {14, 12, 0, 0},
}

// column is a column of the list.
type column struct {
	live.Column
	room
}

var columns = func() (all []column) {
	for _, c := range live.Columns {
		all = append(all, column{c, rooms[c.Field]})
	}
	return all
}()

// shown says whether a column is on the screen.
func (m *Model) shown(c *column) bool {
	return slices.ContainsFunc(m.fit(), func(one cell) bool { return one.column == c })
}

// widest is the most room for a name.
const widest = 32

// cell is a column, or the past beside it, with its width on a screen.
type cell struct {
	*column
	width int
	past  bool
}

// fit returns the columns that fit, in the order of the screen.
func (m *Model) fit() []cell {
	longest := 0
	for _, c := range m.frame.Caches {
		longest = max(longest, ansi.StringWidth(c.Name))
	}
	return fit(m.width-2, longest)
}

// fit gives names their length first, up to a quarter of the room.
func fit(room, longest int) (cells []cell) {
	type wish struct{ turn, at, width int }
	var wishes []wish
	name := max(min(longest, widest, room/4), columns[0].width)
	for k, c := range columns {
		wishes = append(wishes, wish{c.turn, 2 * k, c.width})
		if c.past > 0 {
			wishes = append(wishes, wish{c.later, 2*k + 1, c.past})
		}
	}
	wishes[0].width = name
	slices.SortFunc(wishes, func(a, b wish) int { return a.turn - b.turn })
	widths := make([]int, 2*len(columns))
	for k, w := range wishes {
		need := w.width + 1
		if k == 0 {
			need = w.width
		}
		if need > room {
			if k == 0 { // a screen that is narrower than a name
				widths[w.at] = max(room, 1)
			}
			break
		}
		widths[w.at], room = w.width, room-need
	}
	for room > 0 { // half of the rest goes to the names, and half to the pasts
		more := 0
		if widths[0] >= name {
			more = min(room, 4, widest-widths[0])
		}
		widths[0], room = widths[0]+more, room-more
		given := more > 0
		for k := range columns {
			if widths[2*k+1] > 0 && room > 0 && widths[2*k+1] < live.Kept {
				widths[2*k+1]++
				room--
				given = true
			}
		}
		if !given {
			break
		}
	}
	for k := range columns {
		for n, past := range []bool{false, true} {
			if w := widths[2*k+n]; w > 0 {
				cells = append(cells, cell{&columns[k], w, past})
			}
		}
	}
	return cells
}
