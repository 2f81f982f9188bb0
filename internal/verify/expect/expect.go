// Package expect compares what a test gets with what it wants, and goes on.
package expect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Equal complains if got differs. format says what was compared; "" says nothing.
func Equal[T comparable](t testing.TB, got, want T, format string, about ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s%v, want %v", Subject(format, about...), got, want)
	}
}

// Slice is Equal of slices.
func Slice[S ~[]E, E comparable](t testing.TB, got, want S, format string, about ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s%v, want %v", Subject(format, about...), got, want)
	}
}

// Says complains of each part that a text lacks.
func Says(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// Subject is the beginning of a message.
func Subject(format string, about ...any) string {
	if format == "" {
		return ""
	}
	return fmt.Sprintf(format, about...) + ": "
}

// NoError complains of an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Error complains unless the error is of this kind and its message has all parts.
func Error(t testing.TB, err, kind error, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("the error is %v, want %v", err, kind)
		return
	}
	Says(t, err.Error(), parts...)
}

// Works takes the results of a call that must work: expect.Works(os.Stat(path))(t).
func Works[T any](_ T, err error) func(t testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		NoError(t, err)
	}
}

// Gives takes the results of a call that must give a value, and no error: expect.Gives(c.Recover())(t, 2). about says
// what was asked for, where that is not the same each time.
func Gives[T comparable](got T, err error) func(t testing.TB, want T, about ...any) {
	return func(t testing.TB, want T, about ...any) {
		t.Helper()
		if got != want || err != nil {
			t.Error(append(about, fmt.Sprintf("%v, %v, want %v", got, err, want))...)
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
