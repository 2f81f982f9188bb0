package remote_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/remote"
	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/wrap"
)

// storage is an S3 server in this process.
type storage struct{ *s3test.Server }

// spoilNext spoils the next n requests for objects.
func (s storage) spoilNext(n int64, how s3test.Spoil) {
	left := atomic.Int64{}
	left.Store(n)
	s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if s3test.IsGet(r) && left.Add(-1) >= 0 {
			how(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func newStorage(t *testing.T) storage {
	t.Helper()
	s3test.Environment(t)
	return storage{s3test.Fake(t)}
}

// opened opens a source until the test ends.
func opened(t *testing.T, s source.Settings) source.Source {
	t.Helper()
	opened := fatal.Value(kinds.Open(t.Context(), s))(t)
	t.Cleanup(func() { opened.Close() })
	return opened
}

const recordBytes = 300_000

// records puts an object of n records, and opens it with the retry that users have.
func records(t *testing.T, s storage, n int, remote map[string]any) (source.Source, [][]byte) {
	t.Helper()
	want := make([][]byte, n)
	for i := range want {
		want[i] = bytes.Repeat(fmt.Appendf(nil, "%08d", i), recordBytes/8)
	}
	s.Put(t, "records", bytes.Join(want, nil))
	settings := map[string]any{"endpoint": s.URL}
	for key, value := range remote {
		settings[key] = value
	}
	opened, _, err := kinds.Whole(t.Context(), kinds.Open, source.Settings{"kind": "raw", "path": "s3://photos/records",
		"sample_bytes": recordBytes, "remote": settings, "retry": map[string]any{"tries": 5, "seconds": 5}}, nil)
	fatal.If(t, err)
	t.Cleanup(func() { opened.Close() })
	return opened, want
}

// Ensure that a read has the right bytes whatever happens to single answers, and that an answer that
// breaks off is continued, not begun again.
func TestFaultsOfAnswers(t *testing.T) {
	hijack := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	}
	begin := func(w http.ResponseWriter, r *http.Request, next http.Handler, n int) (rest []byte) {
		if from := r.Header.Get("Range"); !strings.HasPrefix(from, fmt.Sprintf("bytes=%d-", recordBytes)) &&
			r.Header.Get("If-Match") == "" {
			t.Errorf("a request that goes on at %s does not name the object that it has begun with", from)
		}
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		for key, values := range answer.Header() {
			w.Header()[key] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()[:n])
		_ = http.NewResponseController(w).Flush()
		return answer.Body.Bytes()[n:]
	}
	cutAfter := func(n int) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			begin(w, r, next, n)
			panic(http.ErrAbortHandler) // ends the connection in the middle of the body
		}
	}
	slowly := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		for rest := begin(w, r, next, 50_000); len(rest) > 0; rest = rest[min(50_000, len(rest)):] {
			time.Sleep(150 * time.Millisecond)
			_, _ = w.Write(rest[:min(50_000, len(rest))])
			_ = http.NewResponseController(w).Flush()
		}
	}
	slowDown := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`)
	}
	hang := func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		select {
		case <-r.Context().Done():
		case <-time.After(20 * time.Second):
			t.Error("the client waits longer than stall")
		}
	}
	for _, c := range []struct {
		name  string
		times int64
		how   func(w http.ResponseWriter, r *http.Request, next http.Handler)
		extra int64 // bytes that may be sent more than the sample has
	}{
		{"reset in the middle of the body", 3, cutAfter(100_000), 0},
		{"reset before the body", 2, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { hijack(w) }, 0},
		{"slow down", 3, slowDown, 300},
		{"hung", 1, hang, 0},
		{"hung in the middle of the body", 1, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			begin(w, r, next, 100_000)
			hang(w, r, next)
		}, 0},
		{"slower in all than stall", 1, slowly, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStorage(t)
			src, want := records(t, s, 3, map[string]any{"stall": "500ms"})
			if c.times == 3 && c.name != "slow down" {
				c.times = 2 // the rest of 300,000 bytes after two answers of 100,000
			}
			s.Bytes.Store(0)
			s.spoilNext(c.times, c.how)
			got := make([]byte, recordBytes)
			if _, err := src.Read(t.Context(), 1, got); err != nil || !bytes.Equal(got, want[1]) {
				t.Fatalf("%v", err)
			}
			if sent := s.Bytes.Load(); sent > recordBytes+c.extra*c.times {
				t.Errorf("%d bytes were sent for a sample of %d", sent, recordBytes)
			}
		})
	}
}

// Ensure that a read of a server that gives a byte now and then ends, within one answer and in many.
func TestServerThatDrips(t *testing.T) {
	for name, flush := range map[string]func(w http.ResponseWriter){
		"one answer": func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
		"an answer for each byte": func(w http.ResponseWriter) {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStorage(t)
			// On a busy machine, 20 ms between two bytes become some hundred. Six stalls are a read that is too slow.
			src, _ := records(t, s, 3, map[string]any{"stall": "500ms", "hedge": false})
			s.spoilNext(1<<40, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				answer := httptest.NewRecorder()
				next.ServeHTTP(answer, r)
				for key, values := range answer.Header() {
					w.Header()[key] = values
				}
				w.WriteHeader(answer.Code)
				for _, b := range answer.Body.Bytes() {
					if _, err := w.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(20 * time.Millisecond)
					flush(w)
				}
			})
			_, err := src.Read(t.Context(), 1, make([]byte, recordBytes))
			if !errors.Is(err, source.ErrUnavailable) ||
				!strings.Contains(err.Error(), "the server is too slow: up to 300000 bytes did not come in 3s") {
				t.Error(err)
			}
		})
	}
}

// Ensure that an answer that lies is an error that names the object, and never a sample.
func TestAnswersThatLie(t *testing.T) {
	type edits func(h http.Header, body []byte) []byte
	change := func(status int, edit edits) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			body := edit(answer.Header(), answer.Body.Bytes())
			for key, values := range answer.Header() {
				w.Header()[key] = values
			}
			w.WriteHeader(cmp.Or(status, answer.Code))
			_, _ = w.Write(body)
		}
	}
	for name, c := range map[string]struct {
		want   error
		status int // 0: that of the true answer
		edit   edits
	}{
		"another tag": {source.ErrChanged, 0, func(h http.Header, body []byte) []byte { h.Set("ETag", `"other"`); return body }},
		"another length of the object": {source.ErrChanged, 0, func(h http.Header, body []byte) []byte {
			h.Set("Content-Range", "bytes 300000-599999/900001")
			return body
		}},
		"always truncated": {source.ErrUnavailable, 0, func(h http.Header, body []byte) []byte {
			h.Set("Content-Length", "0")
			return nil
		}},
		"another range": {source.ErrInvalid, 0, func(h http.Header, body []byte) []byte {
			h.Set("Content-Range", "bytes 0-299999/900000")
			return body
		}},
		"the whole object as the range": {source.ErrInvalid, 0, func(h http.Header, body []byte) []byte {
			whole := bytes.Repeat([]byte{7}, 3*recordBytes)
			h.Set("Content-Length", fmt.Sprint(len(whole)))
			return whole
		}},
		"the whole object as the range, without a length": {source.ErrInvalid, 0, func(h http.Header, body []byte) []byte {
			h.Del("Content-Length")
			return bytes.Repeat([]byte{7}, 3*recordBytes)
		}},
		"the whole object with the status 200 and a range": {source.ErrInvalid, http.StatusOK, func(h http.Header, body []byte) []byte {
			whole := bytes.Repeat([]byte{7}, 3*recordBytes)
			h.Set("Content-Length", fmt.Sprint(len(whole)))
			return whole
		}},
		"a byte after the range, without a length": {source.ErrInvalid, 0, func(h http.Header, body []byte) []byte {
			h.Del("Content-Length")
			return append(body, 7)
		}},
		"a longer range": {source.ErrInvalid, 0, func(h http.Header, body []byte) []byte {
			h.Set("Content-Range", "bytes 300000-600000/900000")
			h.Set("Content-Length", fmt.Sprint(len(body)+1))
			return append(body, 7)
		}},
		"no range": {source.ErrInvalid, 0, func(h http.Header, body []byte) []byte {
			h.Del("Content-Range")
			return body
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStorage(t)
			signed, _ := records(t, s, 3, nil)
			unsigned, _ := records(t, s, 3, map[string]any{"credentials": "none"}) // minio-go reads its answers
			web := opened(t, source.Settings{"kind": "raw", "path": s.URL + "/photos/records", "sample_bytes": recordBytes})
			s.spoilNext(100, change(c.status, c.edit))
			for how, src := range map[string]source.Source{"signed": signed, "unsigned": unsigned, "from a web server": web} {
				_, err := src.Read(t.Context(), 1, make([]byte, recordBytes))
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "photos/records") {
					t.Errorf("%s: %v; want %v that names the object", how, err, c.want)
				}
			}
		})
	}
}

// Ensure that a part whose answer has no length is read if it has the bytes of its range, or fewer at first.
func TestPartsWithoutALength(t *testing.T) {
	s := newStorage(t)
	for _, credentials := range []string{"environment", "none"} {
		src, want := records(t, s, 3, map[string]any{"credentials": credentials})
		for _, left := range []int{0, 1, recordBytes - 1} {
			s.spoilNext(1, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				answer := httptest.NewRecorder()
				next.ServeHTTP(answer, r)
				maps.Copy(w.Header(), answer.Header())
				w.Header().Del("Content-Length")
				w.Header().Set("Content-Range", fmt.Sprintf("bytes 300000-%d/900000", 599999-left))
				w.WriteHeader(answer.Code)
				_ = http.NewResponseController(w).Flush() // so it is chunked
				_, _ = w.Write(answer.Body.Bytes()[:recordBytes-left])
			})
			got := make([]byte, recordBytes)
			if n, err := src.Read(t.Context(), 1, got); err != nil || !bytes.Equal(got[:n], want[1]) {
				t.Errorf("credentials %s, %d bytes fewer: %d bytes, %v", credentials, left, n, err)
			}
		}
	}
}

// Ensure that a server which never says how many bytes an object has is refused when the source is opened.
func TestObjectsWithoutALength(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "x", []byte("0123456789"))
	manifest := t.TempDir() + "/manifest"
	write(t, manifest, []byte("x\n"))
	s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		r.Header.Del("Range")
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		maps.Copy(w.Header(), answer.Header())
		w.Header().Del("Content-Length")
		w.WriteHeader(answer.Code)
		_ = http.NewResponseController(w).Flush() // so it is chunked
		_, _ = w.Write(answer.Body.Bytes())
	})
	for path, remote := range map[string]map[string]any{
		"s3://photos":     {"endpoint": s.URL},
		s.URL + "/photos": {},
	} {
		src, err := kinds.Open(t.Context(), source.Settings{"kind": "dir", "path": path, "remote": remote, "manifest": manifest})
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "does not say") {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			src.Close()
		}
	}
}

// Ensure that settings that cannot work are errors with the setting and the answer, and have no secret.
func TestBadRemoteSettings(t *testing.T) {
	s := newStorage(t)
	s.Put(t, "records", make([]byte, 100))
	ca := t.TempDir() + "/ca.pem"
	fatal.If(t, os.WriteFile(ca, []byte("no certificate"), 0o600))
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	defer tls.Close()
	for _, c := range []struct {
		path   string
		remote map[string]any
		is     error
		want   string
	}{
		{"s3://none/records", map[string]any{"endpoint": s.URL}, fs.ErrNotExist, "s3://none/records"},
		{"s3://photos/none", map[string]any{"endpoint": s.URL}, fs.ErrNotExist, "s3://photos/none"},
		{"s3://hidden:secret@photos/x", map[string]any{"endpoint": s.URL}, source.ErrInvalid, "the address of s3://photos/x has a user or a key"},
		{"s3:///x", map[string]any{"endpoint": s.URL}, source.ErrInvalid, "s3:///x names no bucket"},
		{"s3://", nil, source.ErrInvalid, "s3:// names no bucket; write s3://bucket/name"},
		{"gs://", nil, source.ErrInvalid, "gs:// names no bucket; write gs://bucket/name"},
		{"https:///x", nil, source.ErrInvalid, "https:///x names no host; write https://host/path"},
		{"s3://photos/x", map[string]any{"endpoint": "somewhere"}, source.ErrInvalid, `remote.endpoint is "somewhere", and must be like https://`},
		{"s3://photos/x", map[string]any{"endpoint": "http://user:hidden@127.0.0.1"}, source.ErrInvalid, "remote.endpoint"},
		{"s3://photos/x", map[string]any{"endpoint": s.URL, "credentials": "guess"}, source.ErrInvalid, "environment, file, iam, none"},
		{"s3://photos/x", map[string]any{"endpoint": s.URL, "ca": ca}, source.ErrInvalid, "no certificate in PEM"},
		{"s3://photos/x", map[string]any{"endpoint": s.URL, "ca": ca + ".none"}, fs.ErrNotExist, "remote.ca"},
		{"s3://photos/x", map[string]any{"endpoint": s.URL, "stall": "1ms"}, source.ErrInvalid, "remote.stall"},
		{"s3://photos/x", map[string]any{"endpoint": s.URL, "requests": 2000}, source.ErrInvalid, "remote.requests"},
		{"s3://photos/x", map[string]any{"endpoint": s.URL, "key": "x"}, source.ErrInvalid, "unknown key"},
		{"https://" + strings.TrimPrefix(tls.URL, "https://") + "/x", nil, source.ErrInvalid, "remote.ca"},
		{"http://me:hidden@" + strings.TrimPrefix(s.URL, "http://") + "/none/x?token=hidden", nil, fs.ErrNotExist, "/none/x: the server answered 404 Not Found"},
		{s.URL + "/photos/records#2", nil, source.ErrInvalid, "records#2 has a #, and no server gets what follows it; write %23"},
		{"ftp://b/x", nil, source.ErrInvalid, "gs://, http://, https://, s3://"},
		{"/tmp", map[string]any{"stall": "1s"}, source.ErrInvalid, "local path"},
	} {
		settings := source.Settings{"kind": "raw", "path": c.path, "sample_bytes": 10}
		if c.remote != nil {
			settings["remote"] = c.remote
		}
		_, err := kinds.Open(context.Background(), settings)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden") ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s %v: %v; want %v with %q", c.path, c.remote, err, c.is, c.want)
		}
	}
}

// Ensure that only errors that may pass are tried again, and by package wrap alone: minio-go tries nothing again.
func TestRetryableStatus(t *testing.T) {
	s := newStorage(t)
	src, _ := records(t, s, 3, nil)
	for status, again := range map[int]bool{403: false, 404: false, 412: false, 429: true, 500: true, 503: true} {
		s.spoilNext(100, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(status) })
		before := s.Requests.Load()
		_, err := src.Read(t.Context(), 0, make([]byte, recordBytes))
		if requests := s.Requests.Load() - before; err == nil || wrap.Retryable(err) != again ||
			requests != map[bool]int64{false: 1, true: 5}[again] {
			t.Errorf("status %d: %d requests, %v", status, requests, err)
		}
	}
}

// Ensure that a connection that comes too late is tried again: Go calls it the end of a context too.
func TestLateConnection(t *testing.T) {
	_, err := (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).DialContext(context.Background(), "tcp", "127.0.0.1:9")
	if late, ok := err.(net.Error); !ok || !late.Timeout() {
		t.Fatal(err)
	}
	if err := remote.NetworkError("http://127.0.0.1:9/x", err); !wrap.Retryable(err) {
		t.Errorf("%v is final", err)
	}
}
