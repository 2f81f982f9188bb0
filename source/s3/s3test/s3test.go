// Package s3test starts servers that speak S3, for tests: gofakes3 in this process, and versitygw, a real
// server that checks signatures.
package s3test

import (
	"bytes"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Credentials and names of all servers.
const (
	AccessKey = "AKIASTOCACHEDTEST"
	SecretKey = "do-not-show-this-secret"
	Bucket    = "photos"
	Region    = "eu-test-1"
)

// Server is a server with a bucket. All requests go through a handler that counts, and that a test can
// spoil.
type Server struct {
	URL    string
	Client *minio.Client // to the server itself

	Requests atomic.Int64 // GETs of objects
	Bytes    atomic.Int64 // sent in their answers

	running sync.WaitGroup // requests

	server *httptest.Server
	behind http.Handler
	mu     sync.Mutex
	spoil  Spoil
}

// Spoil handles a request in place of the server, which is next.
type Spoil func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Spoil sets what handles later requests; nil: the server alone.
func (s *Server) Spoil(how Spoil) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoil = how
}

// Servers returns how to start each kind. STOCACHED_VERSITYGW is the program versitygw; `make test-go` sets it if
// `make setup-versitygw` has built it. It sets the credentials and the region in the environment.
func Servers(t *testing.T) map[string]func(t *testing.T) *Server {
	t.Helper()
	Environment(t)
	all := map[string]func(t *testing.T) *Server{"gofakes3": Fake}
	if os.Getenv("STOCACHED_VERSITYGW") != "" {
		all["versitygw"] = Versitygw
	}
	return all
}

// Environment sets the credentials and the region.
func Environment(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", SecretKey)
	t.Setenv("AWS_REGION", Region)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true") // tests ask no service of the machine
}

// Fake starts gofakes3, which checks no signatures.
func Fake(t *testing.T) *Server {
	t.Helper()
	fake := gofakes3.New(s3mem.New(), gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithoutVersioning())
	return begin(t, fake.Server())
}

// Versitygw starts the program over a new folder, on a free port of the loopback device.
func Versitygw(t *testing.T) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	address := l.Addr().String()
	l.Close()
	var log bytes.Buffer
	c := exec.Command(os.Getenv("STOCACHED_VERSITYGW"), "--port", address, "--region", Region, "--quiet", "--keep-alive",
		"posix", t.TempDir())
	c.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
	c.Stdout, c.Stderr = &log, &log
	fatal.If(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatalf("versitygw does not listen at %s: %s", address, log.String())
		}
	}
	return begin(t, passTo(address))
}

// passTo passes requests on to a server at HOST:PORT.
func passTo(address string) http.Handler {
	to := &url.URL{Scheme: "http", Host: address}
	quiet := stdlog.New(io.Discard, "", 0)
	return &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: quiet,
		Transport: &http.Transport{DisableKeepAlives: true}, // tests look for goroutines that stay
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // the signature has it
		}}
}

// counted counts the bytes of an answer.
type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

func (c counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func serve(t *testing.T, behind http.Handler) *Server {
	t.Helper()
	s := &Server{behind: behind}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	s.URL = s.server.URL
	return s
}

// begin serves, and makes the bucket.
func begin(t *testing.T, behind http.Handler) *Server {
	t.Helper()
	s := serve(t, behind)
	var err error
	s.Client, err = minio.New(strings.TrimPrefix(s.URL, "http://"),
		&minio.Options{Transport: &http.Transport{DisableKeepAlives: true}, Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: Region})
	if err == nil {
		err = s.Client.MakeBucket(t.Context(), Bucket, minio.MakeBucketOptions{})
	}
	fatal.If(t, err)
	return s
}

// Stop ends the server. Its address refuses connections then.
func (s *Server) Stop() {
	s.server.CloseClientConnections()
	s.server.Close()
}

// Settle waits until the server has counted all it has sent: a client may have the last byte earlier.
func (s *Server) Settle() { s.running.Wait() }

// IsGet says whether a request is for the bytes of an object.
func IsGet(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(strings.Trim(r.URL.Path, "/"), "/")
}

// ServeHTTP answers a request to the server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.running.Add(1)
	defer s.running.Done()
	if IsGet(r) {
		s.Requests.Add(1)
		w = counted{w, &s.Bytes}
	}
	s.mu.Lock()
	spoil := s.spoil
	s.mu.Unlock()
	if spoil != nil {
		spoil(w, r, s.behind)
		return
	}
	s.behind.ServeHTTP(w, r)
}

// Put writes an object.
func (s *Server) Put(t *testing.T, key string, data []byte) {
	t.Helper()
	if _, err := s.Client.PutObject(t.Context(), Bucket, key, bytes.NewReader(data), int64(len(data)),
		// An empty object that is signed in chunks has no Content-Length, which servers demand.
		minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: len(data) == 0}); err != nil {
		t.Fatal(err)
	}
}

// Remove removes an object.
func (s *Server) Remove(t *testing.T, key string) {
	t.Helper()
	fatal.If(t, s.Client.RemoveObject(t.Context(), Bucket, key, minio.RemoveObjectOptions{}))
}

// Get returns an object.
func (s *Server) Get(t *testing.T, key string) []byte {
	t.Helper()
	o, err := s.Client.GetObject(t.Context(), Bucket, key, minio.GetObjectOptions{})
	fatal.If(t, err)
	defer o.Close()
	data, err := io.ReadAll(o)
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", key, err))
	}
	return data
}

// Names lists the objects whose keys begin with prefix.
func (s *Server) Names(t *testing.T, prefix string) (names []string) {
	t.Helper()
	for o := range s.Client.ListObjects(t.Context(), Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		names = append(names, o.Key)
	}
	return names
}
