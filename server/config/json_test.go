package config_test

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/server/config"
)

// Ensure that a cache means the same in the file and as JSON.
func TestParseCache(t *testing.T) {
	path := write(t, `
caches:
  - name: pets
    source: {kind: raw, path: pets.bin, sample_bytes: 10, limits: {concurrency: 16, latency: 8ms, bytes_per_second: 1.5MB}, shape: [3, 4]}
    decode: {resize: [256, 256], layout: chw}
    size: 8GiB
    policy: first-indices
    parallel: 7
    read_timeout: 90s
    remove_unused: 1.5h
    dir: /dev/shm/x
`)
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := c.Options(nil).Caches[0]
	if want.ReadTimeout != 90*time.Second || want.RemoveUnused != 90*time.Minute {
		t.Errorf("%+v", want)
	}
	got, err := c.ParseCache([]byte(`{"name": "pets", "source": {"kind": "raw", "path": "pets.bin", "sample_bytes": 10, "shape": [3, 4],
		"limits": {"concurrency": 16, "latency": "8ms", "bytes_per_second": "1.5MB"}}, "decode": {"resize": [256, 256], "layout": "chw"}, "size": "8GiB", "policy": "first-indices", "parallel": 7,
		"read_timeout": "90s", "remove_unused": "1.5h", "dir": "/dev/shm/x"}`))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v\n%+v", err, got, want)
	}
	if got.Source["path"] != filepath.Join(filepath.Dir(path), "pets.bin") {
		t.Error(got.Source["path"])
	}
	got, err = c.ParseCache([]byte(`{"name": "x", "size": 4294967296, "source": {"kind": "raw", "ratio": 0.5, "deep": [{"a": null}, true]}}`))
	if err != nil || got.Size != 4<<30 || got.Source["ratio"] != 0.5 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Ensure that JSON is refused like the file, with all complaints at once.
func TestParseCacheRefuses(t *testing.T) {
	for text, wants := range map[string][]string{
		``:               {"not a JSON object"},
		`3`:              {"not a JSON object"},
		`{"name": "x"}}`: {"something follows"},
		`{"name": "x", "source": {"a": 1, "a": 2}}`: {`the key "a" comes twice`},
		`{"Name": "x", "source": {"a": 1}}`:         {"Name: there is no such key"},
		`{"name": "x", "sise": null, "soarce": {}, "source": {"a": 1}}`: {"sise: there is no such key",
			"soarce: there is no such key"},
		`{"name": "x", "parallel": 1.5, "size": "big", "source": {"a": 1}}`: {"1.5 is not a whole number",
			`"big" is not a size`},
		`{"name": "x", "parallel": "many", "source": {"a": 1}}`:       {"parallel: a whole number is wanted, and there is a text"},
		`{"name": "x", "remove_unused": "never", "source": {"a": 1}}`: {`"never" is no time`},
		`{"name": "x", "remove_unused": "-1h", "source": {"a": 1}}`:   {"remove_unused: -1h0m0s is less than 1s"},
		`{"name": "../x", "policy": "dearest"}`: {`"../x"`, `"dearest" is not one of`,
			"source: a cache of a server needs one"},
		`{"name": "x", "source": ` + strings.Repeat("[", 1<<15) + `}`:        {"not a JSON object"},
		`{"name": "x", "source": {"a": 1e999}}`:                              {"not a JSON object"},
		"{\"name\": \"x\", \"source\": {\"a\": \"\xff\xfe\"}, \"size\": []}": {"size"},
	} {
		_, err := new(config.Config).ParseCache([]byte(text))
		if !errors.Is(err, config.ErrInvalid) || strings.Contains(err.Error(), "config.") {
			t.Errorf("%.80q: %v", text, err)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%.80q: %.300v; want %q", text, err, want)
			}
		}
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add([]byte(`{"name": "x", "size": "8GiB", "source": {"kind": "raw", "list": [1, 2.5, {"deep": null}]}, "decode": {"resize": [1, 2]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := new(config.Config).ParseCache(body)
		if err == nil && (o.Name == "" || len(o.Source) == 0) {
			t.Errorf("%+v", o)
		}
	})
}
