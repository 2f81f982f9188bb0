//go:build cloud

package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"google.golang.org/api/option"
)

// google is Google Cloud Storage. Tags are generations.
type google struct{}

func (google) scheme() string { return "gcs" }

func (google) bucket(ctx context.Context, name string, transport http.RoundTripper, anonymous bool) (*blob.Bucket, error) {
	// A transport without credentials; STORAGE_EMULATOR_HOST names a server that asks for none.
	client := gcp.NewAnonymousHTTPClient(transport)
	if !anonymous && os.Getenv("STORAGE_EMULATOR_HOST") == "" {
		credentials, err := gcp.DefaultCredentials(ctx)
		if err != nil {
			return nil, err
		}
		if client, err = gcp.NewHTTPClient(transport, gcp.CredentialsTokenSource(credentials)); err != nil {
			return nil, err
		}
	}
	c, err := storage.NewClient(ctx, option.WithHTTPClient(&client.Client))
	if err != nil {
		return nil, err
	}
	c.SetRetry(storage.WithPolicy(storage.RetryNever)) // the source has its own policy
	return gcsblob.OpenBucket(ctx, nil, name, &gcsblob.Options{Client: c})
}

func (google) noBucket(err error) bool { return errors.Is(err, storage.ErrBucketNotExist) }

func (google) keys() string { return "GOOGLE_APPLICATION_CREDENTIALS, or remote.credentials" }

func (google) match(as func(any) bool, tag string) {
	var object **storage.ObjectHandle
	if generation, err := strconv.ParseInt(tag, 10, 64); err == nil && as(&object) {
		*object = (*object).If(storage.Conditions{GenerationMatch: generation})
	}
}

func (google) matchWrite(as func(any) bool) {
	var object **storage.ObjectHandle
	if as(&object) {
		*object = (*object).If(storage.Conditions{DoesNotExist: true})
	}
}

func (google) starts(as func(any) bool, offset int64) error {
	var answer *storage.Reader
	if as(&answer) && answer.Attrs.StartOffset != offset {
		return fmt.Errorf("the server answered a range from %d on to a request for bytes from %d on", answer.Attrs.StartOffset, offset)
	}
	return nil
}

func (google) tag(as func(any) bool) string {
	var answer *storage.Reader
	var about storage.ObjectAttrs
	switch {
	case as(&answer):
		return strconv.FormatInt(answer.Attrs.Generation, 10)
	case as(&about):
		return strconv.FormatInt(about.Generation, 10)
	}
	return ""
}
