package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/cli/web"
	"github.com/stocached/stocached/internal/palette"
	bytesize "github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/internal/verify/browser"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
)

// steps is a script beside the page's own. It does what the test asks for, one step after the other.
const steps = `"use strict";
const violations = [];
addEventListener("securitypolicyviolation", event => violations.push(event.violatedDirective + " " + event.blockedURI));
addEventListener("error", event => violations.push(String(event.message)));
const until = async holds => { while (!holds()) await new Promise(done => setTimeout(done, 20)); };
const fresh = async () => { const began = Date.now() / 1000; await until(() => latest && latest.seconds > began); };
const facts = () => Object.fromEntries([...byId("facts").querySelectorAll("[data-value]")].map(e => [e.dataset.field, { value: JSON.parse(e.dataset.value), text: e.textContent }]));
const loaded = () => new Promise(done => byId("drawn").addEventListener("load", done, { once: true }));
const all = {
  open: async () => {
    await until(() => byId("caches").rows.length === 1);
    byId("caches").rows[0].click();
    await fresh();
    await until(() => [1, 2].every(line => charts[1].data[line].some(v => v > 0))); // it has hits and misses
    const labels = [...document.querySelectorAll("#charts .u-label")].map(e => e.textContent).filter(text => text !== "time");
    return { rows: byId("caches").innerText, name: byId("name").textContent, charts: document.querySelectorAll("#charts canvas").length, hash: location.hash, labels: labels.join(), limits: [...new Set(charts[3].data[2])],
      time: document.querySelector("#charts .u-value").textContent, memory: [...document.querySelectorAll("#charts .u-value")].at(-1).textContent,
      top: charts[0].scales.y.max, mark: getComputedStyle(byId("caches").rows[0].cells[0], "::before").content };
  },
  hash: async () => { // one that people wrote by hand
    const before = location.hash;
    location.hash = "#50%";
    await fresh();
    const said = byId("summary").textContent + ", " + byId("caches").rows.length;
    location.hash = before;
    return said;
  },
  ticks: async () => {
    const all = { rate: [], bytes: [] };
    for (const [kind, k, tops] of [["rate", 1, [0.02, 0.9, 7, 1234567]], ["bytes", 3, [700, 41e6, 1.3e9, 3e12]]]) for (const top of tops) {
      const texts = [];
      charts[k].ctx.fillText = text => texts.push(text);
      charts[k].setData([[1, 2], [0, top], [0, top]]);
      await null; // uPlot draws before
      delete charts[k].ctx.fillText;
      all[kind].push(texts.filter(text => !text.includes(":"))); // those of times
    }
    return all;
  },
  read: async () => { await fresh(); return facts(); },
  epochs: async () => byId("compared").innerText,
  clients: async () => byId("clients").tBodies[0].innerText,
  themes: async () => {
    const grounds = [];
    for (let k = 0; k < 2; k++) { byId("theme").click(); grounds.push(getComputedStyle(document.body).backgroundColor); }
    return grounds;
  },
  drop: async () => {
    const data = new DataTransfer(), done = loaded();
    data.items.add(new File([await (await fetch("run.json")).text()], "run.json"));
    dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
    await done;
    const inside = byId("drawn").contentDocument; // null: it has an origin of its own
    if (inside) await until(() => inside.getElementById("range").textContent);
    return inside ? inside.title + ": " + inside.getElementById("range").textContent : null;
  },
  filter: async () => {
    byId("filter").value = "zz";
    byId("filter").dispatchEvent(new Event("input"));
    const none = byId("none").textContent;
    byId("filter").value = "";
    byId("filter").dispatchEvent(new Event("input"));
    return none;
  },
  gone: async () => { await until(() => byId("caches").rows.length === 0); return byId("none").textContent + (byId("opened").hidden ? ", closed" : ""); },
  violations: async () => violations,
};
(async () => {
  for (;;) {
    const step = await (await fetch("step")).text();
    let said;
    try { said = await all[step](); } catch (error) { said = "failed: " + error; }
    await fetch("said", { method: "POST", body: JSON.stringify(said) });
  }
})();
`

