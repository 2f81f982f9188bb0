package decode_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/dir"
	"github.com/stocached/stocached/source/sourcetest"
)

// Ensure that the rule gives the times and the choices of source/testdata/stores.json, which the tests of Python read too.
func TestStoreRule(t *testing.T) {
	type reads struct {
		decode.Measured
		Reads *float64 `json:"reads"` // nil: infinite
	}
	var said struct {
		Measured map[string]reads
		Cases    []struct {
			decode.Epochs
			Measured            string
			Size                uint64
			Workers, Processors int
			Costliest           bool
			Store               string
		}
	}
	text := fatal.Value(os.ReadFile("../testdata/stores.json"))(t)
	if err := json.Unmarshal(text, &said); err != nil || len(said.Cases) < 15 {
		t.Fatal(len(said.Cases), err)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }
	for _, c := range said.Cases {
		m := said.Measured[c.Measured].Measured
		m.Reads = math.Inf(1)
		if r := said.Measured[c.Measured].Reads; r != nil {
			m.Reads = *r
		}
		terms := decode.Terms{Size: c.Size, Readers: c.Workers, Decoders: c.Workers, Processors: c.Processors,
			Costliest: c.Costliest}
		e := m.Epochs(terms)
		if !near(e.Decoded, c.Decoded) || !near(e.Encoded, c.Encoded) || !near(e.DecodedPart, c.DecodedPart) ||
			!near(e.EncodedPart, c.EncodedPart) {
			t.Errorf("%+v: %+v", c, e)
		}
		if encoded, why := m.Choose(terms); encoded != (c.Store == "encoded") || strings.Contains(why, "\n") {
			t.Errorf("%+v: encoded is %v, because %s", c, encoded, why)
		}
	}
}

// with returns small settings with a store.
func with(store string) map[string]any {
	return map[string]any{"resize": []int{6, 8}, "store": store}
}

// Ensure that the encoded form has the bytes of the files, the fields of the decoded form in its order, and another
// fingerprint than each other form.
func TestEncodedForm(t *testing.T) {
	files := [][]byte{read(t, "rgb.jpg"), read(t, "rgb.png"), []byte("no picture"), {}}
	label := shm.Field{Name: "label", DType: shm.Int64}
	text := shm.Field{Name: "text", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}
	data := shm.Field{Name: "jpg", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}
	for name, fields := range map[string][]shm.Field{"alone": {data}, "first": {data, label}, "last": {label, data},
		"beside others": {text, label, data}} {
		t.Run(name, func(t *testing.T) {
			schema := fatal.Value(shm.NewSchema(fields, true))(t)
			var samples [][]byte
			for k, file := range files {
				var parts []shm.Part
				for _, f := range fields {
					part := shm.Part{Dims: []uint64{uint64(len(file))}, Data: file}
					if f.Name == "label" {
						part = shm.Part{Data: []byte{byte(k), 0, 0, 0, 0, 0, 0, 0}}
					} else if f.Name == "text" {
						part = shm.Part{Dims: []uint64{100}, Data: make([]byte, 100)}
					}
					parts = append(parts, part)
				}
				sample := fatal.Value(schema.Join(parts))(t)
				samples = append(samples, sample)
			}
			settings := with("encoded")
			settings["field"] = "jpg"
			s := open(t, newMemory(t, fields, samples...), settings)
			info := s.Info()
			want := "height=6 width=8 fit=stretch layout=chw max_pixels=67108864 bad_samples=error"
			if info.Decode != want || !info.Schema.Variable || info.Schema.Fields[0].Name != "image" ||
				info.Schema.Fields[0].DType != shm.Uint8 || len(info.Schema.Fields) != min(len(fields), 2) {
				t.Fatalf("%+v", info)
			}
			for k, file := range files {
				size := fatal.Value(s.Size(k))(t)
				sample := bytes.Repeat([]byte{0xa5}, size) // as of another sample
				n, err := s.Read(context.Background(), k, sample)
				if err != nil || n > size {
					t.Fatal(n, size, err)
				}
				parts := fatal.Value(info.Schema.Split(sample[:n]))(t)
				if !bytes.Equal(parts[0].Data, file) || len(parts) > 1 && parts[1].Data[0] != byte(k) {
					t.Errorf("sample %d: %v", k, parts)
				}
			}
			expect.Fails(s.Read(context.Background(), 0, nil))(t, source.ErrShort)
			expect.Fails(s.Read(context.Background(), 9, make([]byte, 9999)))(t, source.ErrIndex)
		})
	}
	inner := newMemory(t, fieldsOf("data"), files...)
	seen := map[string]string{}
	for name, settings := range map[string]map[string]any{"decoded": with("decoded"), "encoded": with("encoded"),
		"pad":    {"resize": []int{6, 8}, "store": "encoded", "fit": "pad"},
		"skip":   {"resize": []int{6, 8}, "store": "encoded", "bad_samples": "skip"},
		"pixels": {"resize": []int{6, 8}, "store": "encoded", "max_pixels": 100}} {
		print := open(t, inner, settings).Info().Fingerprint
		expect.Equal(t, seen[print], "", "the fingerprint of %s", name)
		seen[print] = name
	}
	if print := open(t, inner, small).Info().Fingerprint; seen[print] != "decoded" {
		t.Errorf("the default is not decoded")
	}
}

