package top

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/stocached/stocached/internal/cli/live"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// made makes a cache with a hit rate; NaN: no client asked.
func made(name string, hitRate float64, memory uint64) live.Cache {
	c := live.Cache{UUID: "uuid of " + name, Name: name}
	for field, v := range map[string]any{"name": name, "path": "/dev/shm/stocached-0/" + name, "samples": table.Count(1000),
		"ready": table.Count(500), "cached_fraction": table.Ratio(0.5), "interval_hit_rate": table.Ratio(hitRate),
		"hit_rate": table.Ratio(0.25), "stored_per_second": table.PerSecond(memory), "stored": table.Count(7),
		"evicted_per_second": table.PerSecond(0), "hits_per_second": table.PerSecond(12), "clients_live": table.Count(1),
		"allocated_bytes": table.Bytes(memory), "segment_bytes": table.Bytes(2 * memory), "policy": "lru",
		"predicted_hit_rate": table.Ratio(0.5), "observed_hit_rate": table.Ratio(0.49), "observed_evicted": uint64(7)} {
		c.Fields.Add(field, v)
	}
	one := table.Object{}
	one.Add("pid", 123)
	one.Add("kind", "python")
	one.Add("label", "train of "+name)
	c.Clients = append(c.Clients, one)
	return c
}

func at(second int, caches ...live.Cache) live.Frame {
	return live.Frame{At: time.Unix(int64(second), 0), Directory: "/dev/shm/stocached-0", Caches: caches}
}

// screen is what the model shows, without styles.
func screen(m *Model) string { return ansi.Strip(m.Text()) }

// press presses a key by a name of keys.
func press(t *testing.T, m *Model, names ...string) tea.Cmd {
	t.Helper()
	special := map[string]tea.Key{"up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "pgup": {Code: tea.KeyPgUp},
		"pgdown": {Code: tea.KeyPgDown}, "home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd},
		"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "backspace": {Code: tea.KeyBackspace},
		"left": {Code: tea.KeyLeft}, "space": {Code: tea.KeySpace, Text: " "}, "ctrl+c": {Code: 'c', Mod: tea.ModCtrl}}
	var cmd tea.Cmd
	for _, name := range names {
		k, ok := special[name]
		if !ok {
			k = tea.Key{Code: []rune(name)[0], Text: name}
		}
		fatal.Equal(t, tea.KeyPressMsg(k).String(), name, "bubbletea calls the key")
		_, cmd = m.Update(tea.KeyPressMsg(k))
	}
	return cmd
}

func model(caches ...live.Cache) *Model {
	m := New(Options{Interval: time.Second, Look: func(map[string]bool) live.Frame { return at(0, caches...) }})
	m.Take(at(1, caches...))
	return m
}

func wants(t *testing.T, m *Model, texts ...string) {
	t.Helper()
	for _, text := range texts {
		expect.Says(t, screen(m), text)
	}
}

// order returns the names of the list, from top to bottom, and the one under the cursor.
func order(m *Model) (names []string, chosen string) {
	for _, line := range strings.Split(screen(m), "\n") {
		if f := regexp.MustCompile(`^([> ]) ([a-z]+\d*) `).FindStringSubmatch(line); f != nil {
			if names = append(names, f[2]); f[1] == ">" {
				chosen = f[2]
			}
		}
	}
	return names, chosen
}

// Ensure that each column of the list has room on the screen, and each curve a series.
func TestColumns(t *testing.T) {
	expect.Equal(t, len(rooms), len(live.Columns), "columns of the rooms")
	for _, c := range columns {
		if c.width == 0 || c.past > 0 && !c.Curve || c.Curve && live.Number(c.Field) < 0 {
			t.Errorf("%+v", c)
		}
	}
}

// Ensure that caches without a name can be told apart in 80 columns, and in a terminal without UTF-8.
func TestLongNames(t *testing.T) {
	m := model(made("stocached:0f3ac81b", 0.9, 1), made("stocached:77d2e905", 0.9, 1))
	wants(t, m, "stocached:0f3ac81b ", "stocached:77d2e905 ")
	m.Resize(40, 24) // a name that is cut ends with a mark
	wants(t, m, "stocached:0f3ac… ", "stocached:77d2e… ")
	m.ASCII = true
	wants(t, m, "stocached:0f3ac~ ", "stocached:77d2e~ ")
}