// shownPage is the page in a real browser, with a script that takes steps.
type shownPage struct {
	*browser.Window
	steps chan string
	said  chan []byte
	bare  atomic.Bool // timelines are drawn without a sandbox, so that the script can look into them
}

func showPage(t *testing.T, page *web.Page) (p *shownPage, outside func() []string) {
	t.Helper()
	p = &shownPage{steps: make(chan string), said: make(chan []byte)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /step", func(w http.ResponseWriter, r *http.Request) {
		select {
		case step := <-p.steps:
			io.WriteString(w, step)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("POST /said", func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		p.said <- b
	})
	mux.HandleFunc("GET /steps.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		io.WriteString(w, steps)
	})
	mux.HandleFunc("GET /run.json", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, "../timeline/testdata/run.json")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		recorded := httptest.NewRecorder()
		page.ServeHTTP(recorded, r)
		body := strings.Replace(recorded.Body.String(), "</head>", `<script src="steps.js" defer></script></head>`,
			map[bool]int{true: 1}[r.URL.Path == "/"])
		for name, values := range recorded.Header() {
			w.Header()[name] = values
		}
		if p.bare.Load() {
			w.Header().Set("Content-Security-Policy", strings.Replace(w.Header().Get("Content-Security-Policy"),
				"sandbox allow-scripts; ", "", 1))
		}
		w.WriteHeader(recorded.Code)
		io.WriteString(w, body)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	var mu sync.Mutex
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+r.Host+r.URL.Path)
	}))
	t.Cleanup(proxy.Close)
	p.Window = browser.Open(t, server.URL+"/", "--proxy-server="+proxy.URL) // a proxy for all but the loopback
	return p, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return asked
	}
}

// do takes a step, and decodes what it says into v.
func (p *shownPage) do(t *testing.T, step string, v any) {
	t.Helper()
	limit := time.After(time.Minute)
	select {
	case p.steps <- step:
	case <-limit:
		t.Fatalf("the page does not ask for the step %s:\n%s", step, p.Stderr())
	}
	select {
	case b := <-p.said:
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatalf("%s: %v: %s", step, err, b)
		}
	case <-limit:
		t.Fatalf("the page does not end the step %s:\n%s", step, p.Stderr())
	}
}

// fact is a field on the page.
type fact struct {
	Value any
	Text  string
}

