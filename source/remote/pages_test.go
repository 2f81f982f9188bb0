package remote_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/s3/s3test"
)

const loginPage = "<!DOCTYPE html>\n<html><head><title>Please log in</title></head><body>Hello</body></html>"

// pageServer answers every request with a page of HTML, as login pages, portals and pages about errors come.
func pageServer(t *testing.T, how string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", map[string]string{"XHTML": "application/xhtml+xml"}[how])
		switch how {
		case "with ranges":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader(loginPage))
			return
		case "after a redirect":
			if r.URL.Path != "/login.html" {
				http.Redirect(w, r, "/login.html", http.StatusFound)
				return
			}
			w.Header().Set("Content-Type", "text/html")
		case "odd type":
			w.Header().Set("Content-Type", " Text/HTML;charset")
		case "no type":
			w.Header()["Content-Type"] = nil
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(loginPage)))
		_, _ = w.Write([]byte(loginPage)) // the client may be gone
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// Ensure that a page of HTML which comes in place of files is an error that names the address and the type of the
// answer, and never a sample: in each kind, from web servers and from what answers in place of storage.
func TestPagesInPlaceOfFiles(t *testing.T) {
	s3test.Environment(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	manifest := t.TempDir() + "/manifest"
	write(t, manifest, []byte("a b/1.jpg\n"))
	for _, how := range []string{"with ranges", "without ranges", "after a redirect", "XHTML", "odd type", "no type"} {
		url := pageServer(t, how)
		for name, settings := range map[string]source.Settings{
			"raw":                   {"kind": "raw", "path": url + "/records.bin", "sample_bytes": 1},
			"raw without extension": {"kind": "raw", "path": url + "/records", "sample_bytes": 1},
			"dir":                   {"kind": "dir", "path": url + "/d", "manifest": manifest},
			"tar":                   {"kind": "tar", "path": url + "/x.tar"},
			"npy":                   {"kind": "npy", "path": url + "/x.npy"},
			"block":                 {"kind": "block", "path": url + "/d"},
			"s3":                    {"kind": "raw", "path": "s3://photos/x.bin", "sample_bytes": 1, "remote": map[string]any{"endpoint": url}},
			"s3 without a signature": {"kind": "raw", "path": "s3://photos/x", "sample_bytes": 1,
				"remote": map[string]any{"endpoint": url, "credentials": "none"}},
		} {
			if strings.HasPrefix(name, "s3") && how == "after a redirect" {
				continue // S3 redirects to other regions only
			}
			src, err := kinds.Open(t.Context(), settings)
			if err == nil {
				_, err = src.Read(t.Context(), 0, make([]byte, 1000))
				src.Close()
			}
			path, _ := settings["path"].(string)
			if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "page of HTML (Content-Type: ") ||
				!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "look at the address in a browser") {
				t.Errorf("%s, %s: %v", how, name, err)
			}
		}
	}
}

// Ensure that files which are pages by their names, or have no extension, are samples.
func TestPagesThatAreFiles(t *testing.T) {
	url, manifest := pageServer(t, "with ranges"), t.TempDir()+"/manifest"
	write(t, manifest, []byte("1.html\n2.HTM\n3.xhtml\nwiki.d/Cache\n"))
	src := opened(t, source.Settings{"kind": "dir", "path": url, "manifest": manifest})
	for i := range src.Info().Samples {
		got := make([]byte, 1000)
		if n, err := src.Read(t.Context(), i, got); err != nil || string(got[:n]) != loginPage {
			t.Errorf("%s: %q, %v", src.Where(i), got[:n], err)
		}
	}
}

// Ensure that a document about an error which storage sends with the status 200 is this error, and never a sample. A
// file of XML is one.
func TestErrorsInPlaceOfFiles(t *testing.T) {
	s := newStorage(t)
	document := func(code string) string {
		return fmt.Sprintf("<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>No.</Message></Error>", code)
	}
	slow, denied := document("SlowDown"), document("AccessDenied")
	denied += strings.Repeat("\n", len(slow)+20-len(denied))
	manifest := t.TempDir() + "/manifest"
	write(t, manifest, []byte("x\nx.xml\n"))
	for answer, want := range map[string]error{slow: source.ErrUnavailable, denied: fs.ErrPermission} {
		s.Put(t, "d/x", []byte(answer)) // the same size
		s.Put(t, "d/x.xml", []byte(answer))
		for path, remote := range map[string]map[string]any{
			"s3://photos/d":     {"endpoint": s.URL},
			"s3://photos/d/":    {"endpoint": s.URL, "credentials": "none"},
			s.URL + "/photos/d": {},
		} {
			s.Spoil(nil)
			src, err := kinds.Open(t.Context(), source.Settings{"kind": "dir", "path": path, "remote": remote, "manifest": manifest})
			fatal.If(t, err)
			s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				r.Header.Del("Range")
				stored := httptest.NewRecorder()
				next.ServeHTTP(stored, r)
				maps.Copy(w.Header(), stored.Header())
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(stored.Code)
				_, _ = w.Write(stored.Body.Bytes()) // the client may be gone
			})
			want := want
			if strings.HasPrefix(path, "http") {
				want = source.ErrUnavailable // a web server has no codes
			}
			got := make([]byte, 1000)
			if n, err := src.Read(t.Context(), 0, got); !errors.Is(err, want) || !strings.Contains(err.Error(), "photos/d/x") {
				t.Errorf("%s: %q, %v; want %v", path, got[:n], err, want)
			}
			if n, err := src.Read(t.Context(), 1, got); err != nil || string(got[:n]) != answer {
				t.Errorf("%s: a file of XML: %q, %v", path, got[:n], err)
			}
			src.Close()
		}
	}
}

// Ensure that records are read whose bytes look like a page or an error, from a server that gives no type.
func TestRecordsThatLookLikePages(t *testing.T) {
	records := []string{"<html>records</html>", "<?xml version='1.0'?>", "<Error> it says 12 ", "<!-- no page here -->"}
	for k := range records {
		records[k] = fmt.Sprintf("%-24s", records[k])
	}
	data := strings.Repeat(".", 24) + strings.Join(records, "")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader(data))
	}))
	defer server.Close()
	src := opened(t, source.Settings{"kind": "raw", "path": server.URL + "/records.bin", "sample_bytes": 24})
	for k, want := range records {
		got := make([]byte, 24)
		if _, err := src.Read(t.Context(), k+1, got); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}

// Ensure that headers which an uploader may have written, and dates in another form, make no read fail.
func TestHeadersOfUploaders(t *testing.T) {
	s := newStorage(t)
	for header, value := range map[string]string{"Expires": "0", "Last-Modified": "2026-11-28T10:00:00Z"} {
		s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			stored := httptest.NewRecorder()
			next.ServeHTTP(stored, r)
			maps.Copy(w.Header(), stored.Header())
			w.Header().Set(header, value)
			w.WriteHeader(stored.Code)
			_, _ = w.Write(stored.Body.Bytes()) // the client may be gone
		})
		src, want := records(t, s, 3, nil)
		got := make([]byte, recordBytes)
		if n, err := src.Read(t.Context(), 1, got); err != nil || !bytes.Equal(got[:n], want[1]) {
			t.Errorf("%s: %s: %v", header, value, err)
		}
	}
}
