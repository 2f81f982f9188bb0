package client

import (
	"cmp"
	"context"
	"errors"

	"github.com/stocached/stocached/shm"
)

// Ping returns nil if a server answers now and has the named cache; with "" any server counts. It
// attaches nothing, changes nothing, and does not wait for a server that is away. It returns the
// errors of Dial.
func Ping(ctx context.Context, name string, o DialOptions) error {
	if name != "" {
		if err := shm.CheckName(name); err != nil {
			return err
		}
	}
	l := o.link(name)
	l.once = true
	l.attached = func(int, [16]byte) error { return nil }
	_, err := l.connection(ctx, cmp.Or(o.Timeout, pingWait))
	return errors.Join(err, l.close())
}
