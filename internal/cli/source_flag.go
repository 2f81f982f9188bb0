package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
)

// sourceFlags say what SRC in a command line is.
type sourceFlags struct {
	kind   string
	set    []string
	decode []string
}

func (f *sourceFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.kind, "kind", "", "kind of SRC: "+strings.Join(kindNames(), ", ")+
		" (default: by its name, see above)")
	c.Flags().StringArrayVar(&f.set, "source", nil,
		"settings of SRC as key=value,...: those of its kind, and limits, retry, read_ahead; repeatable")
	c.Flags().StringArrayVar(&f.decode, "decode", nil,
		"decode images, with settings as key=value,...: resize, fit, layout, field, max_pixels, "+
			"memory, bad_samples, store; repeatable")
	choices(c, "kind", kindNames()...)
}

// sourceHelp explains SRC in help texts.
const sourceHelp = `SRC is a path, or an address such as s3://bucket/train. Its name tells the kind of source. A folder with a
dataset.json is a dataset in block files (block). Any other folder is a tree of files, one sample each (dir).
A .npy file is an array (npy). A .tar file, or a pattern of such names, is tar shards (tar). Anything else
needs --kind. --source gives the settings of that kind, as in a configuration:
  --source 'glob=**/*.jpg,labels=folders'
  --kind raw --source 'shape=[3,224,224],dtype=float32'
--decode decodes the samples as a server does:
  --decode 'resize=[224,224],fit=crop'
docs/spec/sources.md explains all settings. A value is a number, true or false, a list such as [jpg, cls],
a mapping such as {tries: 5}, or a text; "..." makes any value a text. kinds:
`

func kindNames() []string {
	var names []string
	for _, k := range kinds.All {
		names = append(names, k.Name)
	}
	return names
}

// explainKinds lists the kinds with what they read.
func explainKinds() string {
	lines := make([]string, len(kinds.All))
	for i, k := range kinds.All {
		lines[i] = fmt.Sprintf("  %-6s %s", k.Name, k.Doc)
	}
	return sourceHelp + strings.Join(lines, "\n")
}

// settings returns the settings of a source: its path and the flags.
func (f *sourceFlags) settings(ctx context.Context, path string) (source.Settings, error) {
	s := source.Settings{"path": path}
	for _, text := range f.set {
		if err := parsePairs(s, "--source", text); err != nil {
			return nil, err
		}
	}
	switch {
	case f.kind != "":
		s["kind"] = f.kind
	case s["kind"] == nil:
		kind, err := guessKind(ctx, path, s["remote"])
		if err != nil {
			return nil, err
		}
		s["kind"] = kind
	}
	return s, nil
}

func (f *sourceFlags) open(ctx context.Context, path string) (source.Source, error) {
	s, err := f.settings(ctx, path)
	if err != nil {
		return nil, err
	}
	decoded, err := pairs("--decode", f.decode)
	if err != nil {
		return nil, err
	}
	opened, _, err := kinds.Whole(ctx, kinds.Open, s, decoded)
	return opened, err
}

// guessKind finds the kind of a source by its path, and by whether there is a dataset.json below it. remote
// says how to reach an address.
func guessKind(ctx context.Context, path string, remote any) (string, error) {
	where := source.Remote{}
	settings, _ := remote.(map[string]any) // the source complains about anything else
	if source.IsRemote(path) {
		where.Remote = settings
	}
	place, err := where.Place(&path)
	if err != nil {
		return "", err
	}
	defer place.Close()
	base := filepath.Base(path)
	switch {
	case isFolder(path):
	case strings.HasSuffix(base, ".tar"), strings.HasSuffix(base, ".tar.gz"),
		strings.HasSuffix(base, ".tgz"): // no file has the name of a pattern of shards
		return "tar", nil
	case strings.HasSuffix(base, ".npy"):
		return "npy", nil
	case base == "dataset.json" || strings.HasSuffix(base, ".stocblk"):
		return "", usage("%s is a part of a dataset in block files: give its folder", path)
	case place.Objects() == nil:
		if _, err := os.Stat(path); err != nil {
			return "", err
		}
		return "", noKind(path)
	}
	switch _, err := place.Stamp(ctx, strings.TrimRight(path, "/")+"/dataset.json"); {
	case err == nil:
		return "block", nil
	case place.Objects() == nil, filepath.Ext(base) == "" && errors.Is(err, fs.ErrNotExist):
		return "dir", nil
	case errors.Is(err, fs.ErrNotExist):
		return "", noKind(path)
	default:
		return "", fmt.Errorf("%w (asked for to find the kind of the source; --kind says it)", err)
	}
}

func isFolder(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func noKind(path string) error {
	return usage("%s: its name does not say what kind of source it is; give --kind, and its settings by "+
		"--source, such as --kind raw --source sample_bytes=150528", path)
}

// pairs reads the values of a flag; nil: there are none.
func pairs(flag string, texts []string) (map[string]any, error) {
	if texts == nil {
		return nil, nil
	}
	all := map[string]any{}
	for _, text := range texts {
		if err := parsePairs(all, flag, text); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// parsePairs adds "key=value,..." of a flag to settings. A comma within brackets, braces or quotes
// is part of the value.
func parsePairs(into map[string]any, flag, text string) error {
	for _, part := range splitSettings(text) {
		key, value, ok := strings.Cut(part, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return usage("%s %q: %q is not key=value", flag, text, part)
		}
		if _, twice := into[key]; twice && key != "path" {
			return usage("%s %q: %s comes twice", flag, text, key)
		}
		into[key] = parseSetting(value)
	}
	return nil
}

func splitSettings(text string) (parts []string) {
	depth, quoted, from := 0, false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth <= 0:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:])
}

// parseSetting reads a value: a number, true or false as JSON has them; what begins as a list, a mapping or a quoted text
// in YAML; or else the text itself, such as the pattern {a,b}.
func parseSetting(text string) (v any) {
	flow := text != "" && strings.Contains(`[{"`, text[:1])
	d := yaml.NewDecoder(strings.NewReader(text))
	var rest any // the rest of [ab].jpg, which yaml.Unmarshal would not see
	if !flow && !json.Valid([]byte(text)) || d.Decode(&v) != nil || v == nil || d.Decode(&rest) != io.EOF {
		return text
	}
	mapping, _ := v.(map[string]any)
	for _, value := range mapping {
		if value == nil {
			return text
		}
	}
	return v
}
