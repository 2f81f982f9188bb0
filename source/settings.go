package source

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
)

// Settings say which source to open: the keys under `source:` in a configuration, with `kind`.
type Settings map[string]any

// Kind is a kind of source.
type Kind struct {
	Name string // the value of the key kind
	Doc  string // one line: what it reads
	// Open opens a source. Relative paths start at the working directory. The settings have only
	// the kind's own keys.
	Open func(ctx context.Context, s Settings) (Source, error)
}

// Decode fills the struct that into points to. Its fields name their keys by the tag `key`.
// Durations have a unit ("8ms"). A type with UnmarshalText decodes itself. Decode returns
// ErrInvalid for unknown keys and values of another type, with all complaints at once.
func (s Settings) Decode(into any) error {
	options := &mapstructure.DecoderConfig{Result: into}
	Strictly(options, Exact, mapstructure.TextUnmarshallerHookFunc())
	d, err := mapstructure.NewDecoder(options)
	if err != nil {
		return err
	}
	known := keys(reflect.TypeOf(into).Elem())
	var complaints []string
	for key := range s {
		if !slices.Contains(known, key) {
			complaints = append(complaints, fmt.Sprintf("unknown key %q; known are: %s", key, strings.Join(known, ", ")))
		}
	}
	slices.Sort(complaints)
	if err := d.Decode(map[string]any(s)); err != nil {
		complaints = append(complaints, Complaints(err)...)
	}
	if len(complaints) > 0 {
		return fmt.Errorf("%w: %s", ErrInvalid, strings.Join(complaints, "; "))
	}
	return nil
}

// Strictly makes a decoder take keys as they are written, and values as hooks say, none by a guess.
func Strictly(d *mapstructure.DecoderConfig, hooks ...mapstructure.DecodeHookFunc) {
	d.TagName, d.WeaklyTypedInput = "key", false
	d.MatchName = func(key, field string) bool { return key == field }
	d.DecodeHook = mapstructure.ComposeDecodeHookFunc(append([]mapstructure.DecodeHookFunc{refuseDate}, hooks...)...)
}

// Or returns these settings, with defaults for the keys without a value.
func (s Settings) Or(defaults Settings) Settings {
	all := maps.Clone(defaults)
	for key, value := range s {
		if value != nil || defaults[key] == nil {
			all[key] = value
		}
	}
	return all
}

// NotZero refuses 0 for keys that have another default, because a user who writes 0 means something
// else.
func (s Settings) NotZero(keys ...string) error {
	for _, key := range keys {
		if v := reflect.ValueOf(s[key]); v.IsValid() && (v.CanInt() && v.Int() == 0 || v.CanFloat() && v.Float() == 0) {
			return fmt.Errorf("%w: %s is 0; leave it out for the default", ErrInvalid, key)
		}
	}
	return nil
}

// keys returns the keys of a struct, with those of embedded structs.
func keys(t reflect.Type) []string {
	var all []string
	for k := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(k).Tag.Get("key"), ",")
		if options == "squash" {
			all = append(all, keys(t.Field(k).Type)...)
		} else if name != "" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}
