// Package expect compares what a test gets with what it wants, and goes on.
package expect

import (
	"fmt"
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
