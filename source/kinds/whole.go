package kinds

import (
	"context"
	"errors"
	"maps"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/wrap"
)

// around are the keys of a source that are not its kind's: how it is read, whatever it is.
var around = []string{"limits", "retry", "read_ahead"}

// Whole opens a source with all that a cache may say of it: what kind makes of the settings (Open does), within limits, tried again where that may help, read ahead, and, with settings of
// package decode, decoded. ahead is what prefetches are announced to; nil: nothing is.
func Whole(ctx context.Context, kind func(context.Context, source.Settings) (source.Source, error), settings source.Settings, decoded map[string]any) (s source.Source, ahead wrap.Ahead, err error) {
	own, wrapped := maps.Clone(settings), map[string]any{}
	for _, key := range around {
		if value, ok := own[key]; ok {
			wrapped[key] = value
			delete(own, key)
		}
	}
	if s, err = kind(ctx, own); err != nil {
		return nil, nil, err
	}
	outer := s // what there is to close
	defer func() {
		if err != nil {
			err = errors.Join(err, outer.Close())
		}
	}()
	if s, err = wrap.Apply(s, wrapped); err != nil {
		return nil, nil, err
	}
	outer = s
	ahead, _ = s.(wrap.Ahead)
	if decoded != nil {
		s, err = decode.New(s, decoded)
	}
	return s, ahead, err
}
