// Package expect compares what a test gets with what it wants, and goes on.
package expect

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Equal complains if got differs. about: a format and its values, which say what was compared.
func Equal[T comparable](t testing.TB, got, want T, about ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s%v, want %v", Subject(about), got, want)
	}
}

// Subject is the beginning of a message.
func Subject(about []any) string {
	if len(about) == 0 {
		return ""
	}
	return fmt.Sprintf(about[0].(string)+": ", about[1:]...)
}

// Error complains unless the error is of this kind and its message has all parts.
func Error(t testing.TB, err, kind error, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("the error is %v, want %v", err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

// Fails takes the results of a call that must fail: expect.Fails(os.Open(path))(t, fs.ErrNotExist).
func Fails[T any](_ T, err error) func(t testing.TB, kind error, parts ...string) {
	return func(t testing.TB, kind error, parts ...string) {
		t.Helper()
		Error(t, err, kind, parts...)
	}
}
