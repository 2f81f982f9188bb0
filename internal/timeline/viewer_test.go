package timeline

import (
	"bytes"
	"context"
	"encoding/json"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
)

// importer is a page that lets Chrome's trace viewer, which comes with Go, import a file, and
// prints what the viewer read.
const importer = `<!doctype html><html><head><script src="webcomponents.min.js"></script><script>function onTraceViewerImportFail() {}</script>
<link rel="import" href="trace_viewer_full.html"></head><body><pre id="said">nothing</pre><script>
let begun = false;
async function run() {
  if (begun || !window.tr) return;
  begun = true;
  const model = new tr.Model(), said = { warnings: [], tracks: {} };
  try {
    new tr.importer.Import(model).importTraces([await (await fetch("trace.json")).text()]);
    said.warnings = model.importWarnings.map(warning => warning.message);
    for (const process of model.getAllProcesses())
      for (const tid in process.threads) {
        const thread = process.threads[tid];
        said.tracks[process.name + ", " + thread.name] = { spans: thread.sliceGroup.length, order: thread.sortIndex, args: thread.sliceGroup.slices[0].args };
      }
  } catch (error) { said.warnings.push(String(error)); }
  document.getElementById("said").textContent = "SAID " + JSON.stringify(said) + " END";
}
for (const event of ["HTMLImportsLoaded", "WebComponentsReady"]) window.addEventListener(event, run);
</script></body></html>`

// Ensure that Chrome's own trace viewer reads the output of recorders and Write: without a warning,
// every span, under the names of ranks and tracks and in their order.
func TestChromeReads(t *testing.T) {
	browser, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Skip("there is no chromium-headless-shell here, and what Chrome makes of the file was not looked at: tools/setup.sh browser installs one")
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Skipf("there is no go command here, with which Chrome's trace viewer comes: %v", err)
	}
	viewer := filepath.Join(strings.TrimSpace(string(root)), "src/internal/trace/traceviewer/static")
	if _, err := os.Stat(filepath.Join(viewer, "trace_viewer_full.html")); err != nil {
		t.Skipf("this Go comes without Chrome's trace viewer: %v", err)
	}
	one := fatal.Value(ReadFile("testdata/run.json"))(t)
	two := fatal.Value(ReadFile("testdata/run.json"))(t)
	two.Loaders[0].Rank = 1
	two.Loaders[0].Clock.MonotonicNS += 250 * ms
	both := fatal.Value(Merge(one, two))(t)
	var merged bytes.Buffer
	fatal.If(t, Write(&merged, both))
	recorded := fatal.Value(os.ReadFile("testdata/run.json"))(t)
	for name, file := range map[string][]byte{"recorded": recorded, "merged": merged.Bytes()} {
		t.Run(name, func(t *testing.T) {
			pages := http.NewServeMux()
			pages.Handle("/", http.FileServer(http.Dir(viewer)))
			pages.HandleFunc("/importer.html",
				func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(importer)) })
			pages.HandleFunc("/trace.json", func(w http.ResponseWriter, _ *http.Request) { w.Write(file) })
			server := httptest.NewServer(pages)
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			dom, err := exec.CommandContext(ctx, browser, "--no-sandbox", "--disable-gpu", "--user-data-dir="+
				t.TempDir(), "--virtual-time-budget=20000", "--dump-dom", server.URL+"/importer.html").Output()
			if err != nil {
				t.Fatalf("%s does not run here: %v", browser, err)
			}
			match := regexp.MustCompile(`SAID (\{.*\}) END`).FindSubmatch(dom)
			if match == nil {
				t.Fatalf("the viewer said nothing:\n%.2000s", dom)
			}
			var said struct {
				Warnings []string
				Tracks   map[string]struct {
					Spans, Order int
					Args         map[string]int
				}
			}
			fatal.If(t, json.Unmarshal([]byte(html.UnescapeString(string(match[1]))), &said))
			if len(said.Warnings) > 0 {
				t.Errorf("warnings: %q", said.Warnings)
			}
			ranks := []string{"rank 0"}
			if name == "merged" {
				ranks = append(ranks, "rank 1")
			}
			for _, rank := range ranks {
				for _, track := range one.Loaders[0].Tracks {
					got := said.Tracks[rank+", "+track.Name]
					if got.Spans != len(track.Spans) || got.Order != track.Number {
						t.Errorf("%s, %s: %+v, want %d spans", rank, track.Name, got, len(track.Spans))
					}
					if len(track.Spans) > 0 && got.Args["batch"] != int(track.Spans[0].Batch) {
						t.Errorf("%s, %s: args %v", rank, track.Name, got.Args)
					}
				}
			}
			if len(said.Tracks) != len(ranks)*len(one.Loaders[0].Tracks) {
				t.Errorf("tracks: %v", said.Tracks)
			}
		})
	}
}
