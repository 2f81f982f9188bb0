package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// signatures signs requests without a body and a query, by version 4 of AWS. It is the signature of minio-go's
// package signer, in less time: it keeps the key of the day, and knows the headers of a read.
type signatures struct{ key atomic.Pointer[dayKey] }

// dayKey is the key of a day, a region and a secret.
type dayKey struct {
	day, region, secret string
	key                 []byte
}

const (
	signedTime = "20060102T150405Z"
	signedDay  = "20060102"
	// emptyBody is the SHA-256 of no bytes.
	emptyBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// signedHeaders are the headers that a read may have, sorted, besides host, which comes first.
var signedHeaders = []string{"If-Match", "Range", "X-Amz-Content-Sha256", "X-Amz-Date", "X-Amz-Security-Token"}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// sign adds the signature to a request, which has no headers but the first two of signedHeaders. path is the
// encoded one.
func (s *signatures) sign(r *http.Request, path string, keys *credentials.Value, region string, now time.Time) {
	stamp := now.UTC().Format(signedTime)
	day := stamp[:len(signedDay)]
	key := s.key.Load()
	if key == nil || key.day != day || key.region != region || key.secret != keys.SecretAccessKey {
		key = &dayKey{day, region, keys.SecretAccessKey,
			mac(mac(mac(mac([]byte("AWS4"+keys.SecretAccessKey), day), region), "s3"), "aws4_request")}
		s.key.Store(key)
	}
	r.Header["X-Amz-Content-Sha256"], r.Header["X-Amz-Date"] = []string{emptyBody}, []string{stamp}
	if keys.SessionToken != "" {
		r.Header["X-Amz-Security-Token"] = []string{keys.SessionToken}
	}
	var canonical, names strings.Builder
	canonical.Grow(512)
	canonical.WriteString(r.Method + "\n" + path + "\n\nhost:" + r.Host + "\n")
	names.WriteString("host")
	for _, name := range signedHeaders {
		if values := r.Header[name]; len(values) == 1 {
			lower := strings.ToLower(name)
			canonical.WriteString(lower + ":" + values[0] + "\n")
			names.WriteString(";" + lower)
		}
	}
	canonical.WriteString("\n" + names.String() + "\n" + emptyBody)
	sum := sha256.Sum256([]byte(canonical.String()))
	scope := day + "/" + region + "/s3/aws4_request"
	signature := mac(key.key, "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+hex.EncodeToString(sum[:]))
	r.Header["Authorization"] = []string{"AWS4-HMAC-SHA256 Credential=" + keys.AccessKeyID + "/" + scope + ", SignedHeaders=" +
		names.String() + ", Signature=" + hex.EncodeToString(signature)}
}
