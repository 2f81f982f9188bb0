//go:build cloud

package kinds_test

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
	"gocloud.dev/blob/gcsblob"
	"google.golang.org/api/option"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/s3/s3test"
)

// The account of Azurite, and its key, which its documentation names.
const (
	azureAccount = "devstoreaccount1"
	azureKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// `make test-cloud` installs the servers and sets STOCACHED_FAKE_GCS, a program, and STOCACHED_AZURITE, a
// script for node.
func init() {
	more = func(t *testing.T) map[string]func(t *testing.T) bucketOf {
		t.Helper()
		for _, name := range []string{"STOCACHED_FAKE_GCS", "STOCACHED_AZURITE"} {
			if os.Getenv(name) == "" {
				t.Fatalf("%s is not set; run make test-cloud", name)
			}
		}
		return map[string]func(t *testing.T) bucketOf{"fake-gcs-server": fakeGCS, "azurite": azurite}
	}
}

// startServer starts a server of storage and waits until it listens. address stands for HOST:PORT in args.
func startServer(t *testing.T, args func(host, port string) []string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	l.Close()
	host, port, _ := net.SplitHostPort(address)
	all := args(host, port)
	var log bytes.Buffer
	c := exec.Command(all[0], all[1:]...)
	c.Stdout, c.Stderr, c.Dir = &log, &log, t.TempDir()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return address
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not listen at %s: %s", all[0], address, log.String())
		}
	}
}

// oneConnection makes a connection for each request: tests look for goroutines that stay.
var oneConnection = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// bucketThrough is a bucket that tests write by the library itself.
func bucketThrough(t *testing.T, at string, b *blob.Bucket, server *s3test.Server) bucketOf {
	t.Cleanup(func() { b.Close() })
	return bucketOf{at, nil, func(t *testing.T, key string, data []byte) {
		t.Helper()
		if err := b.WriteAll(t.Context(), key, data, nil); err != nil {
			t.Fatal(err)
		}
	}, func(t *testing.T, key string) {
		t.Helper()
		if err := b.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}, server}
}

