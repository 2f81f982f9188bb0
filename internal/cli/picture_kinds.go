package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/server"
	imagesource "github.com/stocached/stocached/source/decode"
)

var kindColumns = table.Columns[imagesource.Kind]{
	table.Shown("kind", "kind", "by the first bytes of the file: JPEG, PNG, GIF, ..., or unknown",
		func(k imagesource.Kind) any { return k.Name }),
	table.Shown("samples", "samples", "of this kind", func(k imagesource.Kind) any { return table.Count(k.Files) }),
	table.Shown("other", "other", "true: a server leaves them to Python clients", func(k imagesource.Kind) any { return k.Other() }),
	table.Shown("first", "first", "index of the first one", func(k imagesource.Kind) any { return table.Count(k.First) }),
	table.Shown("where", "where", "file and place of the first one", func(k imagesource.Kind) any { return k.Where }),
}

// printKinds says of which kinds pictures are, and what their users must know. about stands before each line.
func printKinds(w io.Writer, about, what string, kinds []imagesource.Kind) {
	var all, others []string
	var other, unknown imagesource.Kind
	for _, k := range kinds {
		all = append(all, table.Count(k.Files).String()+" "+k.Name)
		sum := &unknown
		switch {
		case k.Other():
			sum, others = &other, append(others, k.Name)
		case k.Decoded():
			continue
		}
		if sum.Files == 0 || k.First < sum.First {
			sum.First, sum.Where = k.First, k.Where
		}
		sum.Files += k.Files
	}
	say := func(format string, args ...any) {
		fmt.Fprintln(w, table.Text(about+fmt.Sprintf(format, args...)))
	}
	if len(all) == 0 {
		all = []string{"none"}
	}
	say("%s: %s", what, strings.Join(all, ", "))
	if kind := "another kind"; other.Files > 0 {
		if len(others) > 1 {
			kind = "other kinds"
		}
		say("%v of %s (%s): Python clients decode them with Pillow; Go and C clients get an error. The first: %s",
			table.Count(other.Files), kind, strings.Join(others, ", "), other.Where)
	}
	if unknown.Files > 0 {
		say("%v of no known kind. The first: %s", table.Count(unknown.Files), unknown.Where)
	}
}

// printLooked says what serve --check has seen of the files of a cache.
func printLooked(w io.Writer, l server.Looked) {
	about := fmt.Sprintf("cache %s: ", l.Cache)
	printKinds(w, about, fmt.Sprintf("looked at %v of %v files", table.Count(l.Files), table.Count(l.Samples)), l.Kinds)
	if l.Failed > 0 {
		fmt.Fprintln(w, table.Text(fmt.Sprintf("%s%v of them cannot be read, such as: %v", about, table.Count(l.Failed), l.Err)))
	}
}
