package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/wrap"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// storage is an S3 server in this process whose answers a test can spoil.
type storage struct {
	url    string
	client *minio.Client

	mu       sync.Mutex
	spoil    func(w http.ResponseWriter, r *http.Request, next http.Handler) // nil: not at all
	requests atomic.Int64                                                    // GETs of objects
	bytes    atomic.Int64                                                    // sent in their bodies
}

// spoilNext spoils the next n requests for objects.
func (s *storage) spoilNext(n int, how func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoil = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if n--; n < 0 {
			s.mu.Unlock()
			next.ServeHTTP(w, r)
			s.mu.Lock()
			return
		}
		s.mu.Unlock()
		defer s.mu.Lock()
		how(w, r, next)
	}
}

type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

func newStorage(t *testing.T, bucket string) *storage {
	t.Helper()
	s := &storage{}
	fake := gofakes3.New(s3mem.New(), gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || strings.Count(strings.Trim(r.URL.Path, "/"), "/") == 0 {
			fake.ServeHTTP(w, r)
			return
		}
		s.requests.Add(1)
		w = counted{w, &s.bytes}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.spoil != nil {
			s.spoil(w, r, fake)
			return
		}
		s.mu.Unlock()
		defer s.mu.Lock()
		fake.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	var err error
	s.client, err = minio.New(strings.TrimPrefix(s.url, "http://"),
		&minio.Options{Creds: credentials.NewStaticV4("key", "secret", ""), Region: "us-east-1"})
	if err == nil {
		err = s.client.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *storage) put(t *testing.T, name string, data []byte) {
	t.Helper()
	bucket, key, _ := strings.Cut(name, "/")
	if _, err := s.client.PutObject(t.Context(), bucket, key, bytes.NewReader(data), int64(len(data)),
		minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
}

const recordBytes = 300_000

// records puts an object of n records, and opens it with the retry that users have.
func records(t *testing.T, s *storage, n int, remote map[string]any) (source.Source, [][]byte) {
	t.Helper()
	want := make([][]byte, n)
	for i := range want {
		want[i] = bytes.Repeat(fmt.Appendf(nil, "%08d", i), recordBytes/8)
	}
	s.put(t, "data/records", bytes.Join(want, nil))
	settings := map[string]any{"endpoint": s.url}
	for key, value := range remote {
		settings[key] = value
	}
	opened, _, err := kinds.Whole(t.Context(), kinds.Open, source.Settings{"kind": "raw", "path": "s3://data/records",
		"sample_bytes": recordBytes, "remote": settings}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	return opened, want
}

// Ensure that a read has the right bytes whatever happens to single answers, and that an answer that
// breaks off is continued, not begun again.
func TestFaultsOfAnswers(t *testing.T) {
	hijack := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w.(counted).ResponseWriter).Hijack()
		if err == nil {
			conn.Close()
		}
	}
	cutAfter := func(n int) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			for key, values := range answer.Header() {
				w.Header()[key] = values
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes()[:n])
			_ = http.NewResponseController(w.(counted).ResponseWriter).Flush()
			panic(http.ErrAbortHandler) // ends the connection in the middle of the body
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
		times int
		how   func(w http.ResponseWriter, r *http.Request, next http.Handler)
		extra int64 // bytes that may be sent more than the sample has
	}{
		{"reset in the middle of the body", 3, cutAfter(100_000), 0},
		{"reset before the body", 2, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { hijack(w) }, 0},
		{"slow down", 3, slowDown, 300},
		{"hung", 1, hang, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStorage(t, "data")
			src, want := records(t, s, 3, map[string]any{"stall": "500ms"})
			if c.times == 3 && c.name != "slow down" {
				c.times = 2 // the rest of 300,000 bytes after two answers of 100,000
			}
			s.bytes.Store(0)
			s.spoilNext(c.times, c.how)
			got := make([]byte, recordBytes)
			if _, err := src.Read(t.Context(), 1, got); err != nil || !bytes.Equal(got, want[1]) {
				t.Fatalf("%v", err)
			}
			if sent := s.bytes.Load(); sent > recordBytes+c.extra*int64(c.times) {
				t.Errorf("%d bytes were sent for a sample of %d", sent, recordBytes)
			}
		})
	}
}

