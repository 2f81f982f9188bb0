package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/server/config"
	"github.com/stocached/stocached/shm"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const good = `
caches:
  - name: pets
    source: {kind: raw, path: pets.bin, sample_bytes: 10}
    size: 8GiB
    policy: first-indices
    parallel: 7
  - name: all-of-it
    source: {kind: raw, path: /data/all.bin, sample_bytes: 10}
  - {name: shards, source: {kind: tar, path: train.tar, index: indexes}}
  - {name: bare, source: {kind: tar, path: train.tar, index: none}}
  - {name: listed, source: {kind: dir, path: pets, manifest: list.txt}}
  - {name: beside, source: {kind: tar, path: train.tar, index: beside}}
sockets: {dir: /run/here}
`

func TestLoad(t *testing.T) {
	path := write(t, good)
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	o := c.Options(nil)
	if a, b := o.Caches[2].Source["index"],
		o.Caches[3].Source["index"]; a != filepath.Join(filepath.Dir(path), "indexes") || b != "none" {
		t.Errorf("indexes %v and %v", a, b)
	}
	if kept := o.Caches[5].Source["index"]; kept != "beside" {
		t.Errorf("index %v", kept)
	}
	if len(o.Caches) != 6 || o.SocketsDir != "/run/here" {
		t.Fatalf("%+v", o)
	}
	if got := o.Caches[4].Source["manifest"]; got != filepath.Join(filepath.Dir(path), "list.txt") {
		t.Errorf("manifest %v", got)
	}
	if a := o.Caches[0]; a.Name != "pets" || a.Size != 8<<30 || a.Policy != shm.PolicyFirstIndices ||
		a.Parallel != 7 || a.Source["path"] != filepath.Join(filepath.Dir(path), "pets.bin") {
		t.Errorf("%+v", a)
	}
	if a := o.Caches[1]; a.Size != 0 || a.Policy != shm.PolicyFirstCome || a.Source["path"] != "/data/all.bin" ||
		a.Source["sample_bytes"] != 10 {
		t.Errorf("%+v", a)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("STOCACHED_SOCKETS_DIR", "/run/there")
	t.Setenv("STOCACHED_LOG_LEVEL", "debug")
	c, err := config.Load(write(t, good))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range c.Settings() {
		got[s.Key] = s.Value + " from " + s.From
	}
	for key, want := range map[string]string{"sockets.dir": "/run/there from STOCACHED_SOCKETS_DIR",
		"log.level": "debug from STOCACHED_LOG_LEVEL", "log.format": "text from default"} {
		if got[key] != want {
			t.Errorf("%s: %s, want %s", key, got[key], want)
		}
	}
	t.Setenv("STOCACHED_SOCKETS_DIR", "")
	t.Setenv("STOCACHED_LOG_LEVEL", "loud")
	if _, err := config.Load(write(t, good)); !errors.Is(err, config.ErrInvalid) ||
		!strings.Contains(err.Error(), `log.level: "loud"`) {
		t.Error(err)
	}
}

// Each invalid file has its message, with the key.
func TestRefuses(t *testing.T) {
	one := "caches: [{name: pets, source: {kind: raw}}]\n"
	for text, want := range map[string][]string{
		"":                                      {"caches: a server needs"},
		"caches: 3":                             {"caches"},
		"caches: [{name: pets}]":                {"caches[0].source: a cache of a server needs one"},
		"caches: [{source: {kind: raw}}]":       {`caches[0].name: `, `""`},
		one + "cashes: 1":                       {"cashes: there is no such key"},
		one + "sockets: {folder: x}":            {"sockets.folder: there is no such key"},
		one + "log: {format: xml, level: loud}": {`log.format: "xml" is neither`, `log.level: "loud" is none`},
		one + "log: {level: 3}":                 {"log.level"},
		"caches: [{name: pets, sise: 3, source: {kind: raw}}]":                                    {"caches[0].sise: there is no such key"},
		"caches: [{name: pets, tiers: [], read_ahead: {size: 64MiB}, source: {kind: raw}}]":       {"caches[0].read_ahead: there is no such key; it belongs under source"},
		"caches: [{name: pets, size: big, source: {kind: raw}}]":                                  {`"big" is not a size`},
		"caches: [{name: pets, size: -1, source: {kind: raw}}]":                                   {"a size of -1 bytes"},
		"caches: [{name: pets, size: 0B, source: {kind: raw}}]":                                   {"a size of 0; write all"},
		"caches: [{name: pets, size: [1], source: {kind: raw}}]":                                  {"size"},
		"caches: [{name: pets, parallel: 33, source: {kind: raw}}]":                               {"caches[0].parallel: 33 reads at a time are not in 1..32"},
		"caches: [{name: pets, parallel: many, source: {kind: raw}}]":                             {"parallel"},
		"caches: [{name: pets, policy: dearest, source: {kind: raw}}]":                            {`caches[0].policy: "dearest" is not one of first-come,`},
		"caches: [{name: pets, source: {kind: raw}}, {name: pets, source: {kind: raw}}]":          {"caches[1].name: pets is the name of caches[0] already"},
		"caches: [{name: ../x, source: {kind: raw}}, {name: y, sourse: 1, source: {kind: raw}}]":  {"caches[1].sourse: there is no such key"},
		"caches: [{name: ../x, source: {kind: raw}}, {name: y, policy: no, source: {kind: raw}}]": {`"../x"`, `"no"`},
		"caches: [\n":                  {"yaml"},
		"caches: [{name: a, name: b}]": {"already"},
	} {
		path := write(t, text)
		_, err := config.Load(path)
		if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %v; want %q", text, err, w)
			}
		}
	}
	if _, err := config.Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// The example is valid, and has every key.
func TestExample(t *testing.T) {
	path := filepath.Join("..", "..", "config.example.yaml")
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Caches) != 1 || c.Caches[0].Size != 8<<30 {
		t.Errorf("%+v", c)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range config.Keys() {
		if !strings.Contains(string(text), "\n"+key+":") && !strings.Contains(string(text), " "+key+":") {
			t.Errorf("the example says nothing of %s", key)
		}
	}
}

// Ensure that an address is no path below the folder of the file.
func TestAddressIsNoPath(t *testing.T) {
	for _, address := range []string{"s3://bucket/train-{0..3}.tar", "https://host/x.npy"} {
		c, err := config.Load(write(t, `caches: [{name: a, source: {kind: tar, path: "`+address+`"}}]`))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Options(nil).Caches[0].Source["path"]; got != address {
			t.Errorf("%v, want %s", got, address)
		}
	}
}
