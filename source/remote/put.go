package remote

import (
	"context"
	"fmt"
	"time"

	"github.com/stocached/stocached/source"
)

// PutDriver is a Driver that also writes objects.
type PutDriver interface {
	Driver
	// Put writes an object, whole, also over another one.
	Put(ctx context.Context, name string, data []byte) error
}

const (
	putStalls = 30      // times the key stall: a request that writes putBytes and takes longer is given up
	putBytes  = 8 << 20 // a larger one has as much more time
)

// NewWritable is New for a PutDriver.
func NewWritable(driver PutDriver, o Options) *WritableStore { return &WritableStore{New(driver, o)} }

// WritableStore is a Store that also writes.
type WritableStore struct{ *Store }

var _ source.Writable = (*WritableStore)(nil)

// Put is part of source.Writable.
func (s *WritableStore) Put(ctx context.Context, name string, data []byte) error {
	limit := putStalls * s.stall * time.Duration(1+len(data)/putBytes)
	_, err := again(ctx, func() (struct{}, error) {
		request, stop := context.WithTimeout(ctx, limit)
		defer stop()
		err := s.driver.(PutDriver).Put(request, name, data)
		if err != nil && request.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %s: no answer to a request that writes for %v", source.ErrUnavailable, name, limit)
		}
		return struct{}{}, err
	})
	return err
}
