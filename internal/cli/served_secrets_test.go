package cli

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/redistest"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/source/s3/s3test"
)

// Ensure that no credential shows in anything that a whole run prints, answers or keeps: its log, its errors,
// metrics, command lines and files. The run has two sources, in a bucket and on a web server with a password and
// a signed address, and a tier with a password. All of them work, then refuse with an answer that repeats the request,
// and then are gone.
func TestSecretsOfAWholeRun(t *testing.T) {
	const n = 60
	const webPassword, signature, enginePassword = "web-password-7x", "signature-9y", "engine-password-3z"
	s3test.Environment(t)
	s := s3test.Fake(t)
	var records []byte
	for i := range n {
		records = append(records, servedRecord(i)...)
	}
	s.Put(t, "data/records", records)
	var down atomic.Bool
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != webPassword || r.URL.RawQuery != "sig="+signature || down.Load() {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, "%s is not allowed for %s (%s), %q", r.URL, r.Header.Get("Authorization"), password, r.URL.Query())
			return
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader(string(records)))
	}))
	defer web.Close()
	engine := redistest.Start(t, "--requirepass", enginePassword)
	address := strings.Replace(web.URL, "://", "://me:"+webPassword+"@", 1) + "/data/records?sig=" + signature
	disk, password := t.TempDir(), filepath.Join(t.TempDir(), "password")
	fatal.If(t, os.WriteFile(password, []byte(enginePassword+"\n"), 0o600))
	bucketSegments := tmpfs.Folder(t)
	served := configureServed(t, fmt.Sprintf("size: 8MiB, tiers: [{kind: disk, dir: %q, size: 16MiB}, {kind: cluster, addresses: [%q], "+
		"password: %s}], source: {kind: raw, path: %q, sample_bytes: %d}}, {name: bucket, dir: %s, size: 8MiB, "+
		"source: {kind: raw, path: 's3://%s/data/records', remote: {endpoint: %q}, sample_bytes: %d, retry: {tries: 1}}",
		disk, engine.Addr, enginePassword, address, servedBytes, bucketSegments, s3test.Bucket, s.URL, servedBytes))
	served.start()
	served.reaches()
	client := served.dial()
	wantFetch(t, client, first(n/2)) // the others are read when nothing works any more
	secrets := map[string]string{"the secret key": s3test.SecretKey, "the access key": s3test.AccessKey, "the web's password": webPassword,
		"the signature": signature, "the web's password in base64": base64.StdEncoding.EncodeToString([]byte("me:" + webPassword)),
		"the engine's password": enginePassword}
	check := func(where, text string) {
		t.Helper()
		for what, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s", where, what)
			}
		}
	}
	look := func() {
		t.Helper()
		for _, path := range []string{"/metrics", "/v1/caches", "/v1/caches/pets", "/v1/caches/bucket", "/readyz"} {
			_, text := served.ask(http.MethodGet, path, "")
			if check(path, text); text == "" {
				t.Errorf("%s answers %q", path, text)
			}
		}
		for _, args := range [][]string{{"stats", "--sockets", served.sockets}, {"health", "--sockets", served.sockets},
			{"config", "print", "-c", served.path}, {"config", "print", "-c", served.path, "--json"},
			{"serve", "-c", served.path, "--check"}, {"doctor", "-c", served.path, "--json"}} {
			_, stdout, stderr := cli(t, args...)
			check(strings.Join(args[:2], " "), stdout+stderr)
		}
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil || len(lines) == 0 {
			t.Fatal(lines, err)
		}
		for _, path := range lines {
			text, _ := os.ReadFile(path)                              // the process may have ended
			if !strings.Contains(string(text), redistest.Program()) { // the test gave its password there
				check(path, string(text))
			}
		}
		check("the log", served.said())
	}
	look()
	byFile := served.configuration("password: "+enginePassword, fmt.Sprintf("password_file: %q", password))
	served.configure(fmt.Sprintf("caches: [{name: pets, source: {kind: raw, sample_bytes: 3000, path: %q}, tiers: "+
		"[{kind: cluster, addresses: 5, password: %s}, {kind: %s}]}]\n", address, enginePassword, enginePassword[:3]))
	code, stdout, stderr := cli(t, "reload", "--sockets", served.sockets)
	if check("reload", stdout+stderr); code == exitOK {
		t.Errorf("a bad configuration is applied: %s", stdout)
	}
	served.configure(byFile)
	ok(t, "reload", "--sockets", served.sockets)
	served.reaches()
	fail := func(words string) {
		t.Helper()
		for name, dir := range map[string]string{"pets": served.segments, "bucket": bucketSegments} {
			code, stdout, stderr := cli(t, "warm", name, "--sockets", served.sockets, "--dir", dir)
			if check("warm", stdout+stderr); code == exitOK {
				t.Errorf("warm %s does not fail: %s%s", name, stdout, stderr)
			}
		}
		err := client.Fetch(t.Context(), []int{n - 1}, make([]byte, servedBytes), servedBytes)
		if check("the error of a client", fmt.Sprint(err)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("a client has the error %v, want one with %q", err, words)
		}
		for path, remote := range map[string]string{address: "stall: 1s", "s3://" + s3test.Bucket + "/data/records": "endpoint: " + s.URL} {
			code, stdout, stderr := cli(t, "source", "info", path, "--kind", "raw", "--source",
				fmt.Sprintf("sample_bytes=%d,remote={%s}", servedBytes, remote))
			if check("source info", stdout+stderr); code == exitOK || !strings.Contains(stderr, words) {
				t.Errorf("source info of %s ends with %d, want an error with %q: %s", path, code, words, stderr)
			}
		}
		look()
	}
	// The web server and the bucket refuse, and the engine is gone.
	down.Store(true)
	s.Spoil(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "<Error><Code>AccessDenied</Code><Message>no: %s</Message></Error>", r.Header.Get("Authorization"))
	})
	engine.Kill()
	fail("403")
	// No server of the sources is there any more: these errors are of the network, and know whole addresses.
	web.CloseClientConnections()
	web.Close()
	s.Stop()
	fail("connection refused")
	served.kill()
	for _, root := range []string{filepath.Dir(served.path), served.segments, bucketSegments, disk, os.Getenv("XDG_CACHE_HOME")} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || path == served.path {
				return err
			}
			text, err := os.ReadFile(path)
			check(path, string(text))
			return err
		})
		expect.NoError(t, err)
	}
}
