package decode_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
)

// listed are counts of kinds, as texts.
func listed(kinds []decode.Kind) (counts map[string]int) {
	counts = map[string]int{}
	for _, k := range kinds {
		counts[k.Name] = k.Files
	}
	return counts
}

// Ensure that the server and the helper name the same kind of a file, also of one that is too short for it, and that
// only those that the helper does not take are ErrOther.
func TestKinds(t *testing.T) {
	var names []string
	var files [][]byte
	add := func(name string, file []byte) { names, files = append(names, name), append(files, file) }
	for _, b := range decode.Beginnings {
		begin := b.Bytes
		add(b.Kind, []byte(begin))
		add(b.Kind, []byte(strings.ReplaceAll(b.Bytes, "?", "\x00")+strings.Repeat("x", 1000)))
		add("unknown", []byte(begin[:len(begin)-1]))
		add("unknown", []byte(begin[:len(begin)-1]+"~"))
	}
	add("unknown", nil)
	for name, kind := range map[string]string{"420.jpg": "JPEG", "progressive.jpg": "JPEG", "one.png": "PNG",
		"lossy.webp": "WebP", "lossless-alpha.webp": "WebP", "moving.webp": "WebP", "still.gif": "GIF"} {
		add(kind, read(t, name))
	}
	m := newMemory(t, fieldsOf("data", "name"), slices.Repeat([][]byte{nil}, len(files))...)
	schema := m.info.Schema
	for k, file := range files {
		sample := make([]byte, len(file)+1000)
		spans, n, err := schema.Begin(sample, [][]uint64{{uint64(len(file))}, {0}})
		fatal.If(t, err)
		copy(sample[spans[0].Start:spans[0].End], file)
		m.files[k] = sample[:n]
	}
	settings := map[string]any{"resize": []int{4, 4}, "field": "data"}
	for _, store := range []string{"decoded", "encoded", "auto"} {
		settings["store"] = store
		s := open(t, m, settings)
		want := map[string]int{}
		for k, name := range names {
			want[name]++
			kinds := decode.KindsOf(s)
			_, err := readOne(kinds, k)
			found := kinds.List()
			if len(found) != 1 || found[0] != (decode.Kind{Name: name, Files: 1, First: k, Where: m.Where(k)}) {
				t.Fatalf("%s: file %d, a %s: found %v, %v", store, k, name, found, err)
			}
			if other := found[0].Other() && store != "encoded"; other != source.IsOtherKind(err) {
				t.Errorf("%s: %s: %v", store, name, err)
			}
			if store == "encoded" {
				continue
			}
			said := ""
			if err != nil {
				said = err.Error()
			}
			if strings.Contains(said, " "+name+" file, not a JPEG") != found[0].Other() ||
				strings.Contains(said, "decode: not a JPEG") != (name == "unknown") {
				t.Errorf("%s: %q: the helper says %q", name, files[k][:min(16, len(files[k]))], said)
			}
		}
		fatal.Equal(t, len(want), 12, "kinds %v", want)
	}
	if decode.KindsOf(m) != nil {
		t.Error("a source without decode counts")
	}
}

// Ensure that many readers count each file once.
func TestKindsOfManyReaders(t *testing.T) {
	const each, readers = 3000, 16
	s := open(t, newMemory(t, fieldsOf("data"), []byte("GIF87a"), []byte("BM"), []byte("GIF89a")),
		map[string]any{"resize": []int{4, 4}, "store": "encoded"})
	kinds := decode.KindsOf(s)
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for range each {
				for i := range 3 {
					expect.Works(readOne(kinds, 2-i))(t)
				}
			}
		})
	}
	all.Wait()
	want := []decode.Kind{{Name: "GIF", Files: 2 * each * readers, First: 0, Where: "file 0"},
		{Name: "BMP", Files: each * readers, First: 1, Where: "file 1"}}
	expect.Slice(t, kinds.List(), want, "")
}

// waiting is a source whose reads take time, and that remembers them.
type waiting struct {
	*memory
	takes time.Duration
	mu    sync.Mutex
	asked []int
}

func (s *waiting) Read(ctx context.Context, i int, dst []byte) (int, error) {
	s.mu.Lock()
	s.asked = append(s.asked, i)
	s.mu.Unlock()
	select {
	case <-time.After(s.takes):
		return s.memory.Read(ctx, i, dst)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Ensure that a look reads few files that are spread over the source, or all of a small one, and ends in time.
func TestLook(t *testing.T) {
	settings := map[string]any{"resize": []int{4, 4}, "store": "encoded"}
	for _, c := range []struct {
		samples, readers, files int
		takes                   time.Duration
	}{{3, 8, 3, 0}, {256, 3, 256, time.Millisecond}, {100_000, 8, 256, time.Millisecond}, {100_000, 4, 16, 1100 * time.Millisecond},
		{1000, 2, 0, time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			all := slices.Repeat([][]byte{[]byte("\xff\xd8\xff")}, c.samples)
			all[0] = []byte("GIF8")
			inner := &waiting{memory: newMemory(t, fieldsOf("data"), all...), takes: c.takes}
			s := fatal.Value(decode.New(inner, settings))(t)
			began := time.Now()
			l := decode.KindsOf(s).Look(t.Context(), c.readers)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%+v: %v", c, took)
			}
			want := map[string]int{"GIF": 1, "JPEG": c.files - 1}
			if c.files == 0 {
				want = map[string]int{}
			}
			got := listed(l.Kinds)
			if l.Files != c.files || l.Samples != c.samples || l.Failed != 0 || l.Err != nil || len(got) != len(want) ||
				got["GIF"] != want["GIF"] || got["JPEG"] != want["JPEG"] {
				t.Errorf("%+v: %+v", c, l)
			}
			slices.Sort(inner.asked)
			if len(slices.Compact(slices.Clone(inner.asked))) != len(inner.asked) {
				t.Errorf("%+v: some are read twice", c)
			}
			inner.asked = append(inner.asked, c.samples)
			for k := 1; k < len(inner.asked) && c.files > 3; k++ {
				if gap := inner.asked[k] - inner.asked[k-1]; gap > 2*max(c.samples/len(inner.asked), 1) {
					t.Errorf("%+v: of %d files none is read in a gap of %d", c, c.samples, gap)
				}
			}
		})
	}
}

// Ensure that a look counts the files that cannot be read, and says why.
func TestLookAtDamagedFiles(t *testing.T) {
	s := open(t, newMemory(t, fieldsOf("data"), read(t, "one.png"), []byte("\xff\xd8\xff"), []byte("GIF8"), nil), map[string]any{
		"resize": []int{4, 4}})
	l := decode.KindsOf(s).Look(t.Context(), 1)
	if l.Files != 4 || l.Failed != 2 || !errors.Is(l.Err, source.ErrDecode) || !strings.Contains(l.Err.Error(), "file 1") {
		t.Errorf("%+v", l)
	}
}
