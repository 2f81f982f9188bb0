//go:build cloud

package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
	"google.golang.org/api/googleapi"
)

// Stream is part of remote.StreamDriver.
func (d *driver) Stream(ctx context.Context, name string, only bool) (io.WriteCloser, error) {
	b, key, err := d.find(ctx, name)
	if err != nil {
		return nil, err
	}
	o := &blob.WriterOptions{ContentType: "application/octet-stream", DisableContentTypeDetection: true}
	if only {
		o.BeforeWrite = func(as func(any) bool) error { d.provider.matchWrite(as); return nil }
	}
	w, err := b.NewWriter(ctx, key, o)
	if err != nil {
		return nil, d.failed(name, err)
	}
	return &writer{w, d, name, only}, nil
}

type writer struct {
	*blob.Writer
	driver *driver
	name   string
	only   bool
}

func (w *writer) Close() error {
	err := w.Writer.Close()
	var google *googleapi.Error
	switch {
	case err == nil:
		return nil
	case w.only && (gcerrors.Code(err) == gcerrors.AlreadyExists || gcerrors.Code(err) == gcerrors.FailedPrecondition ||
		errors.As(err, &google) && google.Code == http.StatusPreconditionFailed):
		return fmt.Errorf("%s: %w", w.name, fs.ErrExist)
	}
	return w.driver.failed(w.name, err)
}

// Remove is part of remote.StreamDriver.
func (d *driver) Remove(ctx context.Context, name string) error {
	b, key, err := d.find(ctx, name)
	if err != nil {
		return err
	}
	if err := b.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return d.failed(name, err)
	}
	return nil
}
