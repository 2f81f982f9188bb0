// Package kinds is the list of all kinds of source, and opens a source by its settings.
package kinds

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	"github.com/stocached/stocached/source/dir"
	"github.com/stocached/stocached/source/none"
	"github.com/stocached/stocached/source/npy"
	"github.com/stocached/stocached/source/raw"
	"github.com/stocached/stocached/source/tar"

	_ "github.com/stocached/stocached/source/http" // http:// and https://
	_ "github.com/stocached/stocached/source/s3"   // s3:// and gs://
)

// All lists all kinds.
var All = []source.Kind{
	block.Kind,
	dir.Kind,
	none.Kind,
	npy.Kind,
	raw.Kind,
	tar.Kind,
}

// Open opens the source that settings describe. The key kind names the kind; the other keys belong
// to the kind. It returns ErrInvalid, and errors of the kind.
func Open(ctx context.Context, settings source.Settings) (source.Source, error) {
	name, ok := settings["kind"].(string)
	own := maps.Clone(settings)
	delete(own, "kind")
	var known []string
	for _, k := range All {
		if ok && k.Name == name {
			s, err := k.Open(source.Opening(ctx), own)
			if err != nil {
				return nil, fmt.Errorf("source of kind %s: %w", name, err)
			}
			return s, nil
		}
		known = append(known, k.Name)
	}
	what := "kind is missing"
	if kind := settings["kind"]; kind != nil {
		what = fmt.Sprintf("there is no kind %s", source.Show(kind))
	}
	return nil, fmt.Errorf("%w: %s; known are: %s", source.ErrInvalid, what, strings.Join(known, ", "))
}
