package web

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/cli/live"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

const maxTimeline = 1 << 20

func page(looks *int) *Page {
	return New(Options{Interval: time.Minute, MaxTimeline: maxTimeline, Fields: []Field{{"name", "name", "of the cache"}},
		Look: func(map[string]bool) live.Frame {
			*looks++
			return live.Frame{At: time.Now(), Directory: "/dev/shm/stocached-0"}
		}})
}

func ask(h http.Handler, method, target string, change func(r *http.Request)) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	r.Host = "127.0.0.1:9201"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// Ensure that only this machine is answered, by its loopback, unless any host is allowed, and that other sites
// can post nothing.
func TestHosts(t *testing.T) {
	p := page(new(int))
	for host, want := range map[string]int{"127.0.0.1": 200, "127.0.0.1:9201": 200, "localhost:1": 200, "LOCALHOST": 200,
		"[::1]:9201": 200, "127.8.9.1": 200, "evil.example": 421, "evil.example:9201": 421, "localhost.evil.example": 421,
		"192.0.2.1:9201": 421, "127.0.0.1.evil.example": 421, "": 421, "0.0.0.0:9201": 421} {
		for _, target := range []string{"/", "/v1/live", "/page/page.js"} {
			got := ask(p, "GET", target, func(r *http.Request) { r.Host = host })
			expect.Equal(t, got.StatusCode, want, "%s for host %q", target, host)
			if got := ask(p.AnyHost(), "GET", target, func(r *http.Request) { r.Host = host }); got.StatusCode != 200 {
				t.Errorf("%s for host %q, any allowed: %d", target, host, got.StatusCode)
			}
		}
	}
	foreign := func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }
	if got := ask(p, "POST", "/v1/timeline", foreign); got.StatusCode != http.StatusForbidden {
		t.Error("another site posts:", got.StatusCode)
	}
}

// Ensure that every answer forbids what the page does not need, that the page has nothing of another site, and
// that it changes nothing: other methods and paths are refused.
func TestPolicy(t *testing.T) {
	p := page(new(int))
	for _, target := range []string{"/", "/page/page.js", "/page/page.css", "/page/palette.css", "/page/uPlot.min.js",
		"/page/uPlot.min.css", "/page/uPlot.LICENSE", "/v1/live"} {
		got := ask(p, "GET", target, nil)
		body, err := io.ReadAll(got.Body)
		if err != nil || got.StatusCode != 200 || len(body) == 0 {
			t.Errorf("%s: %d, %v", target, got.StatusCode, err)
		}
		for header, want := range map[string]string{"Content-Security-Policy": "default-src 'none'; script-src 'self'",
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"} {
			if v := got.Header.Get(header); !strings.HasPrefix(v, want) {
				t.Errorf("%s: %s: %q", target, header, v)
			}
		}
		if strings.Contains(got.Header.Get("Content-Security-Policy"), "unsafe") {
			t.Errorf("%s: %s", target, got.Header.Get("Content-Security-Policy"))
		}
		if outside := regexp.MustCompile(`https?://[a-z0-9.-]*`).FindAll(body, -1); !strings.Contains(target, "uPlot") {
			for _, url := range outside {
				if string(url) != "http://www.w3.org" { // the name of SVG, which is not asked for
					t.Errorf("%s names %s", target, url)
				}
			}
		}
	}
	for _, one := range [][2]string{{"POST", "/v1/live"}, {"DELETE", "/"}, {"PUT", "/page/page.js"}, {"GET", "/v1/timeline"}} {
		if got := ask(p, one[0], one[1], nil); got.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%v: %d", one, got.StatusCode)
		}
	}
	for _, target := range []string{"/nothing", "/page/nothing", "/page/../web.go", "/page/..%2fweb.go"} {
		if got := ask(p, "GET", target, nil); got.StatusCode == 200 {
			t.Errorf("%s: %d", target, got.StatusCode)
		}
	}
	expect.Equal(t, ask(p, "GET", "/v1/live?after=yesterday", nil).StatusCode, http.StatusBadRequest, "")
}