// Ensure that in a real browser the page shows the numbers of stats while a job runs and when it rests, draws a
// dropped timeline in an origin of its own, has both themes, makes no request to another machine, and reports no error.
func TestPageInBrowser(t *testing.T) {
	browser.Path(t)
	dir := tmpfs.Folder(t)
	seg, err := shm.Create(shm.Options{Name: "job", Dir: dir, Samples: 100, Slots: 50, SampleBytes: 100, Policy: shm.PolicyCost})
	fatal.If(t, err)
	path := seg.Path()
	seg.Close()
	c := newClient(t, path)
	p, outside := showPage(t, newPage(50*time.Millisecond, &asker{sockets: socketsFlag{dir: dir}}, dir))
	stop := runJob(t, c)

	var opened struct {
		Rows, Name, Hash, Labels, Time, Memory, Mark string
		Charts                                       int
		Limits                                       []float64
		Top                                          float64
	}
	p.do(t, "open", &opened)
	stats := func() jsonObject { return decode[jsonObject](t, ok(t, "stats", path, "--json")) }
	if opened.Name != "job" || opened.Charts != 4 || !strings.Contains(opened.Rows, "job") || opened.Hash != "#job" ||
		opened.Labels != "hit rate,cached,hits,misses,sets,evicted,memory,limit" ||
		len(opened.Limits) != 1 || opened.Limits[0] != stats()["segment_bytes"] {
		t.Errorf("%+v", opened)
	}
	// The legend has values without a pointer, a line at 1 stays whole, and a row shows that it opens.
	if !regexp.MustCompile(`^\d\d:\d\d:\d\d$`).MatchString(opened.Time) || !strings.HasSuffix(opened.Memory, "iB") ||
		opened.Top <= 1 || !strings.Contains(opened.Mark, "▾") {
		t.Errorf("%+v", opened)
	}
	for range 3 { // while it runs
		var shown map[string]fact
		before := stats()
		p.do(t, "read", &shown)
		after := stats()
		for _, field := range []string{"hits", "misses", "stored", "evicted", "stored_bytes"} {
			low, high := before[field].(float64), after[field].(float64)
			if got, isNumber := shown[field].Value.(float64); !isNumber || got < low || got > high {
				t.Errorf("%s is %v on the page, and %v before and %v after it in stats", field, shown[field].Value, low, high)
			}
		}
	}
	stop()
	var shown map[string]fact
	p.do(t, "read", &shown)
	row, list := stats(), ok(t, "stats", path, "--all")
	for field, f := range shown {
		if fmt.Sprint(f.Value) != fmt.Sprint(row[field]) {
			t.Errorf("%s is %v on the page, and %v in stats --json", field, f.Value, row[field])
		}
		if !regexp.MustCompile(`(?m)  ` + regexp.QuoteMeta(f.Text) + `$`).MatchString(list) {
			t.Errorf("%s is shown as %q, and not in\n%s", field, f.Text, list)
		}
	}
	if len(shown) < 25 {
		t.Errorf("only %d fields", len(shown))
	}
	var epochs, clients string
	p.do(t, "epochs", &epochs)
	if !regexp.MustCompile(`^\s*LAST EPOCH\s+PREDICTED\s+hit rate\s+(-|[01]\.\d+)\s+[01]\.\d+\s+loads\s`).MatchString(epochs) {
		t.Errorf("the page compares epochs with %q", epochs)
	}
	p.do(t, "clients", &clients)
	contains(t, clients, fmt.Sprint(os.Getpid()), "go", "test client")

	var grounds []string
	p.do(t, "themes", &grounds)
	for k, ground := range grounds {
		rgb := func(c palette.Theme) string {
			return fmt.Sprintf("rgb(%d, %d, %d)", c.Paper.R, c.Paper.G, c.Paper.B)
		}
		if other := grounds[1-k]; ground == other || ground != rgb(palette.Light) && ground != rgb(palette.Dark) {
			t.Errorf("grounds %v", grounds)
		}
	}
	checkTicks(t, p)
	var said string
	if p.do(t, "hash", &said); !strings.HasPrefix(said, "1 cache, 1 client") || !strings.HasSuffix(said, ", 1") {
		t.Errorf("with an address that is not encoded, the page says %q", said)
	}
	var drawn any
	if p.do(t, "drop", &drawn); drawn != nil {
		t.Errorf("the page can read the timeline: %v", drawn)
	}
	p.bare.Store(true)
	if p.do(t, "drop", &drawn); drawn != "The training loop waited 14 % of its time: 585 spans in 1.065 s" {
		t.Errorf("the timeline says %v", drawn)
	}
	var text string
	if p.do(t, "filter", &text); text != "no name has this text" {
		t.Error(text)
	}
	fatal.If(t, c.Close())
	fatal.If(t, shm.Unlink(path))
	if p.do(t, "gone", &text); text != "no caches in "+dir+" yet; stocached create makes one, closed" {
		t.Error(text)
	}
	var violations []string
	if p.do(t, "violations", &violations); len(violations) > 0 {
		t.Error(violations)
	}
	for _, line := range browser.Complaints(p.Stderr()) {
		t.Error(line)
	}
	if all := outside(); len(all) > 0 {
		t.Errorf("requests to other machines: %q", all)
	}
}

