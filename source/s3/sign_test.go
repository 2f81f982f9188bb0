package s3

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stocached/stocached/source/sourcetest"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"
)

// Ensure that a signature is that of minio-go, for odd names too, with and without a token, and after a change of
// secret and region.
func TestSignature(t *testing.T) {
	var s signatures
	for _, keys := range []credentials.Value{{AccessKeyID: "id", SecretAccessKey: "secret"},
		{AccessKeyID: "other", SecretAccessKey: "another", SessionToken: "token+/="}} {
		for _, region := range []string{"us-east-1", "eu-1"} {
			for _, key := range []string{"a/b.jpg", "with space & + = ?.jpg", "Ünïcode/文.tar", "a//b", "100%.bin"} {
				for _, tag := range []string{"", `"abc"`} {
					request := func() *http.Request {
						path := "/bucket/" + key
						r := &http.Request{Method: http.MethodGet, Host: "storage.example:9000", Header: http.Header{"Range": {"bytes=5-9"}},
							URL: &url.URL{Scheme: "http", Host: "storage.example:9000", Path: path, RawPath: s3utils.EncodePath(path)}}
						if tag != "" {
							r.Header["If-Match"] = []string{tag}
						}
						return r
					}
					for {
						want := request()
						want.Header.Set("X-Amz-Content-Sha256", emptyBody)
						want = signer.SignV4(*want, keys.AccessKeyID, keys.SecretAccessKey, keys.SessionToken, region)
						got := request()
						s.sign(got, got.URL.RawPath, &keys, region, time.Now())
						if got.Header.Get("X-Amz-Date") != want.Header.Get("X-Amz-Date") {
							continue // the second has changed
						}
						if got.Header.Get("Authorization") != want.Header.Get("Authorization") {
							t.Errorf("%q: %s\nwant %s", key, got.Header.Get("Authorization"), want.Header.Get("Authorization"))
						}
						break
					}
				}
			}
		}
	}
}

// Ensure that a signature is made for the path that is sent, also for bytes that are not UTF-8.
func TestPathsOfSignatures(t *testing.T) {
	for _, name := range append(sourcetest.OddNames(), "a\xff/\u6587 ~_-.b") {
		sent := &url.URL{Path: "/" + name, RawPath: escaped("/" + name)}
		if got := sent.EscapedPath(); got != escaped("/"+name) {
			t.Errorf("%q: signed %s, sent %s", name, escaped("/"+name), got)
		}
	}
}