func fakeGCS(t *testing.T) bucketOf {
	t.Helper()
	address := startServer(t, func(host, port string) []string {
		return []string{os.Getenv("STOCACHED_FAKE_GCS"), "-scheme", "http", "-host", host, "-port", port, "-backend", "memory",
			"-public-host", host + ":" + port}
	})
	server := s3test.Before(t, address)
	address = strings.TrimPrefix(server.URL, "http://")
	t.Setenv("STORAGE_EMULATOR_HOST", address)
	client, err := storage.NewClient(t.Context(), option.WithHTTPClient(oneConnection))
	if err == nil {
		err = client.Bucket(bucket).Create(t.Context(), "project", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := gcsblob.OpenBucket(t.Context(), nil, bucket, &gcsblob.Options{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return bucketThrough(t, "gcs://"+bucket, b, server)
}

func azurite(t *testing.T) bucketOf {
	t.Helper()
	address := startServer(t, func(host, port string) []string {
		return []string{"node", os.Getenv("STOCACHED_AZURITE"), "--silent", "--inMemoryPersistence", "--skipApiVersionCheck",
			"--blobHost", host, "--blobPort", port}
	})
	server := s3test.Before(t, address)
	address = strings.TrimPrefix(server.URL, "http://")
	text := "DefaultEndpointsProtocol=http;AccountName=" + azureAccount + ";AccountKey=" + azureKey +
		";BlobEndpoint=http://" + address + "/" + azureAccount + ";"
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", text)
	client, err := container.NewClientFromConnectionString(text, bucket,
		&container.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: oneConnection}})
	if err == nil {
		_, err = client.Create(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := azureblob.OpenBucket(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return bucketThrough(t, "azblob://"+bucket, b, server)
}

// Ensure that wrong credentials, and buckets and objects that do not exist, are errors at once that say which
// setting to check, and show no secret.
func TestBucketErrorsOfClouds(t *testing.T) {
	azure := func(address, account, key string) string {
		return "DefaultEndpointsProtocol=http;AccountName=" + account + ";AccountKey=" + key + ";BlobEndpoint=http://" + address +
			"/" + account + ";"
	}
	const otherKey = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0" // secret-secret-...
	// fake-gcs-server asks for no credentials, so this one answers as Google does to wrong ones.
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error": {"code": 401, "message": "Invalid Credentials"}}`)
	}))
	defer refuses.Close()
	set := func(name string, value func(address string) string) func(*testing.T, string) {
		return func(t *testing.T, address string) { t.Setenv(name, value(address)) }
	}
	nothing := func(*testing.T, string) {}
	for name, c := range map[string]struct {
		server string
		change func(t *testing.T, address string)
		path   string // below the scheme; "": the bucket
		remote map[string]any
		is     error
		want   []string
	}{
		"Azure, another key": {server: "azurite", is: fs.ErrPermission, want: []string{"403", "AZURE_STORAGE_CONNECTION_STRING"},
			change: set("AZURE_STORAGE_CONNECTION_STRING", func(a string) string { return azure(a, azureAccount, otherKey) })},
		"Azure, no key in base64": {server: "azurite", is: source.ErrInvalid, want: []string{"AZURE_STORAGE_CONNECTION_STRING"},
			change: set("AZURE_STORAGE_CONNECTION_STRING", func(a string) string { return azure(a, azureAccount, "secret!") })},
		"Azure, no account": {server: "azurite", is: source.ErrInvalid, want: []string{"AZURE_STORAGE_ACCOUNT"},
			change: set("AZURE_STORAGE_CONNECTION_STRING", func(string) string { return "" })},
		"Azure, no container": {server: "azurite", change: nothing, path: "missing/data", is: fs.ErrNotExist,
			want: []string{"404 ContainerNotFound", "the name of the bucket (missing)", "AZURE_STORAGE_ACCOUNT"}},
		"Azure, no blob": {server: "azurite", change: nothing, path: bucket + "/none", is: source.ErrInvalid, want: []string{"has no file"}},
		"Azure, no credentials": {server: "azurite", remote: map[string]any{"credentials": "none"}, is: source.ErrInvalid,
			want: []string{"AZURE_STORAGE_ACCOUNT", "remote.credentials"}, change: nothing},
		"Google, refused": {server: "fake-gcs-server", is: fs.ErrPermission, want: []string{"401", "GOOGLE_APPLICATION_CREDENTIALS"},
			change: set("STORAGE_EMULATOR_HOST", func(string) string { return strings.TrimPrefix(refuses.URL, "http://") })},
		"Google, no credentials": {server: "fake-gcs-server", is: fs.ErrPermission, remote: map[string]any{"credentials": "none"},
			want:   []string{"401", "remote.credentials is none"},
			change: set("STORAGE_EMULATOR_HOST", func(string) string { return strings.TrimPrefix(refuses.URL, "http://") })},
		"Google, no file of credentials": {server: "fake-gcs-server", is: source.ErrInvalid, want: []string{"GOOGLE_APPLICATION_CREDENTIALS"},
			change: func(t *testing.T, _ string) {
				t.Setenv("STORAGE_EMULATOR_HOST", "")
				t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", t.TempDir()+"/missing.json")
			}},
		"Google, no bucket": {server: "fake-gcs-server", change: nothing, path: "missing/data", is: fs.ErrNotExist,
			want: []string{"404", "the name of the bucket (missing)"}},
		"Google, no object": {server: "fake-gcs-server", change: nothing, path: bucket + "/none", is: source.ErrInvalid,
			want: []string{"has no file"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := more(t)[c.server](t)
			scheme, _, _ := strings.Cut(b.at, "://")
			address := os.Getenv("STORAGE_EMULATOR_HOST")
			if scheme == "azblob" {
				_, rest, _ := strings.Cut(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"), "BlobEndpoint=http://")
				address, _, _ = strings.Cut(rest, "/")
			}
			c.change(t, address)
			settings := source.Settings{"kind": "dir", "path": scheme + "://" + cmp.Or(c.path, bucket)}
			if c.remote != nil {
				settings["remote"] = c.remote
			}
			begun := time.Now()
			s, err := kinds.Open(t.Context(), settings)
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v: no %q", err, want)
				}
			}
			if !errors.Is(err, c.is) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), otherKey) {
				t.Errorf("%v; want %v without a secret", err, c.is)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("the error came after %v", took)
			}
		})
	}
}

// Ensure that an answer of another range than the one asked for is an error that names the object.
func TestBucketAnswersAnotherRange(t *testing.T) {
	for name, start := range more(t) {
		t.Run(name, func(t *testing.T) {
			b, records := start(t), samples(3, 1000)
			b.put(t, "records", bytes.Join(records, nil))
			s, err := b.open(b.at+"/records", source.Settings{"kind": "raw", "sample_bytes": 1000})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			readAll(t, s, records)
			b.server.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				answer := httptest.NewRecorder()
				next.ServeHTTP(answer, r)
				maps.Copy(w.Header(), answer.Header())
				w.Header().Set("Content-Range", strings.Replace(w.Header().Get("Content-Range"), "1000-1999", "0-999", 1))
				w.WriteHeader(answer.Code)
				_, _ = w.Write(answer.Body.Bytes())
			})
			n, err := s.Read(t.Context(), 1, make([]byte, 1000))
			if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), b.at+"/records") || !strings.Contains(err.Error(), "from 1000 on") {
				t.Errorf("%d bytes, %v; want ErrInvalid that names the object", n, err)
			}
		})
	}
}