// Ensure that no screen has more lines or columns than the terminal, in any size, in the list, opened, with
// help and with a filter, and that the most important columns stay.
func TestSizes(t *testing.T) {
	var caches []live.Cache
	for k := range 60 {
		caches = append(caches, made(fmt.Sprintf("cache%d", k), 0.9, 1<<20))
	}
	caches[3] = made("a名前が長いキャッシュの名前が長いキャッシュ\x1b[2J", 0.1, 5)
	for _, size := range [][2]int{{80, 24}, {40, 12}, {40, 24}, {200, 60}, {20, 8}, {3, 3}, {1, 1}, {999, 5}} {
		m := model(caches...)
		m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for _, keys := range [][]string{{}, {"end"}, {"enter"}, {"pgdown"}, {"?"}, {"end"}, {"esc", "esc", "/"}, {"x"}} {
			press(t, m, keys...)
			lines := strings.Split(m.Text(), "\n")
			if len(lines) > size[1] {
				t.Errorf("%v %v: %d lines", size, keys, len(lines))
			}
			for _, line := range lines {
				if n := ansi.StringWidth(line); n > size[0] || strings.Contains(line, "\x1b[2J") {
					t.Errorf("%v %v: %d columns: %q", size, keys, n, line)
				}
			}
		}
	}
	m := model(caches...)
	wants(t, m, "stocached top  60 caches  60 clients", "HIT RATE", "CACHED", "SETS/S", "EVICTED/S", "MEMORY", "LIVE")
	curves := 0 // in 80 columns, four series have a curve: what they do over time
	for _, c := range fit(78, 9) {
		if c.past && c.width >= 4 {
			curves++
		}
	}
	expect.Equal(t, curves, 4, "curves in 80 columns")
	m.Resize(40, 24)
	wants(t, m, "NAME", "HIT RATE", "CACHED", "0.9000", "0.5000")
	m.Resize(200, 24)
	wants(t, m, "HITS/S", "POLICY", "lru")
	for width := range 300 {
		sum := 0
		for _, c := range fit(width, 9) {
			sum += c.width + 1
		}
		if sum-1 > max(width, 1) {
			t.Errorf("%d columns of %d", sum-1, width)
		}
	}
}

// Ensure that the cursor stays on the screen and on its cache, however the list is sorted and moves.
func TestCursor(t *testing.T) {
	var caches []live.Cache
	for k := range 60 {
		caches = append(caches, made(fmt.Sprintf("cache%d", k+10), float64(k)/100, uint64(k)))
	}
	m := model(caches...)
	m.Resize(80, 12)
	for _, c := range []struct{ key, want string }{{"down", "cache11"}, {"j", "cache12"}, {"up", "cache11"}, {"k", "cache10"},
		{"up", "cache10"}, {"end", "cache69"}, {"down", "cache69"}, {"home", "cache10"}, {"G", "cache69"}, {"g", "cache10"},
		{"pgdown", "cache16"}, {"space", "cache22"}, {"pgup", "cache16"}} {
		press(t, m, c.key)
		if _, chosen := order(m); chosen != c.want {
			t.Fatalf("%s: the cursor is on %q, want %s:\n%s", c.key, chosen, c.want, screen(m))
		}
	}
	press(t, m, "s", "s") // the hit rate, the largest first
	names, chosen := order(m)
	if chosen != "cache16" || !slices.IsSortedFunc(names, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("%v, cursor on %s", names, chosen)
	}
	press(t, m, "home", "enter")
	wants(t, m, "/dev/shm/stocached-0/cache69")
	press(t, m, "end")
	wants(t, m, "train of cache69")
	m.Take(at(2, caches[:59]...))
	wants(t, m, "cache69 is gone", "59 caches")
	if _, chosen := order(m); chosen != "cache68" {
		t.Errorf("the cursor is on %q", chosen)
	}
	m.Take(at(3))
	wants(t, m, "0 caches", "no caches in /dev/shm/stocached-0 yet")
	press(t, m, "enter", "down", "s", "/", "a", "enter")
	m.Take(at(4, caches...))
	wants(t, m, "60 caches", "cache10")
}

