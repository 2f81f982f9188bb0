//go:build cloud

package cloud

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
	"google.golang.org/api/googleapi"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/remote"
)

func init() {
	for _, p := range []provider{google{}, azure{}} {
		source.RegisterScheme(p.scheme(), func(s source.Settings, _ source.Private) (source.Objects, error) { return open(s, p) })
	}
}

// settings are the keys under `remote`.
type settings struct {
	remote.Options `key:",squash"`

	// Credentials is auto (default: those that the provider's own tools find) or none.
	Credentials string `key:"credentials"`
}

// provider is what Google and Azure do in different ways.
type provider interface {
	scheme() string
	// bucket opens a bucket. With anonymous it uses no credentials.
	bucket(ctx context.Context, name string, transport http.RoundTripper, anonymous bool) (*blob.Bucket, error)
	// match makes a read fail unless the object has this tag. as is that of BeforeRead.
	match(as func(any) bool, tag string)
	// matchWrite makes a write fail if the object exists. as is that of BeforeWrite.
	matchWrite(as func(any) bool)
	// tag returns the tag of an answer, of attributes or of an entry of a list.
	tag(as func(any) bool) string
	// starts returns an error unless the bytes of an answer are those from offset on.
	starts(as func(any) bool, offset int64) error
	// noBucket says whether an error means that the bucket does not exist.
	noBucket(err error) bool
	// keys are the settings that credentials come from, for messages.
	keys() string
}

func open(s source.Settings, p provider) (source.Objects, error) {
	var o settings
	transport, err := o.Read(s, &o)
	if err != nil {
		return nil, err
	}
	if o.Credentials != "" && o.Credentials != "auto" && o.Credentials != "none" {
		return nil, fmt.Errorf("%w: remote.credentials is %q; known for %s:// are: auto, none", source.ErrInvalid,
			o.Credentials, p.scheme())
	}
	return remote.NewWritable(&driver{provider: p, transport: transport, anonymous: o.Credentials == "none",
		buckets: map[string]*blob.Bucket{}}, o.Options), nil
}

// driver is a remote.Driver.
type driver struct {
	provider  provider
	transport remote.Transport
	anonymous bool

	mu      sync.Mutex
	buckets map[string]*blob.Bucket
}

// Close is part of remote.Driver.
func (d *driver) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.buckets {
		_ = b.Close() // it only says that the bucket is closed
	}
	d.transport.CloseIdleConnections()
}

// find returns the bucket of an address, and the key in it.
func (d *driver) find(ctx context.Context, name string) (*blob.Bucket, string, error) {
	_, rest, _ := strings.Cut(name, "://")
	bucket, key, _ := strings.Cut(rest, "/")
	if bucket == "" {
		return nil, "", fmt.Errorf("%w: %s names no bucket; write %s://bucket/name", source.ErrInvalid, name, d.provider.scheme())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.buckets[bucket]
	if b == nil {
		var err error
		// The clients keep the context for their credentials.
		if b, err = d.provider.bucket(context.WithoutCancel(ctx), bucket, d.transport, d.anonymous); err != nil {
			return nil, "", fmt.Errorf("%w: %s: no client for it: %w; check %s", source.ErrInvalid, name, err,
				d.provider.keys())
		}
		d.buckets[bucket] = b
	}
	return b, key, nil
}

// failed returns the error of a request. It says which setting to check.
func (d *driver) failed(name string, err error) error {
	said := plainError(name, err)
	switch {
	case d.provider.noBucket(err):
		bucket, _, _ := strings.Cut(strings.TrimPrefix(name, d.provider.scheme()+"://"), "/")
		return fmt.Errorf("%w; check the name of the bucket (%s), and %s", said, bucket, d.provider.keys())
	case errors.Is(said, fs.ErrPermission) && d.anonymous:
		return fmt.Errorf("%w; remote.credentials is none", said)
	case errors.Is(said, fs.ErrPermission):
		return fmt.Errorf("%w: %s", said, d.provider.keys())
	}
	return said
}

// plainError is failed without settings.
func plainError(name string, err error) error {
	var google *googleapi.Error
	var azure *azcore.ResponseError // its text has the address, which may have a signature
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return remote.NetworkError(name, err)
	case errors.As(err, &google):
		return remote.StatusError(name, google.Code, fmt.Sprintf("%q", google.Message))
	case errors.As(err, &azure) && azure.StatusCode > 0:
		return remote.StatusError(name, azure.StatusCode, azure.ErrorCode)
	}
	switch gcerrors.Code(err) {
	case gcerrors.NotFound:
		return remote.StatusError(name, http.StatusNotFound, "no such bucket or object")
	case gcerrors.FailedPrecondition:
		return remote.StatusError(name, http.StatusPreconditionFailed, "another state")
	}
	return remote.NetworkError(name, err)
}

// Head is part of remote.Driver.
func (d *driver) Head(ctx context.Context, name string) (remote.Answer, error) {
	b, key, err := d.find(ctx, name)
	if err != nil {
		return remote.Answer{}, err
	}
	about, err := b.Attributes(ctx, key)
	if err != nil {
		return remote.Answer{}, d.failed(name, err)
	}
	return remote.Answer{Bytes: about.Size, Tag: d.provider.tag(about.As)}, nil
}

// Get is part of remote.Driver.
func (d *driver) Get(ctx context.Context, name string, offset int64, n int, tag string) (remote.Answer, error) {
	b, key, err := d.find(ctx, name)
	if err != nil {
		return remote.Answer{}, err
	}
	o := &blob.ReaderOptions{}
	if tag != "" {
		o.BeforeRead = func(as func(any) bool) error { d.provider.match(as, tag); return nil }
	}
	r, err := b.NewRangeReader(ctx, key, offset, int64(n), o)
	if err != nil {
		return remote.Answer{}, d.failed(name, err)
	}
	if err := d.provider.starts(r.As, offset); err != nil {
		_ = r.Close() // the error of the range says more
		return remote.Answer{}, fmt.Errorf("%w: %s: %w", source.ErrInvalid, name, err)
	}
	return remote.Answer{Bytes: r.Size(), Tag: d.provider.tag(r.As), Body: r}, nil
}

// List is part of remote.Driver.
func (d *driver) List(ctx context.Context, prefix, from string, _ func()) (page remote.Page, err error) {
	b, key, err := d.find(ctx, prefix)
	if err != nil {
		return page, err
	}
	token := blob.FirstPageToken
	if from != "" {
		token = []byte(from)
	}
	all, next, err := b.ListPage(ctx, token, pageObjects, &blob.ListOptions{Prefix: key})
	if err != nil {
		return page, d.failed(prefix, err)
	}
	for _, o := range all {
		page.Objects = append(page.Objects, remote.Object{Name: strings.TrimSuffix(prefix, key) + o.Key, Bytes: o.Size,
			Tag: d.provider.tag(o.As)})
	}
	page.Next = string(next)
	return page, nil
}

// pageObjects is how many objects a page of a list has, at most.
const pageObjects = 1000
