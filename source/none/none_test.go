package none_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/none"
)

func field(name string, shape []any, dtype string) map[string]any {
	return map[string]any{"name": name, "shape": shape, "dtype": dtype}
}

func settings() source.Settings {
	return source.Settings{"samples": 10, "fingerprint": "pets-1", "fields": []any{
		field("image", []any{3, 4, 5}, "uint8"), map[string]any{"name": "label", "dtype": "int64"}}}
}

func TestProgramsHaveTheSamples(t *testing.T) {
	s := fatal.Value(none.Kind.Open(context.Background(), settings()))(t)
	defer s.Close()
	info := s.Info()
	if info.Samples != 10 || info.Fingerprint != "pets-1" || !info.Programs || info.Schema.SampleBytes != 72 ||
		len(info.Schema.Fields) != 2 || info.Schema.Fields[1].Offset != 64 {
		t.Errorf("it is %+v", info)
	}
	expect.Gives(s.Size(9))(t, 72)
	for i, want := range map[int]error{0: source.ErrLoad, 9: source.ErrLoad, 10: source.ErrIndex, -1: source.ErrIndex} {
		if _, err := s.Read(context.Background(), i, make([]byte, 72)); !errors.Is(err, want) {
			t.Errorf("sample %d: %v", i, err)
		}
	}
	expect.Fails(s.Read(context.Background(), 0, make([]byte, 71)))(t, source.ErrShort)
}

// Ensure that samples may differ in size, and that only then the largest counts.
func TestSamplesOfAnySize(t *testing.T) {
	of := settings()
	of["fields"] = []any{field("image", []any{"any", "any", 3}, "uint8"), field("file", []any{"any"}, "bytes")}
	of["sample_bytes"] = "1KiB"
	s := fatal.Value(none.Kind.Open(context.Background(), of))(t)
	defer s.Close()
	schema := s.Info().Schema
	_, most, err := schema.Place([][]uint64{{17, 20, 3}, {4}})
	if err != nil || !schema.Variable || uint64(most) > schema.SampleBytes {
		t.Errorf("%+v, %d, %v", schema, most, err)
	}
	if n, err := s.Size(9); uint64(n) != schema.SampleBytes || err != nil {
		t.Error(n, err)
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]source.Settings{
		"samples: 0":                 {"samples": 0},
		"fingerprint: it is missing": {"fingerprint": ""},
		"fingerprint: 65 bytes":      {"fingerprint": strings.Repeat("x", 65)},
		"fields: they are missing":   {"fields": []any{}},
		"fields[0].dtype":            {"fields": []any{field("x", []any{2}, "uint7")}},
		"fields[0].shape: [0]":       {"fields": []any{field("x", []any{0}, "uint8")}},
		"shape[0]":                   {"fields": []any{field("x", []any{-1}, "uint8")}},
		`"some"; a dimension is a number from 1 on, or any`: {"fields": []any{field("x", []any{"some"}, "uint8")}},
		"sample_bytes: 0; give the bytes of the largest":    {"fields": []any{field("x", []any{"any", 3}, "uint8")}},
		"sample_bytes: 99; give":                            {"sample_bytes": 99},
		"fields: ":                                          {"fields": []any{field("x", []any{1}, "uint8"), field("x", []any{1}, "uint8")}},
		`unknown key "path"; known are: `:                   {"path": "x"},
	} {
		s := settings()
		for key, value := range change {
			s[key] = value
		}
		if _, err := none.Kind.Open(context.Background(), s); !errors.Is(err, source.ErrInvalid) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", change, err, want)
		}
	}
}