// Ensure that the list is sorted by the alphabet where a column has words, that keys sort by columns on the screen only,
// and that the screen says by which, also if it has become too narrow for that column.
func TestSorted(t *testing.T) {
	var caches []live.Cache
	for name, policy := range map[string]any{"one": "lru", "two": "cost", "three": nil, "four": "fifo", "five": "first-come"} {
		c := made(name, 0.5, 1)
		for k := range c.Fields {
			if c.Fields[k].Name == "policy" {
				c.Fields[k].Value = policy
			}
		}
		caches = append(caches, c)
	}
	m := model(caches...)
	m.Resize(200, 24)
	for _, c := range []struct {
		key, said string
		want      []string
	}{{"S", "by policy  5 caches", []string{"two", "four", "five", "one", "three"}}, // from the name back to the last column
		{"r", "by policy, reversed  5 caches", []string{"one", "five", "four", "two", "three"}}} {
		press(t, m, c.key)
		wants(t, m, c.said)
		if names, _ := order(m); !slices.Equal(names, c.want) {
			t.Errorf("%s: %v, want %v", c.said, names, c.want)
		}
	}
	m.Resize(40, 24)
	wants(t, m, "stocached top  by policy, reversed")
	for _, width := range []int{1, 12, 40, 80, 200} {
		m.Resize(width, 24)
		for _, key := range []string{"s", "S"} {
			seen := map[int]bool{}
			for range 2 * len(columns) {
				press(t, m, key)
				seen[m.sorted] = true
				if title := strings.ToUpper(columns[m.sorted].Title); width >= 12 && !strings.Contains(screen(m), title) {
					t.Errorf("%d columns: sorted by %s in\n%s", width, title, screen(m))
				}
			}
			cells := slices.DeleteFunc(fit(width-2, 9), func(c cell) bool { return c.past })
			expect.Equal(t, len(seen), len(cells), "%d columns: those that %s sorts by", width, key)
		}
	}
}

// Ensure that the foot says how many caches are above and below the screen, and that each is found there.
func TestMore(t *testing.T) {
	var caches []live.Cache
	for k := range 42 {
		caches = append(caches, made(fmt.Sprintf("cache%d", k+10), 0.5, 1))
	}
	m := model(caches...)
	m.Resize(80, 24)
	for _, c := range []struct{ key, first, foot string }{{"home", "cache10", "down: 23 more  ? help"}, {"end", "cache33", "up: 23 more  ? help"},
		{"pgup", "cache24", "up: 14, down: 9 more  ? help"}} {
		press(t, m, c.key)
		wants(t, m, "\n"+c.foot)
		if names, _ := order(m); len(names) != 19 || names[0] != c.first {
			t.Errorf("%s: %v", c.key, names)
		}
	}
	press(t, m, "/", "2")
	if s := screen(m); strings.Contains(s, "more") {
		t.Errorf("all have room:\n%s", s)
	}
	m.Resize(80, 10)
	wants(t, m, "\ndown: 8 more  show names with: 2_")
}

// Ensure that each key does what the help says.
func TestKeys(t *testing.T) {
	caches := []live.Cache{made("one", 0.1, 30), made("two", math.NaN(), 20), made("three", 0.3, 10)}
	tried := map[string]bool{}
	m := model(caches...)
	did := func(key string, texts ...string) {
		t.Helper()
		press(t, m, key)
		tried[key] = true
		wants(t, m, texts...)
	}
	sorted := func(key string, want ...string) {
		t.Helper()
		press(t, m, key)
		tried[key] = true
		if names, _ := order(m); !slices.Equal(names, want) {
			t.Errorf("%s: %v, want %v", key, names, want)
		}
	}
	m.Resize(80, 10) // three lines of the list
	for _, key := range []string{"down", "j", "up", "k", "pgdown", "pgup", "space", "home", "end", "g", "G"} {
		_, before := order(m)
		press(t, m, key)
		tried[key] = true
		if _, after := order(m); after == before {
			t.Errorf("%s does not move the cursor from %s", key, before)
		}
	}
	m.Resize(80, 24)
	press(t, m, "home")
	sorted("s", "one", "two", "three") // by live clients: all alike
	sorted("s", "three", "one", "two") // by hit rate: unknown is last
	sorted("r", "one", "three", "two") // and stays last
	sorted("S", "one", "two", "three") // by live clients again
	sorted("S", "one", "three", "two") // by name
	sorted("r", "two", "three", "one") // reversed
	sorted("r", "one", "three", "two")
	did("enter", "/dev/shm/stocached-0/one", "hit rate       0.1000        0.2500", "LAST EPOCH     PREDICTED",
		"0.4900        0.5000", "evicted             7             -", "123 python train of one")
	for _, key := range []string{"esc", "backspace", "left"} {
		did(key, "3 caches", "HIT RATE")
		press(t, m, "enter")
	}
	press(t, m, "esc")
	for _, key := range []string{"?", "h"} {
		did(key, "Keys", "choose the cache above")
		press(t, m, key)
		wants(t, m, "HIT RATE")
	}
	did("/", "show names with: _")
	press(t, m, "T", "q", "backspace")
	if names, _ := order(m); !slices.Equal(names, []string{"three", "two"}) {
		t.Errorf("with the filter T: %v", names)
	}
	did("enter", `only "T"`)
	did("esc", "one")
	press(t, m, "/", "x")
	wants(t, m, `no name has the text "x"`)
	press(t, m, "esc")
	wants(t, m, "one", "two", "three")

	did("p", "paused")
	if _, cmd := m.Update(due(m.frames)); cmd != nil {
		t.Error("it looks while it is paused")
	}
	if cmd := press(t, m, "p"); cmd == nil || strings.Contains(screen(m), "paused") {
		t.Error("it does not go on")
	}
	for _, key := range []string{"q", "ctrl+c"} {
		cmd := press(t, m, key)
		tried[key] = true
		if cmd == nil || cmd() != (tea.QuitMsg{}) {
			t.Errorf("%s does not end it", key)
		}
	}
	press(t, m, "/")
	if cmd := press(t, m, "q"); cmd != nil {
		t.Error("q ends it in the filter")
	}
	if cmd := press(t, m, "ctrl+c"); cmd == nil {
		t.Error("Ctrl-C does not end it in the filter")
	}
	for _, k := range keys {
		for _, name := range k.names {
			if !tried[name] {
				t.Errorf("%s was not tried", name)
			}
		}
		expect.Says(t, Help(), k.shown)
	}
}

