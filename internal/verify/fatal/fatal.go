// Package fatal ends tests at errors that they do not expect.
package fatal

import (
	"fmt"
	"os"
	"testing"
	"time"

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

// Gives is expect.Gives that ends the test.
func Gives[T comparable](got T, err error) func(t testing.TB, want T, about ...any) {
	return func(t testing.TB, want T, about ...any) {
		t.Helper()
		if got != want || err != nil {
			t.Fatal(append(about, fmt.Sprintf("%v, %v, want %v", got, err, want))...)
		}
	}
}

// Equal is expect.Equal that ends the test.
func Equal[T comparable](t testing.TB, got, want T, format string, about ...any) {
	t.Helper()
	if got != want {
		t.Fatalf("%s%v, want %v", expect.Subject(format, about...), got, want)
	}
}

// Until waits until something holds, and ends the test if it does not for minutes.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Privileged ends a test that lacks root or other rights. With STOCACHED_TEST_ALL=1 it fails, so that the gap is visible;
// `go test -v` lists it.
func Privileged(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil && os.Getenv("STOCACHED_TEST_ALL") != "" {
		t.Fatalf("%s: %v, and STOCACHED_TEST_ALL asks for every test", what, err)
	}
	if err != nil {
		t.Skipf("NOT TESTED HERE: %s: %v", what, err)
	}
}
