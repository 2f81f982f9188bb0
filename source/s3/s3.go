// Package s3 reads and writes objects of storage that speaks S3: s3://bucket/name, and gs://bucket/name for
// Google's storage through its S3 endpoint.
package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/remote"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

func init() {
	source.RegisterScheme("s3", func(s source.Settings, _ source.Private) (source.Objects, error) {
		return open(s, "https://s3.amazonaws.com")
	})
	source.RegisterScheme("gs", func(s source.Settings, _ source.Private) (source.Objects, error) {
		return open(s, "https://storage.googleapis.com")
	})
}

// settings are the keys under `remote`.
type settings struct {
	remote.Options `key:",squash"`

	// Endpoint is where the storage is, such as http://127.0.0.1:9000. Default: AWS_ENDPOINT_URL_S3, then
	// AWS_ENDPOINT_URL of the environment, else that of the scheme.
	Endpoint string `key:"endpoint"`
	// Region of the bucket. Default: AWS_REGION or AWS_DEFAULT_REGION, else us-east-1.
	Region string `key:"region"`
	// PathStyle puts the bucket into the path and not into the name of the host. Default: as the host's
	// name allows.
	PathStyle *bool `key:"path_style"`
	// Credentials says where the keys come from: auto (default), environment, file, iam, none.
	Credentials string `key:"credentials"`
	// Profile is the section of the credentials file. Default: AWS_PROFILE, else default.
	Profile string `key:"profile"`
}

func open(s source.Settings, endpoint string) (source.Objects, error) {
	var o settings
	transport, err := o.Read(s, &o)
	if err != nil {
		return nil, err
	}
	name, at := "remote.endpoint", o.Endpoint
	for _, variable := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if at == "" {
			name, at = variable, os.Getenv(variable)
		}
	}
	at = cmp.Or(at, endpoint)
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		is := ""
		if !strings.ContainsAny(at, "@?") { // it shows no secret
			is = fmt.Sprintf(" is %q, and", at)
		}
		return nil, fmt.Errorf("%w: %s%s must be like https://host:port, without a path, user or password", source.ErrInvalid, name, is)
	}
	keys, err := o.keys(u.Hostname())
	if err != nil {
		return nil, err
	}
	lookup := minio.BucketLookupAuto
	if o.PathStyle != nil {
		if lookup = minio.BucketLookupDNS; *o.PathStyle {
			lookup = minio.BucketLookupPath
		}
	}
	region := cmp.Or(o.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	d := &driver{region: region, keys: keys, transport: transport, client: func(t http.RoundTripper) (*minio.Core, error) {
		return minio.NewCore(u.Host, &minio.Options{Creds: keys.Credentials, Secure: u.Scheme == "https", Transport: t,
			Region: region, BucketLookup: lookup, MaxRetries: 1})
	}}
	if d.core, err = d.client(documents{transport}); err != nil {
		return nil, fmt.Errorf("%w: remote.endpoint: %w", source.ErrInvalid, err)
	}
	return remote.NewWritable(d, o.Options), nil
}

type driver struct {
	core      *minio.Core
	client    func(http.RoundTripper) (*minio.Core, error)
	region    string
	keys      *keys
	transport remote.Transport
}

func (d *driver) Close() { d.transport.CloseIdleConnections() }

// split returns the bucket and the key of an address.
func split(name string) (bucket, key string, err error) {
	_, rest, _ := strings.Cut(name, "://")
	bucket, key, _ = strings.Cut(rest, "/")
	if bucket == "" {
		err = fmt.Errorf("%w: %s names no bucket; write s3://bucket/name", source.ErrInvalid, name)
	} else if wrong := s3utils.CheckValidBucketName(bucket); wrong != nil {
		err = fmt.Errorf("%w: %s: %v", source.ErrInvalid, name, wrong)
	}
	return bucket, key, err
}

// failed returns the error of a request.
func (d *driver) failed(name string, err error) error {
	if err = d.explained(name, err); errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; %s", err, d.keys.explain())
	}
	return err
}