// Ensure that it looks once an interval, however often one pauses, and that an opened cache is asked for.
func TestLooks(t *testing.T) {
	var asked []map[string]bool
	caches := []live.Cache{made("one", 0.5, 1)}
	m := New(Options{Interval: time.Nanosecond, Look: func(opened map[string]bool) live.Frame {
		asked = append(asked, opened)
		return at(len(asked), caches...)
	}})
	wants(t, m, "reading the caches")
	tick := func(cmd tea.Cmd) tea.Cmd { // a look, its frame and the wait after it
		t.Helper()
		msg := cmd()
		if _, ok := msg.(looked); !ok {
			t.Fatalf("%T", msg)
		}
		_, wait := m.Update(msg)
		return wait
	}
	wait := tick(m.Init())
	press(t, m, "enter")
	_, look := m.Update(wait())
	if second := press(t, m, "p", "p"); second != nil {
		t.Error("two looks at a time")
	}
	old := tick(look)
	again := press(t, m, "p", "p") // goes on before the wait is over
	tick(again)
	if _, cmd := m.Update(old()); cmd != nil {
		t.Error("two rows of looks")
	}
	if len(asked) != 3 || asked[0]["uuid of one"] || !asked[1]["uuid of one"] {
		t.Errorf("%v", asked)
	}
}

// Ensure that curves show what a series did: the last values on the right, unknown ones as gaps.
func TestCurves(t *testing.T) {
	for _, c := range []struct {
		ascii bool
		want  string
	}{{false, "▁▂▄▅▇█ █"}, {true, "_.-~*# #"}} {
		m := New(Options{Plain: true, ASCII: c.ascii})
		for k, v := range []float64{0, 0.2, 0.4, 0.6, 0.8, 1, math.NaN(), 1} {
			m.Take(at(k, made("one", v, 8)))
		}
		expect.Equal(t, m.curve("uuid of one", 0, 8), c.want, "")
		expect.Equal(t, m.curve("uuid of one", 0, 3), string([]rune(c.want)[5:]), "the end")
		expect.Equal(t, m.curve("uuid of one", 0, 10), "  "+c.want, "samples with room")
		if got := m.curve("uuid of one", live.Number("evicted_per_second"), 2); got != string([]rune(c.want)[:1])+string([]rune(c.want)[:1]) {
			t.Errorf("nothing happened: %q", got)
		}
		ascii := strings.Trim(m.Text(), "\n -~") // what is left has other characters
		if c.ascii != (ascii == strings.ToValidUTF8(ascii, "") && !regexp.MustCompile(`[^\n -~]`).MatchString(ascii)) {
			t.Errorf("ASCII %v:\n%s", c.ascii, m.Text())
		}
		if strings.Contains(m.Text(), "\x1b") {
			t.Errorf("a plain screen has an escape sequence: %q", m.Text())
		}
	}
}

// Ensure that an opened cache says in whole why there is no prediction, in any width.
func TestNoPrediction(t *testing.T) {
	c := made("one", 0.5, 1)
	c.Fields.Add("no_prediction", "cache one has measured no load yet. Run an epoch whose loads are timed")
	m := model(c)
	m.Resize(40, 24)
	press(t, m, "enter")
	if text := strings.Join(strings.Fields(screen(m)), " "); !strings.Contains(text, "nothing to predict yet: "+c.Text("no_prediction")) {
		t.Error(screen(m))
	}
}

// Ensure that a problem is told, one on a screen and all in a printed frame.
func TestProblems(t *testing.T) {
	f := at(1, made("one", 0.5, 1))
	f.Problems = []string{"broken: not a valid segment", "closed: not allowed"}
	m := model()
	m.Take(f)
	wants(t, m, "one", "! (and 1 more) broken: not a valid segment")
	m.Plain = true
	wants(t, m, "! broken: not a valid segment\n! closed: not allowed")
}
