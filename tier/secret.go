package tier

import "log/slog"

// Secret is a text that is never printed.
type Secret string

const hidden = "(hidden)"

// String hides the text, as the next three do.
func (s Secret) String() string { return hidden }

// GoString is for %#v.
func (s Secret) GoString() string { return hidden }

// MarshalText is for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue is for logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