// Ensure that files of the store encoded pass the suite of all sources, with labels and without.
func TestEncodedSuite(t *testing.T) {
	for _, labels := range []string{"none", "folders"} {
		t.Run("labels "+labels, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
				folder := t.TempDir()
				f := sourcetest.Fixture{Files: []string{filepath.Join(folder, "a", "0.png")}}
				f.Open = func(t *testing.T) (source.Source, error) {
					inner, err := dir.Kind.Open(context.Background(), source.Settings{"path": folder, "labels": labels})
					if err != nil {
						return nil, err
					}
					return decode.New(inner, with("encoded"))
				}
				for k, from := range []string{"same.png", "small.jpg", "moving.webp"} {
					path := filepath.Join(folder, string(rune('a'+k)), "0.png") // equal names: the content tells
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
						os.WriteFile(path, read(t, from), 0o600)); err != nil {
						t.Fatal(err)
					}
				}
				s := fatal.Value(f.Open(t))(t)
				defer s.Close()
				schema := s.Info().Schema
				for k, from := range []string{"same.png", "small.jpg", "moving.webp"} {
					file := read(t, from)
					parts := []shm.Part{{Dims: []uint64{uint64(len(file))}, Data: file},
						{Data: []byte{byte(k), 0, 0, 0, 0, 0, 0, 0}}}
					sample := fatal.Value(schema.Join(parts[:len(schema.Fields)]))(t)
					f.Want = append(f.Want, sample)
				}
				return f
			})
		})
	}
}

// slow is a source whose reads wait.
type slow struct {
	*memory
	wait time.Duration
}

func (s slow) Read(ctx context.Context, i int, dst []byte) (int, error) {
	time.Sleep(s.wait)
	return s.memory.Read(ctx, i, dst)
}

// Ensure that slow and fast sources are measured right, and that the choice follows from it. The chosen form
// reads. A source without a picture is measured, too.
func TestAuto(t *testing.T) {
	helper(t)
	file := read(t, "500x375.jpg")
	many := slices.Repeat([][]byte{file}, 200)
	decodes := 0.0 // seconds; the race detector makes them ten times longer
	for _, encoded := range []bool{false, true} {
		name, wait := "fast", time.Duration(0)
		if encoded {
			name, wait = "slow", max(20*time.Millisecond, time.Duration(3*decodes*float64(time.Second)))
		}
		t.Run(name, func(t *testing.T) {
			var both *decode.Both
			var m decode.Measured
			var ok bool
			for range 5 {
				s, err := decode.New(slow{newMemory(t, fieldsOf("data"), many...), wait},
					map[string]any{"resize": []int{224, 224}, "store": "auto"})
				fatal.If(t, err)
				both = s.(*decode.Both)
				m, ok = both.Measure(context.Background(), 2)
				if len(m.Costs) >= 3 && (!encoded || m.Read > 2*m.Decode) {
					break
				}
				if encoded {
					wait = time.Duration(4 * m.Decode * float64(time.Second)) // the machine has become busy
				}
				fatal.If(t, s.Close())
			}
			if !ok || m.Samples != 200 || m.DecodedBytes != 150528 || m.Decode < 1e-4 || m.Read < wait.Seconds()/2 ||
				int(m.EncodedBytes) != (len(file)+63)/64*64 || len(m.Costs) < 3 {
				t.Fatalf("%+v %v", m, ok)
			}
			decodes = m.Decode
			// A source in memory seems to wait when other processes take the processors.
			if waits := !math.IsInf(m.Reads, 1); encoded && !(waits && m.Reads*wait.Seconds() <= 2.1) ||
				!encoded && m.Reads < 200 {
				t.Errorf("%v reads a second", m.Reads)
			}
			terms := decode.TermsOf(4_300_000+uint64(200*m.DecodedBytes/2), 2, false)
			chosen, why := m.Choose(terms)
			fatal.Equal(t, chosen, encoded, "encoded: %s", why)
			if told := both.Explain(context.Background(), 2); strings.Contains(told, "decoded at any size") == encoded {
				t.Errorf("explained: %s", told)
			}
			taken := both.Take(encoded, why)
			defer taken.Close()
			notes := taken.Info().Notes
			if n := notes[len(notes)-1]; n.Name != decode.ReasonNote || n.Text != why {
				t.Error(notes)
			}
			sample, err := readOne(taken, 7)
			if err != nil || encoded != bytes.Equal(sample, file) {
				t.Errorf("%d bytes, %v", len(sample), err)
			}
		})
	}
	s := fatal.Value(decode.New(newMemory(t, fieldsOf("data"), []byte("no picture"), nil), with("auto")))(t)
	defer s.Close()
	if m, ok := s.(*decode.Both).Measure(context.Background(), 4); ok {
		t.Errorf("measured %+v", m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	hangs := fatal.Value(decode.New(slow{newMemory(t, fieldsOf("data"), many...), 3 * time.Second}, with("auto")))(t)
	if _, ok := hangs.(*decode.Both).Measure(ctx, 4); ok {
		t.Error("measured reads that hang")
	}
	hangs.(*decode.Both).Take(true, "")
}
