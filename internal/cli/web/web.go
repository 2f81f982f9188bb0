// Package web is the page of stocached web and of a server: all caches of a user in a browser. It changes
// nothing. What it shows comes from one endpoint, v1/live, which has the fields of stats --json.
package web

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/internal/cli/live"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/internal/palette"
	"github.com/stocached/stocached/internal/timeline"
)

// files of the page. uPlot (MIT) is of https://github.com/leeoniya/uPlot, from npm, unchanged.
//
//go:embed page
var files embed.FS

// Field explains a field of a cache.
type Field struct {
	Field string `json:"field"`
	Title string `json:"title"`
	Help  string `json:"help"`
}

// Options of a Page.
type Options struct {
	Look     live.Look
	Interval time.Duration // between two reads, at least
	Fields   []Field       // fields of caches, in the order in which the page shows them
	// MaxTimeline is the largest file that the page draws, unpacked, in bytes. One file at a time takes about
	// five times as much memory, and all those that are being received as much as two.
	MaxTimeline int64
}

// Page answers requests for the page. It reads the caches while a browser asks, and at no other time.
type Page struct {
	Options
	mux http.Handler

	mu      sync.Mutex
	frame   live.Frame
	history live.History

	received atomic.Int64 // bytes of timelines that are being received
	drawing  sync.Mutex   // allows one timeline at a time
}

// New makes a page.
func New(o Options) *Page {
	p := &Page{Options: o}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { p.file(w, r, "index.html") })
	mux.HandleFunc("GET /page/{file}", func(w http.ResponseWriter, r *http.Request) { p.file(w, r, r.PathValue("file")) })
	mux.HandleFunc("GET /v1/live", p.live)
	mux.HandleFunc("POST /v1/timeline", p.timeline)
	p.mux = http.NewCrossOriginProtection().Handler(mux)
	return p
}

// policy lets the page have its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; " +
	"frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// drawnPolicy lets a timeline run its own script, in an origin of its own.
var drawnPolicy = func() string {
	sum := sha256.Sum256([]byte(timeline.PageScript))
	return "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; frame-ancestors 'self'"
}()

// ServeHTTP answers requests for this machine by its loopback, and no others. So no other site's page can read
// this one through a name of its own (DNS rebinding).
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.answer(w, r, local(r.Host)) }

// AnyHost answers requests for any host.
func (p *Page) AnyHost() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.answer(w, r, true) })
}

func (p *Page) answer(w http.ResponseWriter, r *http.Request, allowed bool) {
	h := w.Header()
	for name, value := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
		"Cross-Origin-Opener-Policy": "same-origin"} {
		h.Set(name, value)
	}
	if !allowed {
		http.Error(w, fmt.Sprintf("this page is for this machine only; ask for localhost or 127.0.0.1, not for %q", r.Host),
			http.StatusMisdirectedRequest)
		return
	}
	p.mux.ServeHTTP(w, r)
}

// local says whether a Host header names the loopback.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.IsLoopback()
}

var types = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8"}

func (p *Page) file(w http.ResponseWriter, r *http.Request, name string) {
	text, err := []byte(palette.CSS()), error(nil)
	if name != "palette.css" {
		text, err = files.ReadFile("page/" + name)
	}
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", cmp.Or(types[path.Ext(name)], "text/plain; charset=utf-8"))
	_, _ = w.Write(text) // the browser may be gone
}

// live answers with all caches now, and their past after a moment (?after=SECONDS). ?open=UUID compares the epochs
// of a cache.
func (p *Page) live(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseFloat(r.URL.Query().Get("after"), 64)
	if text := r.URL.Query().Get("after"); text != "" && err != nil {
		http.Error(w, fmt.Sprintf("after=%s: seconds since 1970 are wanted", text), http.StatusBadRequest)
		return
	}
	opened := map[string]bool{}
	for _, uuid := range r.URL.Query()["open"] {
		opened[uuid] = true
	}
	w.Header().Set("Content-Type", "application/json")
	_ = table.WriteJSON(w, p.object(opened, after)) // the browser may be gone
}

func (p *Page) object(opened map[string]bool, after float64) table.Object {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.frame.At) > p.Interval/2 {
		p.frame = p.Look(opened)
		p.history.Add(&p.frame)
	}
	o := p.frame.Object(&p.history, time.UnixMicro(int64(after*1e6)))
	o.Add("interval_seconds", p.Interval.Seconds())
	fields, columns := p.Fields, []table.Object{}
	for k := range live.Columns {
		columns = append(columns, live.Columns[k].Object())
	}
	if after != 0 { // the page has them
		fields, columns = nil, columns[:0]
	}
	o.Add("columns", columns)
	o.Add("fields", append([]Field{}, fields...))
	return o
}
