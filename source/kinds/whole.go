package kinds

import (
	"context"
	"errors"
	"maps"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/wrap"
)

// Around are the keys that any kind of source may have: they say how it is read.
var Around = []string{"limits", "retry", "read_ahead"}

// Whole opens a source with all settings of a cache. kind opens the source itself (Open does).
// Whole adds limits, retries and read-ahead, and, with settings of package decode, decoding. ahead
// receives prefetches; it is nil if the source does not read ahead. The source reports what it tries again to the
// source.Retries of ctx.
func Whole(ctx context.Context, kind func(context.Context, source.Settings) (source.Source, error),
	settings source.Settings, decoded map[string]any) (s source.Source, ahead wrap.Ahead, err error) {
	own, wrapped := maps.Clone(settings), map[string]any{}
	for _, key := range Around {
		if value, ok := own[key]; ok {
			wrapped[key] = value
			delete(own, key)
		}
	}
	if path, ok := own["path"].(string); ok && source.IsRemote(path) && wrapped["retry"] == nil {
		wrapped["retry"] = map[string]any{"tries": 50} // for half a minute: a network fails, a storage restarts
	}
	if s, err = kind(ctx, own); err != nil {
		return nil, nil, err
	}
	outer := s // the source to close after a failure
	defer func() {
		if err != nil {
			err = errors.Join(err, outer.Close())
		}
	}()
	if s, err = wrap.Apply(s, wrapped, source.RetriesOf(ctx)); err != nil {
		return nil, nil, err
	}
	outer = s
	ahead, _ = s.(wrap.Ahead)
	if decoded != nil {
		s, err = decode.New(s, decoded)
	}
	return s, ahead, err
}
