// Package fatal ends tests at errors that they do not expect.
package fatal

import (
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
)

// If ends the test if there is an error.
func If(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value takes the results of a call: fatal.Value(os.Open(path))(t) is the file, or ends the test at
// the error.
func Value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		If(t, err)
		return v
	}
}

// Equal is expect.Equal that ends the test.
func Equal[T comparable](t testing.TB, got, want T, format string, about ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s%v, want %v", expect.Subject(format, about...), got, want)
	}
}
