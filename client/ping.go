package client

import (
	"context"
	"errors"

	"github.com/stocached/stocached/shm"
)

// Ping says whether a server answers now, and has the cache of a name; "": whichever it has. Nothing is attached or changed, and a server that is away is not waited for.
// nil: it does. Errors as Dial.
func Ping(ctx context.Context, name string, o DialOptions) error {
	if name != "" {
		if err := shm.CheckName(name); err != nil {
			return err
		}
	}
	l := o.link(name)
	l.once = true
	l.attached = func(int, [16]byte) error { return nil }
	_, err := l.connection(ctx)
	return errors.Join(err, l.close())
}
