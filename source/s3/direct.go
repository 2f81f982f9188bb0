package s3

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stocached/stocached/source/remote"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// direct sends a request about an object with net/http: a read is one such request, and minio-go takes more
// processor time to make one than net/http to send it. It has the headers Range and If-Match, or neither. done is
// false if the request needs minio-go: it has no signature, or the server redirects it.
func (d *driver) direct(ctx context.Context, method, name string, header http.Header) (got *http.Response, done bool, err error) {
	_, bucket, key, err := split(name)
	if err != nil {
		return nil, true, err
	}
	keys, err := d.keys.GetWithContext(d.core.CredContext())
	if err != nil || keys.AccessKeyID == "" || keys.SecretAccessKey == "" || !keys.SignerType.IsV4() {
		return nil, false, nil
	}
	base := d.base(ctx, bucket)
	if base == nil {
		return nil, false, nil
	}
	path := escaped(base.Path + key)
	to := &url.URL{Scheme: base.Scheme, Host: base.Host, Path: base.Path + key, RawPath: path}
	r := (&http.Request{Method: method, URL: to, Host: to.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header}).WithContext(ctx)
	d.signatures.sign(r, path, &keys, d.region, time.Now())
	header["Accept-Encoding"] = remote.Identity // no signature has it
	if got, err = d.transport.RoundTrip(r); err != nil {
		return nil, true, d.failed(name, err)
	}
	switch {
	case got.StatusCode == http.StatusOK || got.StatusCode == http.StatusPartialContent:
		return got, true, nil
	case got.StatusCode < http.StatusBadRequest:
		return nil, false, got.Body.Close()
	}
	defer got.Body.Close()
	return nil, true, d.failed(name, errorOf(got))
}

// escaped returns a path as addresses and signatures have it. minio-go's function takes bytes that are not UTF-8 for
// U+FFFD, which is another name.
func escaped(path string) string {
	if utf8.ValidString(path) {
		return s3utils.EncodePath(path)
	}
	var b strings.Builder
	for k := range len(path) {
		if path[k] < utf8.RuneSelf {
			b.WriteString(s3utils.EncodePath(path[k : k+1]))
		} else {
			fmt.Fprintf(&b, "%%%02X", path[k])
		}
	}
	return b.String()
}

// rangeOf returns the header of a request for a part of an object.
func rangeOf(offset int64, n int, tag string) http.Header {
	header := http.Header{"Range": {"bytes=" + strconv.FormatInt(offset, 10) + "-" + strconv.FormatInt(offset+int64(n)-1, 10)}}
	if remote.IsStrong(tag) {
		header["If-Match"] = []string{tag}
	}
	return header
}

// errorOf returns what a server says about a request that failed.
func errorOf(answer *http.Response) minio.ErrorResponse {
	var said minio.ErrorResponse
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10)) // a part of the text is better than none
	if xml.Unmarshal(text, &said) != nil || said.Code == "" {
		said.Code, said.Message = http.StatusText(answer.StatusCode), ""
	}
	said.StatusCode = answer.StatusCode
	if said.Region == "" {
		said.Region = answer.Header.Get("x-amz-bucket-region")
	}
	return said
}

// base returns the address of a bucket with a slash at the end; nil: minio-go makes none.
func (d *driver) base(ctx context.Context, bucket string) *url.URL {
	if known, ok := d.buckets.Load(bucket); ok {
		return known.(*url.URL)
	}
	signed, err := d.core.PresignedGetObject(ctx, bucket, "x", time.Minute, nil) // sends nothing
	if err != nil {
		return nil
	}
	base := &url.URL{Scheme: signed.Scheme, Host: signed.Host, Path: strings.TrimSuffix(signed.Path, "x")}
	d.buckets.Store(bucket, base)
	return base
}