// Ensure that the caches are read at most twice an interval, however many browsers ask, and that fields and
// columns are explained at the first answer only.
func TestReads(t *testing.T) {
	looks := 0
	p := page(&looks)
	for n := range 5 {
		var got struct {
			Seconds  float64
			Interval float64 `json:"interval_seconds"`
			Fields   []Field
			Columns  []any
			Caches   []any
		}
		target := "/v1/live"
		if n > 0 {
			target += "?after=1.5"
		}
		fatal.If(t, json.NewDecoder(ask(p, "GET", target, nil).Body).Decode(&got))
		if got.Interval != 60 || got.Seconds == 0 || got.Caches == nil || (len(got.Fields) > 0) != (n == 0) ||
			(len(got.Columns) == len(live.Columns)) != (n == 0) {
			t.Errorf("%+v", got)
		}
	}
	expect.Equal(t, looks, 1, "looks")
}

// post posts a file as the page does.
func post(t *testing.T, name string, content []byte) *http.Response {
	return askToDraw(t, page(new(int)), name, content)
}

func askToDraw(t *testing.T, p *Page, name string, content []byte) *http.Response {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if name != "" {
		part := fatal.Value(form.CreateFormFile("file", name))(t)
		part.Write(content)
	}
	form.Close()
	return ask(p, "POST", "/v1/timeline", func(r *http.Request) {
		r.Header.Set("Content-Type", form.FormDataContentType())
		r.Body = io.NopCloser(&body)
		r.ContentLength = int64(body.Len())
	})
}

// Ensure that a timeline is drawn, compressed or not, in an origin of its own, and that everything else is
// refused with the reason.
func TestTimeline(t *testing.T) {
	run := fatal.Value(os.ReadFile("../../timeline/testdata/run.json"))(t)
	zipped := func(content []byte) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write(content)
		z.Close()
		return b.Bytes()
	}
	for name, content := range map[string][]byte{"run.json": run, "run.json.gz": zipped(run)} {
		got := post(t, name, content)
		body, err := io.ReadAll(got.Body)
		if err != nil || got.StatusCode != 200 || !strings.Contains(string(body), "The training loop waited 14 %") {
			t.Errorf("%s: %d, %v, %.200s", name, got.StatusCode, err, body)
		}
		if v := got.Header.Get("Content-Security-Policy"); !strings.HasPrefix(v, "sandbox allow-scripts; default-src 'none'") {
			t.Error(v)
		}
	}
	many := append([]byte(`{"displayTimeUnit": "`), bytes.Repeat([]byte("m"), maxTimeline)...)
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"other.txt":  {[]byte("hello"), "other.txt: not a timeline of stocached"},
		"empty.json": {nil, "empty.json: not a timeline of stocached: it is empty"},
		"half.json":  {run[:len(run)/2], "half.json: not a timeline"},
		"bad.gz":     {append([]byte{0x1f, 0x8b}, "nothing"...), "bad.gz: not a timeline of stocached: compressed by gzip, but broken"},
		"large.json": {many, "the file has more than 1.0 MiB: stocached trace FILE -o FILE.html"},
		"bomb.gz":    {zipped(many), "the file has more than 1.0 MiB"},
		"":           {nil, "the form has no file"},
	} {
		got := post(t, name, c.content)
		body, _ := io.ReadAll(got.Body)
		if got.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: %d, %.300s; want %q", name, got.StatusCode, body, c.want)
		}
	}
	if got := ask(page(new(int)), "POST", "/v1/timeline", nil); got.StatusCode != http.StatusBadRequest {
		t.Error("no form:", got.StatusCode)
	}
}

// Ensure that uPlot is what npm has as version 1.6.32, with its licence.
func TestUPlot(t *testing.T) {
	script, err := files.ReadFile("page/uPlot.min.js")
	if err != nil || !bytes.HasPrefix(script, []byte("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")) {
		t.Errorf("%v, %.60s", err, script)
	}
	if licence, err := files.ReadFile("page/uPlot.LICENSE"); err != nil || !bytes.Contains(licence, []byte("Leon Sorokin")) {
		t.Error(err)
	}
}