// checkTicks checks that the numbers at an axis are as far apart as the lines that they are at, and those of bytes by a
// power of two.
func checkTicks(t *testing.T, p *shownPage) {
	t.Helper()
	var ticks struct{ Rate, Bytes [][]string }
	p.do(t, "ticks", &ticks)
	for _, all := range slices.Concat(ticks.Rate, ticks.Bytes) {
		var values []float64
		for _, text := range all {
			value, err := strconv.ParseFloat(text, 64)
			if strings.Contains(text, "B") {
				var n uint64
				n, err = bytesize.Parse(text)
				value = float64(n)
			}
			expect.NoError(t, err)
			values = append(values, value)
		}
		if len(values) < 3 {
			t.Errorf("%q are too few", all)
			continue
		}
		step := values[1] - values[0]
		if power, _ := math.Frexp(step); strings.Contains(all[0], "B") && power != 0.5 && power != -0.5 {
			t.Errorf("%q: steps are no power of two", all)
		}
		for k, v := range values {
			if math.Abs(v-values[0]-float64(k)*step) > math.Abs(step)/1e6 {
				t.Errorf("%q are not equally far apart", all)
				break
			}
		}
	}
}

// runJob reads and stores samples until stop is called.
func runJob(t *testing.T, c *cache.Cache) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		buffer := make([]byte, 100)
		for i := 0; ctx.Err() == nil; i = (i + 7) % 100 {
			if _, hit, err := c.Get(i, buffer); err != nil {
				done <- err
				return
			} else if !hit {
				if _, err := c.SetLoaded(i, [][]byte{content(i, 100)}, 0, time.Duration(i+1)*time.Millisecond); err != nil {
					done <- err
					return
				}
			}
			time.Sleep(time.Millisecond)
		}
		done <- nil
	}()
	return func() {
		cancel()
		expect.NoError(t, <-done)
	}
}

// startWeb starts stocached web, and returns the address that it prints.
func startWeb(t *testing.T, flags ...string) (url string, stderr *bytes.Buffer, end func()) {
	t.Helper()
	cmd := program(append([]string{"web"}, flags...)...)
	out := fatal.Value(cmd.StdoutPipe())(t)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	fatal.If(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	line := fatal.Value(bufio.NewReader(out).ReadString('\n'))(t)
	return strings.TrimSpace(line), stderr, func() {
		t.Helper()
		cmd.Process.Signal(os.Interrupt)
		expect.NoError(t, cmd.Wait())
	}
}

// Ensure that web says where it listens, has the fields of stats --json, warns when other machines can reach it,
// and ends at an interrupt.
func TestWeb(t *testing.T) {
	dir, path := newCache(t, small())
	c := newClient(t, path)
	store(t, c, 0, 1, 2)
	url, stderr, end := startWeb(t, "--dir", dir, "--listen", "127.0.0.1:0", "--interval", "1ms")
	if !regexp.MustCompile(`^http://127\.0\.0\.1:\d+/$`).MatchString(url) {
		t.Fatal(url)
	}
	get := func(url string) (int, string) {
		t.Helper()
		answer := fatal.Value(http.Get(url))(t)
		defer answer.Body.Close()
		b := fatal.Value(io.ReadAll(answer.Body))(t)
		return answer.StatusCode, string(b)
	}
	var live struct{ Caches []jsonObject }
	code, body := get(url + "v1/live")
	if err := json.Unmarshal([]byte(body), &live); err != nil || code != 200 || len(live.Caches) != 1 {
		t.Fatal(code, err, body)
	}
	wantFields(t, live.Caches[0], decode[jsonObject](t, ok(t, "stats", path, "--json")))
	code, body = get(url)
	expect.Equal(t, code, 200, "")
	contains(t, body, "<h1>stocached</h1>")
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/")
	fails(t, exitExists, []string{"--listen: listen tcp4 " + address, "address already in use: another program listens there; take another port"},
		"web", "--listen", address)
	end()
	if stderr.Len() > 0 {
		t.Error(stderr.String())
	}

	url, stderr, end = startWeb(t, "--dir", dir, "--listen", "0.0.0.0:0")
	port := regexp.MustCompile(`^http://127\.0\.0\.1:(\d+)/$`).FindStringSubmatch(url)
	if port == nil {
		t.Fatal(url)
	}
	request := fatal.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, url+"v1/live", nil))(t)
	request.Host = "machine.example"
	answer, err := http.DefaultClient.Do(request)
	if err != nil || answer.StatusCode != 200 {
		t.Error(answer, err)
	} else {
		answer.Body.Close()
	}
	end()
	contains(t, stderr.String(), "warning: everyone who reaches 0.0.0.0:"+port[1]+" ", "without a password", "ssh -L")
	if l, err := listenPage(t.Context(), "--listen", "[::]:0", nil); err != nil {
		t.Logf("there is no IPv6 here: %v", err)
	} else {
		if got := l.url(); !regexp.MustCompile(`^http://\[::1\]:\d+/$`).MatchString(got) {
			t.Error(got)
		}
		l.Close()
	}

	fails(t, exitUsage, []string{"interval -1s is not above 0"}, "web", "--interval", "-1s")
	fails(t, exitUsage, []string{"1 argument"}, "web", "test")
	fails(t, exitUsage, []string{`--listen: "nonsense" is not host:port, such as 127.0.0.1:9201`}, "web", "--listen", "nonsense")
	fails(t, exitUsage, []string{`--listen: port "65536" is not in`}, "web", "--listen", ":65536")
	fails(t, exitNotFound, []string{"--dir: ", "nothing-here"}, "web", "--dir", dir+"/nothing-here")
}