// explained returns the error of a request, without where its keys came from.
func (d *driver) explained(name string, err error) error {
	said := minio.ToErrorResponse(err)
	if said.StatusCode == 0 && said.Code == "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w; remote.endpoint is %s", remote.NetworkError(name, err), d.core.EndpointURL())
	}
	text := strings.TrimPrefix(said.Code, fmt.Sprintf("%d ", said.StatusCode)) // without a body, it is the status
	if said.Message != said.Code && said.Message != "" {
		text += ": " + said.Message
	}
	text = d.keys.hide(text)
	if said.StatusCode == 0 { // minio-go does not understand the answer
		return fmt.Errorf("%w: %s: %s; remote.endpoint is %s", source.ErrInvalid, name, text, d.core.EndpointURL())
	}
	if said.StatusCode >= 300 && said.StatusCode < 400 || said.Code == "AuthorizationHeaderMalformed" ||
		said.Code == "IllegalLocationConstraintException" {
		return fmt.Errorf("%w: %s: the server answered %d %s; remote.region is %s%s, remote.endpoint is %s", source.ErrInvalid,
			name, said.StatusCode, text, d.region, regionHint(said.Region, d.region), d.core.EndpointURL())
	}
	switch said.Code {
	case "NoSuchBucket":
		return fmt.Errorf("%w; check the name of the bucket, and remote.endpoint (%s)",
			remote.StatusError(name, 404, text), d.core.EndpointURL())
	case "NoSuchKey":
		return remote.StatusError(name, 404, text)
	case "InvalidAccessKeyId", "XAdminUserNotFound", "SignatureDoesNotMatch", "AccessDenied", "RequestTimeTooSkewed",
		"ExpiredToken", "TokenRefreshRequired", "InvalidToken": // S3 answers 400 to these three
		return remote.StatusError(name, 403, text)
	case "PreconditionFailed":
		return remote.StatusError(name, 412, text)
	case "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout":
		return remote.StatusError(name, max(said.StatusCode, 503), text)
	}
	return remote.StatusError(name, said.StatusCode, text)
}

func regionHint(right, used string) string {
	if right == "" || right == used {
		return ""
	}
	return ", and the bucket's is " + right + ": set remote.region or AWS_REGION"
}

// Head is part of remote.Driver.
func (d *driver) Head(ctx context.Context, name string) (remote.Answer, error) {
	bucket, key, err := split(name)
	if err != nil {
		return remote.Answer{}, err
	}
	about, err := d.core.StatObject(ctx, bucket, key, minio.StatObjectOptions{})
	if err != nil {
		return remote.Answer{}, d.failed(name, err)
	}
	return remote.Answer{Bytes: about.Size, Tag: tagOf(&about)}, nil
}

// tagOf returns the tag of an object that minio-go describes: the one that remote.Tag returns for its header.
func tagOf(about *minio.ObjectInfo) string {
	date := about.LastModified.UTC().Format(http.TimeFormat)
	switch {
	case about.ETag != "":
		return `"` + about.ETag + `"`
	case !about.LastModified.IsZero() && date != noDate: // a list may have none
		return date
	}
	return ""
}

// Get is part of remote.Driver.
func (d *driver) Get(ctx context.Context, name string, offset int64, n int, tag string) (remote.Answer, error) {
	bucket, key, err := split(name)
	if err != nil {
		return remote.Answer{}, err
	}
	var o minio.GetObjectOptions
	o.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+int64(n)-1))
	if remote.IsStrong(tag) {
		o.Set("If-Match", tag)
	}
	body, about, header, err := d.core.GetObject(ctx, bucket, key, o)
	if err != nil {
		return remote.Answer{}, d.failed(name, err)
	}
	bytes, err := remote.AnsweredBytes(header.Get("Content-Range"), offset, n, about.Size)
	if err != nil {
		body.Close()
		return remote.Answer{}, fmt.Errorf("%w: %s: %w", source.ErrInvalid, name, err)
	}
	if header.Get("Last-Modified") == noDate {
		header.Del("Last-Modified")
	}
	return remote.Answer{Bytes: bytes, Tag: remote.Tag(header), Body: body}, nil
}
