package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Ensure that source info and the log of a server say once that a web server does not tell its changes, and what
// to do. They say nothing of one that does.
func TestWebServerThatHidesChanges(t *testing.T) {
	for modified, times := range map[time.Time]int{{}: 1, time.Unix(1e9, 0): 0} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, r.URL.Path, modified, bytes.NewReader(servedRecord(0)))
		}))
		defer web.Close()
		s := configureServed(t, fmt.Sprintf("source: {kind: raw, path: %s/records, sample_bytes: %d}", web.URL, servedBytes))
		s.start()
		wantFetch(t, s.dial(), []int{0})
		info := ok(t, "source", "info", web.URL+"/records", "--kind", "raw", "--source", fmt.Sprintf("sample_bytes=%d", servedBytes))
		for what, text := range map[string]string{"source info": info, "the log": s.said()} {
			if n := strings.Count(text, "sends neither ETag nor Last-Modified (objects: 1, such as "+web.URL+"/records)"); n != times ||
				strings.Count(text, "another name") != n {
				t.Errorf("%s says it %d times, want %d:\n%s", what, n, times, text)
			}
		}
	}
}
