package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/source/s3/s3test"
)

// Ensure that requests go through the proxy of the environment, with its password, and name the bucket in the
// path or in the host as path_style says. A proxy that refuses, or is not there, is an error that says so.
func TestProxy(t *testing.T) {
	s3test.Environment(t)
	s := s3test.Fake(t)
	s.Put(t, "records", []byte("0123456789"))
	var mu sync.Mutex
	var seen []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Proxy-Authorization"), "Basic ") {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		mu.Lock()
		seen = append(seen, r.URL.Host+r.URL.Path)
		mu.Unlock()
		if strings.HasPrefix(r.URL.Host, s3test.Bucket+".") {
			r.URL.Path = "/" + s3test.Bucket + r.URL.Path
		}
		s.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	with := strings.Replace(proxy.URL, "://", "://me:proxy-password@", 1)
	info := func(path, remote, proxy string) (string, error) {
		seen = nil
		p := program("source", "info", path, "--kind", "raw", "--source", "sample_bytes=10,remote={"+remote+"}")
		p.Env = append(p.Env, "HTTP_PROXY="+proxy, "http_proxy=", "NO_PROXY=", "no_proxy=")
		out, err := p.CombinedOutput()
		return string(out), err
	}
	for _, c := range []struct{ path, remote, want string }{
		{"http://storage.example/photos/records", "stall: 5s", "storage.example/photos/records"},
		{"s3://photos/records", "endpoint: http://storage.example, path_style: true", "storage.example/photos/records"},
		{"s3://photos/records", "endpoint: http://storage.example, path_style: false", "photos.storage.example/records"},
		{"s3://photos/records", "endpoint: http://storage.example", "storage.example/photos/records"},
	} {
		if out, err := info(c.path, c.remote, with); err != nil || len(seen) == 0 || seen[0] != c.want {
			t.Errorf("%s, %s: the proxy saw %v, want %s: %v\n%s", c.path, c.remote, seen, c.want, err, out)
		}
	}
	for proxy, want := range map[string]string{proxy.URL: "407", "http://127.0.0.1:1": "the proxy that HTTP_PROXY"} {
		for _, path := range []string{"http://storage.example/photos/records", "s3://photos/records"} {
			out, err := info(path, map[bool]string{true: "endpoint: http://storage.example", false: "stall: 5s"}[path[0] == 's'], proxy)
			if err == nil || !strings.Contains(out, want) || strings.Contains(out, "proxy-password") {
				t.Errorf("%s through %s: %v\n%s", path, proxy, err, out)
			}
		}
	}
}
