package timeline

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/browser"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// pageOf returns the page of a trace, and the data in it.
func pageOf(t *testing.T, tr *Trace, from, to int64) (string, pageData) {
	t.Helper()
	var file bytes.Buffer
	fatal.If(t, HTML(&file, tr, from, to))
	text := file.String()
	match := regexp.MustCompile(`(?s)<script id="data" type="application/json">(.*?)</script>`).FindStringSubmatch(text)
	if match == nil {
		t.Fatalf("no data in\n%.500s", text)
	}
	var data pageData
	fatal.If(t, json.Unmarshal([]byte(match[1]), &data))
	return text, data
}

// Ensure that a page is self-contained, and that no name in a trace becomes part of its code.
func TestPageIsWhole(t *testing.T) {
	m := newMade(map[string]any{"dataset": "</script><script>alert(1)</script>"})
	m.loop(Step, 0, 0, 0, ms, 0, 0)
	m.add(firstOther, "</script><b>", Span{Kind: Other, End: ms})
	tr := m.trace()
	tr.names = []string{"<!--</script>"}
	text, data := pageOf(t, tr, 0, ms)
	for _, outside := range []string{"http:", "https:", "src=", "@import", "url(", "<link", "import(", "fetch("} {
		if strings.Contains(text, outside) {
			t.Errorf("the page has %q", outside)
		}
	}
	expect.Equal(t, strings.Count(text, "</script>"), 2, "ends of scripts")
	if data.Names[0] != "<!--</script>" || data.Loaders[0].Tracks[1].Name != "</script><b>" {
		t.Errorf("%+v", data)
	}
}

// Ensure that the page has every span of the drawn part, with its numbers, and the texts of the
// command.
func TestPageData(t *testing.T) {
	tr := fatal.Value(ReadFile("testdata/run.json"))(t)
	from, to := tr.Bounds()
	_, data := pageOf(t, tr, from, to)
	decode := func(column string) []byte {
		b := fatal.Value(base64.StdEncoding.DecodeString(column))(t)
		return b
	}
	spans := 0
	for k, track := range data.Loaders[0].Tracks {
		want := tr.Loaders[0].Tracks[k]
		spans += len(want.Spans)
		start, index, batch, kind := decode(track.Start), decode(track.Index), decode(track.Batch), decode(track.Kind)
		for n, s := range want.Spans {
			if got := math.Float64frombits(binary.LittleEndian.Uint64(start[8*n:])); got != float64(s.Start)/1000 {
				t.Fatalf("%s: span %d starts at %v, want %v", track.Name, n, got, float64(s.Start)/1000)
			}
			if Kind(kind[n]) != s.Kind || int32(binary.LittleEndian.Uint32(batch[4*n:])) != s.Batch {
				t.Fatalf("%s: span %d is %v", track.Name, n, Kind(kind[n]))
			}
			if strings.HasPrefix(track.Name, "worker") &&
				math.Float64frombits(binary.LittleEndian.Uint64(index[8*n:])) != float64(s.Index) {
				t.Fatalf("%s: span %d is of another sample", track.Name, n)
			}
		}
	}
	expect.Equal(t, spans, 585, "spans")
}