// Ensure that a server shows the page on web.listen and on its admin socket, with its own counters, for caches of
// every folder, and warns when other machines can reach it.
func TestWebOfServer(t *testing.T) {
	s := configureServed(t, fmt.Sprintf("size: 8MB, source: {kind: raw, path: records, sample_bytes: %d}", servedBytes))
	s.write(10)
	for k, listen := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		warned := k == 1 // and the cache is warm
		if err := os.Truncate(s.log, 0); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		s.launch("STOCACHED_WEB_LISTEN=" + listen)
		var url string
		fatal.Until(t, "the log has the address of the page", func() bool {
			if m := regexp.MustCompile(`msg="the page" address=http://127\.0\.0\.1:(\d+)/`).FindStringSubmatch(s.said()); m != nil {
				url = "http://127.0.0.1:" + m[1] + "/v1/live"
			}
			return url != ""
		})
		expect.Equal(t, strings.Contains(s.said(), "everyone who reaches"), warned, "%s: warned, in\n%s", listen, s.said())
		socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.sockets, control.AdminSocket))
		}}
		for _, one := range []struct {
			client *http.Client
			url    string
			code   int
		}{{http.DefaultClient, url, 200}, {&http.Client{Transport: socket}, "http://localhost/v1/live", 200},
			{&http.Client{Transport: socket}, "http://localhost/", 200},
			{&http.Client{Transport: socket}, "http://evil.example/v1/live", http.StatusMisdirectedRequest}} {
			var pets jsonObject
			fatal.Until(t, "the page has the counters of the server", func() bool { // a busy one may not answer in time
				answer := fatal.Value(one.client.Get(one.url))(t)
				body, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if err != nil || answer.StatusCode != one.code {
					t.Fatalf("%s: %d, %v", one.url, answer.StatusCode, err)
				}
				if one.code != 200 || !strings.HasSuffix(one.url, "live") {
					return true
				}
				all := decode[struct{ Caches []jsonObject }](t, string(body)).Caches
				at := slices.IndexFunc(all, func(c jsonObject) bool { return c["name"] == "pets" })
				if at < 0 {
					t.Fatalf("no pets: %s", body)
				}
				pets = all[at]
				return pets["server"] == "answers"
			})
			if pets != nil {
				wantFields(t, pets, jsonObject{"samples": 10, "source_reads": 0, "queue_depth": 0, "adopted": warned})
			}
		}
		s.process.Process.Signal(os.Interrupt)
		expect.NoError(t, s.process.Wait())
	}
}