// Ensure that an answer that lies is an error that names the object, and never a sample.
func TestAnswersThatLie(t *testing.T) {
	change := func(edit func(h http.Header, body []byte) []byte) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			body := edit(answer.Header(), answer.Body.Bytes())
			for key, values := range answer.Header() {
				w.Header()[key] = values
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(body)
		}
	}
	for name, c := range map[string]struct {
		want error
		edit func(h http.Header, body []byte) []byte
	}{
		"another tag": {source.ErrChanged, func(h http.Header, body []byte) []byte { h.Set("ETag", `"other"`); return body }},
		"another length of the object": {source.ErrChanged, func(h http.Header, body []byte) []byte {
			h.Set("Content-Range", "bytes 300000-599999/900001")
			return body
		}},
		"always truncated": {source.ErrUnavailable, func(h http.Header, body []byte) []byte {
			h.Set("Content-Length", "0")
			return nil
		}},
		"no range": {source.ErrInvalid, func(h http.Header, body []byte) []byte {
			h.Del("Content-Range")
			return body
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStorage(t, "data")
			src, _ := records(t, s, 3, nil)
			s.spoilNext(100, change(c.edit))
			_, err := src.Read(t.Context(), 1, make([]byte, recordBytes))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "s3://data/records") {
				t.Errorf("%v; want %v that names the object", err, c.want)
			}
		})
	}
}

// Ensure that an object that was replaced is ErrChanged, also in the middle of a read.
func TestReplacedObject(t *testing.T) {
	s := newStorage(t, "data")
	src, want := records(t, s, 3, nil)
	s.put(t, "data/records", bytes.Repeat([]byte{1}, len(want)*recordBytes))
	if _, err := src.Read(t.Context(), 1, make([]byte, recordBytes)); !errors.Is(err, source.ErrChanged) {
		t.Errorf("%v; want ErrChanged", err)
	}
}

// Ensure that settings that cannot work are errors with the setting and the answer, and have no secret.
func TestBadRemoteSettings(t *testing.T) {
	s := newStorage(t, "data")
	s.put(t, "data/records", make([]byte, 100))
	ca := t.TempDir() + "/ca.pem"
	if err := os.WriteFile(ca, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	defer tls.Close()
	for _, c := range []struct {
		path   string
		remote map[string]any
		is     error
		want   string
	}{
		{"s3://none/records", map[string]any{"endpoint": s.url}, fs.ErrNotExist, "s3://none/records"},
		{"s3://data/none", map[string]any{"endpoint": s.url}, fs.ErrNotExist, "s3://data/none"},
		{"s3:///x", map[string]any{"endpoint": s.url}, source.ErrInvalid, "names no bucket"},
		{"s3://data/x", map[string]any{"endpoint": "somewhere"}, source.ErrInvalid, "remote.endpoint"},
		{"s3://data/x", map[string]any{"endpoint": "http://user:hidden@127.0.0.1"}, source.ErrInvalid, "remote.endpoint"},
		{"s3://data/x", map[string]any{"endpoint": s.url, "credentials": "guess"}, source.ErrInvalid, "environment, file, iam, none"},
		{"s3://data/x", map[string]any{"endpoint": s.url, "ca": ca}, source.ErrInvalid, "no certificate in PEM"},
		{"s3://data/x", map[string]any{"endpoint": s.url, "ca": ca + ".none"}, fs.ErrNotExist, "remote.ca"},
		{"s3://data/x", map[string]any{"endpoint": s.url, "stall": "1ms"}, source.ErrInvalid, "remote.stall"},
		{"s3://data/x", map[string]any{"endpoint": s.url, "requests": 2000}, source.ErrInvalid, "remote.requests"},
		{"s3://data/x", map[string]any{"endpoint": s.url, "key": "x"}, source.ErrInvalid, "unknown key"},
		{"https://" + strings.TrimPrefix(tls.URL, "https://") + "/x", nil, source.ErrInvalid, "remote.ca"},
		{"http://me:hidden@" + strings.TrimPrefix(s.url, "http://") + "/none/x?token=hidden", nil, fs.ErrNotExist, "/none/x"},
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

// Ensure that only errors that may pass are tried again.
func TestRetryableStatus(t *testing.T) {
	s := newStorage(t, "data")
	src, _ := records(t, s, 3, nil)
	for status, again := range map[int]bool{403: false, 404: false, 412: false, 429: true, 500: true, 503: true} {
		s.spoilNext(100, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(status) })
		before := s.requests.Load()
		_, err := src.Read(t.Context(), 0, make([]byte, recordBytes))
		if requests := s.requests.Load() - before; err == nil || wrap.Retryable(err) != again || (requests > 1) != again {
			t.Errorf("status %d: %d requests, %v", status, requests, err)
		}
	}
}
