//go:build cloud

package kinds_test

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
	"gocloud.dev/blob/gcsblob"
	"google.golang.org/api/option"
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
func bucketThrough(t *testing.T, at string, b *blob.Bucket) bucketOf {
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
	}}
}

func fakeGCS(t *testing.T) bucketOf {
	t.Helper()
	address := startServer(t, func(host, port string) []string {
		return []string{os.Getenv("STOCACHED_FAKE_GCS"), "-scheme", "http", "-host", host, "-port", port, "-backend", "memory",
			"-public-host", host + ":" + port}
	})
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
	return bucketThrough(t, "gcs://"+bucket, b)
}

func azurite(t *testing.T) bucketOf {
	t.Helper()
	address := startServer(t, func(host, port string) []string {
		return []string{"node", os.Getenv("STOCACHED_AZURITE"), "--silent", "--inMemoryPersistence", "--skipApiVersionCheck",
			"--blobHost", host, "--blobPort", port}
	})
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
	return bucketThrough(t, "azblob://"+bucket, b)
}
