package cli

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// emulator is a terminal as far as stocached top uses one: it keeps what is on the screen.
type emulator struct {
	mu      sync.Mutex
	cells   [][]rune
	x, y    int
	top     int             // the first line that scrolls
	bottom  int             // the line after the last that scrolls
	rest    []byte          // the bytes of an incomplete sequence
	written strings.Builder // all bytes so far
	changed chan struct{}   // a channel with room for one
}

func newEmulator(width, height int) *emulator {
	e := &emulator{changed: make(chan struct{}, 1)}
	e.resize(width, height)
	return e
}

// resize keeps what has room.
func (e *emulator) resize(width, height int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.cells
	e.cells = make([][]rune, height)
	for k := range e.cells {
		e.cells[k] = blank(width)
		if k < len(old) {
			copy(e.cells[k], old[k])
		}
	}
	e.x, e.y = min(e.x, width-1), min(e.y, height-1)
	e.top, e.bottom = 0, height
}

// scroll moves the lines from first to the last that scrolls: up by n, or down by -n.
func (e *emulator) scroll(first, n int) {
	if first >= e.bottom {
		return
	}
	lines := e.cells[first:e.bottom]
	for range min(max(n, -n), len(lines)) {
		if n > 0 {
			copy(lines, lines[1:])
			lines[len(lines)-1] = blank(len(e.cells[0]))
		} else {
			copy(lines[1:], lines)
			lines[0] = blank(len(e.cells[0]))
		}
	}
}

func blank(n int) []rune { return []rune(strings.Repeat(" ", n)) }

// screen returns the lines without spaces at their ends.
func (e *emulator) screen() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var lines []string
	for _, row := range e.cells {
		lines = append(lines, strings.TrimRight(string(row), " "))
	}
	return strings.Join(lines, "\n")
}

// all returns all bytes that the program has written.
func (e *emulator) all() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.written.String()
}

// wait waits until the screen holds.
func (e *emulator) wait(t *testing.T, what string, holds func(screen string) bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !holds(e.screen()) {
		select {
		case <-e.changed:
		case <-deadline:
			t.Fatalf("not so: %s\n%s", what, e.screen())
		}
	}
}

// shows waits until texts are on the screen.
func (e *emulator) shows(t *testing.T, texts ...string) {
	t.Helper()
	e.wait(t, "it shows "+strings.Join(texts, " and "), func(screen string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(screen, text) })
	})
}

func (e *emulator) Write(b []byte) (int, error) {
	e.mu.Lock()
	e.written.Write(b)
	e.rest = append(e.rest, b...)
	for len(e.rest) > 0 {
		n := e.step(e.rest)
		if n == 0 {
			break
		}
		e.rest = e.rest[n:]
	}
	e.mu.Unlock()
	select {
	case e.changed <- struct{}{}:
	default:
	}
	return len(b), nil
}

// step takes one character or sequence, and returns its length; 0: it is not complete.
func (e *emulator) step(b []byte) int {
	width, height := len(e.cells[0]), len(e.cells)
	switch b[0] {
	case '\r':
		e.x = 0
	case '\n':
		if e.y == e.bottom-1 {
			e.scroll(e.top, 1)
		} else {
			e.y = min(e.y+1, height-1)
		}
	case '\b':
		e.x = max(e.x-1, 0)
	case '\t':
		e.x = min((e.x/8+1)*8, width-1)
	case 0x1b:
		return e.escape(b)
	default:
		if b[0] < ' ' {
			break
		}
		if !utf8.FullRune(b) {
			return 0
		}
		r, n := utf8.DecodeRune(b)
		e.put(r)
		return n
	}
	return 1
}

func (e *emulator) put(r rune) {
	if e.x >= len(e.cells[0]) {
		e.x = 0
		e.y = min(e.y+1, len(e.cells)-1)
	}
	e.cells[e.y][e.x] = r
	e.x++
}

func (e *emulator) escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '[':
		for k := 2; k < len(b); k++ {
			if b[k] >= 0x40 && b[k] <= 0x7e {
				e.control(string(b[2:k]), b[k])
				return k + 1
			}
		}
		return 0
	case ']', 'P', '_', '^': // a text up to BEL or ESC \
		for k := 2; k < len(b); k++ {
			if b[k] == 7 {
				return k + 1
			}
			if b[k] == 0x1b && k+1 < len(b) {
				return k + 2
			}
		}
		return 0
	case 'M': // a line up
		if e.y == e.top {
			e.scroll(e.top, -1)
		} else {
			e.y = max(e.y-1, 0)
		}
	}
	return 2
}

// control takes a sequence of ESC [.
func (e *emulator) control(parameters string, final byte) {
	width, height := len(e.cells[0]), len(e.cells)
	if strings.ContainsAny(parameters, "<>=") {
		return // a question
	}
	if strings.HasPrefix(parameters, "?") {
		if strings.Contains(parameters, "1049") {
			for k := range e.cells {
				e.cells[k] = blank(width)
			}
			e.x, e.y = 0, 0
		}
		return
	}
	var n [2]int
	for k, text := range strings.SplitN(parameters, ";", 2) {
		n[k], _ = strconv.Atoi(text)
	}
	count := max(n[0], 1)
	row := e.cells[e.y]
	at := min(e.x, width-1)
	switch final {
	case 'A':
		e.y = max(e.y-count, 0)
	case 'B':
		e.y = min(e.y+count, height-1)
	case 'C':
		e.x = min(e.x+count, width-1)
	case 'D':
		e.x = max(e.x-count, 0)
	case 'G':
		e.x = min(count, width) - 1
	case 'd':
		e.y = min(count, height) - 1
	case 'H':
		e.y, e.x = min(count, height)-1, min(max(n[1], 1), width)-1
	case 'J':
		from := 0 // 2: the whole screen
		if n[0] == 0 {
			copy(row[at:], blank(width-at))
			from = e.y + 1
		}
		for y := from; y < height; y++ {
			e.cells[y] = blank(width)
		}
	case 'K':
		from, to := at, width // 1: up to the cursor; 2: the whole line
		if n[0] > 0 {
			from = 0
		}
		if n[0] == 1 {
			to = at + 1
		}
		copy(row[from:to], blank(to-from))
	case 'L':
		e.scroll(e.y, -count)
	case 'M':
		e.scroll(e.y, count)
	case 'Z': // back to a stop of the tabulator
		for range count {
			e.x = max(e.x-1, 0) / 8 * 8
		}
	case 'r': // lines that scroll
		e.top, e.bottom = min(count, height)-1, height
		if n[1] > 0 {
			e.bottom = min(n[1], height)
		}
		e.x, e.y = 0, 0
	case 'X':
		copy(row[at:], blank(min(count, width-at)))
	case 'P':
		k := min(count, width-at)
		e.cells[e.y] = append(slices.Delete(row, at, at+k), blank(k)...)
	case '@':
		e.cells[e.y] = slices.Insert(row, at, blank(min(count, width-at))...)[:width]
	case 'S':
		e.scroll(e.top, count)
	case 'T':
		e.scroll(e.top, -count)
	}
}