// Ensure that all texts of a page are about the part that it shows: all of it at first, and each
// epoch when it is chosen. An epoch drawn alone has the same texts.
func TestPageViews(t *testing.T) {
	tr := fatal.Value(ReadFile("testdata/run.json"))(t)
	from, to := tr.Bounds()
	_, data := pageOf(t, tr, from, to)
	epochs := tr.Epochs()
	fatal.Equal(t, len(data.Views), 4, "views")
	seconds := func(v pageView) (sum float64) {
		for _, part := range v.Parts {
			sum += part.Seconds
		}
		return sum
	}
	all := data.Views[0]
	near(t, "all epochs", seconds(all), epochs[0].Seconds()+epochs[1].Seconds()+epochs[2].Seconds())
	if all.Name != "all epochs" || all.Where != "all epochs" || all.From != float64(from)/1000 ||
		all.To != float64(to)/1000 || len(all.Shares) != 5 {
		t.Errorf("%+v", all)
	}
	for n, e := range epochs {
		v := data.Views[n+1]
		near(t, v.Name, seconds(v), e.Seconds())
		name := "epoch " + strconv.Itoa(n)
		if v.Name != name || v.Where != name || v.Title != "The training loop waited "+
			percent(e.Waiting())+" of its time" {
			t.Errorf("%+v", v)
		}
		a, b, _ := tr.Epoch(n)
		_, alone := pageOf(t, tr, a, b)
		if !reflect.DeepEqual(alone.Views, []pageView{v}) || alone.From != v.From ||
			len(alone.Loaders[0].Tracks[2].Start) >= len(data.Loaders[0].Tracks[2].Start) {
			t.Errorf("%s alone: %+v, not %+v", name, alone.Views, v)
		}
	}
	a, b, _ := tr.Epoch(1)
	middle := (a + b) / 2
	_, part := pageOf(t, tr, a, middle)
	if len(part.Views) != 1 || part.Views[0].Name != "this part" {
		t.Errorf("half of an epoch: %+v", part.Views)
	}
	// between its spans the loop records nothing
	if got, want := seconds(part.Views[0]), float64(middle-a)/1e9; got > want || got < 0.99*want {
		t.Errorf("half of an epoch: %v s of %v", got, want)
	}
}

// Ensure that too many spans for a browser are refused with the next step.
func TestPageTooLarge(t *testing.T) {
	m := newMade(nil)
	m.add(firstWorker, "worker 0", Span{Kind: Load})
	m.Tracks[0].Spans = make([]Span, MaxPageSpans+1)
	if err := HTML(&bytes.Buffer{}, m.trace(), 0, ms); err == nil ||
		!strings.Contains(err.Error(), "2,000,001 spans") || !strings.Contains(err.Error(), "--epoch") {
		t.Errorf("%v", err)
	}
}

// Ensure that the page works in a real browser, if one is installed: its script ends without errors
// and draws all spans.
func TestPageInBrowser(t *testing.T) {
	path := browser.Path(t)
	tr := fatal.Value(ReadFile("testdata/run.json"))(t)
	from, to := tr.Bounds()
	text, _ := pageOf(t, tr, from, to)
	dom := opened(t, path, text)
	for _, want := range []string{"585 spans in 1.0", "Where the time went, all epochs"} {
		expect.Says(t, dom, want)
	}

	// An epoch is chosen, and a sample searched: only its span is highlighted.
	dom = opened(t, path, text+`<script>
		const lit = canvas => { const g = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data; let n = 0; for (let k = 0; k < g.length; k += 4) n += g[k] === 230 && g[k + 1] === 0 && g[k + 2] === 126; return n; };
		draw();
		const before = lit(canvas) + lit(map);
		byId("view-of").selectedIndex = 1;
		byId("view-of").dispatchEvent(new Event("change"));
		byId("find").value = "77";
		byId("find").dispatchEvent(new Event("input"));
		draw();
		const counted = byId("found").textContent, dense = lit(canvas), overview = lit(map);
		byId("find").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
		draw();
		const near = lit(canvas), said = byId("found").textContent;
		byId("find").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
		draw();
		element("pre", ["TRIED", before, counted, dense > 0, overview > 0, near > dense, said, lit(canvas) + lit(map), byId("where").textContent, byId("title").textContent].join("; "), document.body);
	</script>`)
	e := tr.Epochs()[0]
	want := "TRIED; 0; 1 span; true; true; true; 1 of 1: load in epoch 0, batch 13, worker 2; 0; Where the time " +
		"went, epoch 0; The training loop waited " + percent(e.Waiting()) + " of its time"
	expect.Says(t, dom, want)
}

// opened returns a page after its script has run in a browser, which must report no error.
func opened(t *testing.T, program, text string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "page.html")
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(browser.Flags(dir+"/profile"), "--virtual-time-budget=3000",
		"--dump-dom", "file://"+path)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	dom, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s does not run here: %v\n%s", program, err, stderr.String())
	}
	for _, line := range browser.Complaints(stderr.String()) {
		if !strings.Contains(line, "willReadFrequently") { // an error of the test, not of the page
			t.Error(line)
		}
	}
	return string(dom)
}
