package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"sync"
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
	macs                sync.Pool // *coder of key
}

// coder makes codes with one key, in memory of its own.
type coder struct {
	code interface {
		io.Writer
		Sum(b []byte) []byte
		Reset()
	}
	sum  [sha256.Size]byte
	text []byte
}

// hex appends the code of a text to dst.
func (m *coder) hex(dst, text []byte) []byte {
	m.code.Reset()
	_, _ = m.code.Write(text) // a hash never fails
	return hex.AppendEncode(dst, m.code.Sum(m.sum[:0]))
}

const (
	signedTime = "20060102T150405Z"
	signedDay  = "20060102"
	// emptyBody is the SHA-256 of no bytes.
	emptyBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

var hashOfNothing = []string{emptyBody}

// signedHeaders are the headers that a read may have, sorted, besides host, which comes first.
var signedHeaders = []struct{ name, lower string }{{"If-Match", "if-match"}, {"Range", "range"},
	{"X-Amz-Content-Sha256", "x-amz-content-sha256"}, {"X-Amz-Date", "x-amz-date"},
	{"X-Amz-Security-Token", "x-amz-security-token"}}

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
		key = &dayKey{day: day, region: region, secret: keys.SecretAccessKey,
			key: mac(mac(mac(mac([]byte("AWS4"+keys.SecretAccessKey), day), region), "s3"), "aws4_request")}
		s.key.Store(key)
	}
	m, _ := key.macs.Get().(*coder)
	if m == nil {
		m = &coder{code: hmac.New(sha256.New, key.key)}
	}
	defer key.macs.Put(m)
	r.Header["X-Amz-Content-Sha256"], r.Header["X-Amz-Date"] = hashOfNothing, []string{stamp}
	if keys.SessionToken != "" {
		r.Header["X-Amz-Security-Token"] = []string{keys.SessionToken}
	}
	b := append(m.text[:0], r.Method...)
	b = append(append(append(b, '\n'), path...), "\n\nhost:"...)
	b = append(append(b, r.Host...), '\n')
	for _, h := range signedHeaders {
		if values := r.Header[h.name]; len(values) == 1 {
			b = append(append(append(append(b, h.lower...), ':'), values[0]...), '\n')
		}
	}
	b = append(b, '\n')
	names := len(b)
	b = append(b, "host"...)
	for _, h := range signedHeaders {
		if len(r.Header[h.name]) == 1 {
			b = append(append(b, ';'), h.lower...)
		}
	}
	endNames := len(b)
	b = append(append(b, '\n'), emptyBody...)
	sum := sha256.Sum256(b)
	toSign := len(b)
	b = append(append(append(b, "AWS4-HMAC-SHA256\n"...), stamp...), '\n')
	scope := len(b)
	b = append(append(append(append(b, day...), '/'), region...), "/s3/aws4_request"...)
	endScope := len(b)
	b = hex.AppendEncode(append(b, '\n'), sum[:])
	header := len(b)
	b = append(append(append(b, "AWS4-HMAC-SHA256 Credential="...), keys.AccessKeyID...), '/')
	b = append(append(b, b[scope:endScope]...), ", SignedHeaders="...)
	b = append(append(b, b[names:endNames]...), ", Signature="...)
	b = m.hex(b, b[toSign:header])
	r.Header["Authorization"] = []string{string(b[header:])}
	m.text = b
}
