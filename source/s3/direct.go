package s3

import (
	"context"
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stocached/stocached/source/remote"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// getDirect asks for a part of an object with a request of net/http: a read is one such request, and
// minio-go takes more processor time to make one than net/http to send it. done is false if the request
// needs minio-go: it has no signature, or the server redirects it.
func (d *driver) getDirect(ctx context.Context, name, bucket, key string, offset int64, n int, tag string) (
	a remote.Answer, done bool, err error) {
	keys, err := d.keys.GetWithContext(d.core.CredContext())
	if err != nil || keys.AccessKeyID == "" || keys.SecretAccessKey == "" || !keys.SignerType.IsV4() {
		return a, false, nil
	}
	base := d.base(ctx, bucket)
	if base == nil {
		return a, false, nil
	}
	path := s3utils.EncodePath(base.Path + key)
	to := &url.URL{Scheme: base.Scheme, Host: base.Host, Path: base.Path + key, RawPath: path}
	r := (&http.Request{Method: http.MethodGet, URL: to, Host: to.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Range": {"bytes=" + strconv.FormatInt(offset, 10) + "-" + strconv.FormatInt(offset+int64(n)-1, 10)}}}).WithContext(ctx)
	if tag != "" {
		r.Header.Set("If-Match", `"`+tag+`"`)
	}
	d.signatures.sign(r, path, &keys, d.region, time.Now())
	got, err := d.transport.RoundTrip(r)
	if err != nil {
		return a, true, d.failed(name, err)
	}
	tagNow := strings.Trim(got.Header.Get("ETag"), `"`)
	switch {
	case got.StatusCode == http.StatusOK || got.StatusCode == http.StatusPartialContent:
		a, err = answered(name, got.Header, got.ContentLength, tagNow, offset, got.Body)
		return a, true, err
	case got.StatusCode < 400:
		got.Body.Close()
		return a, false, nil
	}
	defer got.Body.Close()
	return a, true, d.failed(name, errorOf(got))
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
