package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server/config"
	"github.com/stocached/stocached/shm"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
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
  - {name: bucket, source: {kind: tar, path: "s3://bucket/train-{0..3}.tar"}}
  - {name: web, source: {kind: npy, path: "https://host/x.npy"}}
sockets: {dir: /run/here}
`

func TestLoad(t *testing.T) {
	path := write(t, good)
	c := fatal.Value(config.Load(path))(t)
	o := c.Options(nil)
	if a, b := o.Caches[2].Source["index"],
		o.Caches[3].Source["index"]; a != filepath.Join(filepath.Dir(path), "indexes") || b != "none" {
		t.Errorf("indexes %v and %v", a, b)
	}
	expect.Equal(t, o.Caches[5].Source["index"], "beside", "index")
	if len(o.Caches) != 8 || o.SocketsDir != "/run/here" {
		t.Fatalf("%+v", o)
	}
	if a, b := o.Caches[6].Source["path"], o.Caches[7].Source["path"]; a != "s3://bucket/train-{0..3}.tar" || b != "https://host/x.npy" {
		t.Errorf("addresses %v and %v", a, b)
	}
	expect.Equal(t, o.Caches[4].Source["manifest"], any(filepath.Join(filepath.Dir(path), "list.txt")), "manifest")
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
	t.Setenv("STOCACHED_WEB_LISTEN", "127.0.0.1:1234")
	t.Setenv("STOCACHED_LOG_LEVEL", "debug")
	c := fatal.Value(config.Load(write(t, good)))(t)
	got := map[string]string{}
	for _, s := range c.Settings() {
		got[s.Key] = s.Value + " from " + s.From
	}
	for key, want := range map[string]string{"web.listen": "127.0.0.1:1234 from STOCACHED_WEB_LISTEN",
		"log.level": "debug from STOCACHED_LOG_LEVEL", "log.format": "text from default"} {
		expect.Equal(t, got[key], want, "%s", key)
	}
	t.Setenv("STOCACHED_LOG_LEVEL", "loud")
	if _, err := config.Load(write(t, good)); !errors.Is(err, config.ErrInvalid) ||
		!strings.Contains(err.Error(), `log.level: "loud"`) {
		t.Error(err)
	}
}

// Ensure that the folder of the sockets is that of the file, relative to the folder of the file. The variable tells
// clients where to look, and counts only if the file names no folder.
func TestSocketsDir(t *testing.T) {
	caches := "caches: [{name: pets, source: {kind: none}}]\n"
	named, open := write(t, caches+"sockets: {dir: run}\n"), write(t, caches)
	for _, c := range []struct{ path, variable, want, from string }{
		{named, "", filepath.Join(filepath.Dir(named), "run"), "file"},
		{named, "there", filepath.Join(filepath.Dir(named), "run"), "file"},
		{open, "there", "there", "STOCACHED_SOCKETS_DIR"},
		{open, "", control.SocketsDir(), "default"},
	} {
		t.Setenv("STOCACHED_SOCKETS_DIR", c.variable)
		loaded := fatal.Value(config.Load(c.path))(t)
		if got := loaded.SocketsDir(); c.want != got {
			t.Errorf("%+v: %s", c, got)
		}
		if !slices.Contains(loaded.Settings(), config.Setting{Key: "sockets.dir", Value: c.want, From: c.from}) {
			t.Errorf("%+v: %v", c, loaded.Settings())
		}
	}
}

// Ensure that the keys of caches, sources and tiers are listed with their defaults and where they come from, and
// that nothing secret is.
func TestCacheSettings(t *testing.T) {
	path := write(t, `caches:
  - name: pets
    source: {kind: raw, path: "https://me:hush@example.com/x?sig=hush", limits: {concurrency: 3}, also: ["http://a:hush@b/", {token: hush}]}
    tiers:
      - {size: 1GiB, kind: disk, dir: fast}
      - {kind: cluster, addresses: ["127.0.0.1:6379", "redis://me:hush@a:1", "hush@b:1"], password: hush, timeout: 1s, tls: {ca: ca.pem, password: hush}}
  - {name: all, source: {kind: dir, path: x}, decode: {resize: [2, 3]}, size: 1KiB, policy: planned, side_buffer: none, parallel: 9,
    read_timeout: 30s, unnamed: true}
  - {name: far, dir: memory, source: {kind: raw, path: "s3://b/x", remote: {ca: ca.pem}}}
`)
	c := fatal.Value(config.Load(path))(t)
	var got []string
	for _, s := range c.CacheSettings() {
		got = append(got, strings.TrimSpace(s.Key+" "+s.Value+" "+s.From))
	}
	dir := filepath.Dir(path)
	want := []string{"caches[0].name pets file", "caches[0].source.kind raw file", "caches[0].source.also [http://b/, {token: (hidden)}] file",
		"caches[0].source.limits.concurrency 3 file", "caches[0].source.path https://example.com/x file", "caches[0].tiers[0].kind disk file",
		"caches[0].tiers[0].dir " + dir + "/fast file", "caches[0].tiers[0].size 1GiB file", "caches[0].tiers[0].memory 64MiB default",
		"caches[0].tiers[0].policy first-come default", "caches[0].tiers[1].kind cluster file", "caches[0].tiers[1].addresses [127.0.0.1:6379, a:1, b:1] file",
		"caches[0].tiers[1].password (hidden) file", "caches[0].tiers[1].timeout 1s file", "caches[0].tiers[1].tls.ca " + dir + "/ca.pem file",
		"caches[0].tiers[1].tls.password (hidden) file", "caches[0].tiers[1].expire 168h default", "caches[0].tiers[1].lease 10s default",
		"caches[0].tiers[1].memory 64MiB default", "caches[0].size all default", "caches[0].policy first-come default", "caches[0].parallel 4 default",
		"caches[0].read_timeout 1m0s default", "caches[0].remove_unused never default", "caches[0].unnamed false default",
		"caches[0].dir " + shm.DefaultDir() + " default",
		"caches[1].name all file", "caches[1].source.kind dir file", "caches[1].source.path " + dir + "/x file", "caches[1].decode.resize [2, 3] file",
		"caches[1].size 1024 file", "caches[1].policy planned file", "caches[1].side_buffer none file", "caches[1].parallel 9 file",
		"caches[1].read_timeout 30s file", "caches[1].remove_unused never default", "caches[1].unnamed true file",
		"caches[2].name far file", "caches[2].source.kind raw file", "caches[2].source.path s3://b/x file",
		"caches[2].source.remote.ca " + dir + "/ca.pem file", "caches[2].size all default", "caches[2].policy first-come default",
		"caches[2].parallel 4 default", "caches[2].read_timeout 1m0s default", "caches[2].remove_unused never default",
		"caches[2].unnamed false default", "caches[2].dir " + dir + "/memory file"}
	expect.Slice(t, got, want, "")
}

// Ensure that the example is valid, and has every key, but those of single kinds of source. Of options, it says
// what the table of options says.
func TestExample(t *testing.T) {
	path := filepath.Join("..", "..", "config.example.yaml")
	c := fatal.Value(config.Load(path))(t)
	if len(c.Caches) != 1 || c.Caches[0].Size != 8<<30 {
		t.Errorf("%+v", c)
	}
	text := fatal.Value(os.ReadFile(path))(t)
	said, same := strings.ToLower(strings.Join(strings.Fields(strings.ReplaceAll(string(text), "# ", "")), " ")), 0
	for _, field := range reflect.VisibleFields(reflect.TypeFor[config.Cache]()) {
		for _, option := range shm.OptionTable {
			if key := field.Tag.Get("key"); key != option.Name || key == "decode" { // the server makes that option
				continue
			}
			same++
			without, _, _ := strings.Cut(strings.Trim(option.Default, "`"), ";")
			for _, part := range []string{option.Doc, without} {
				if !strings.Contains(said, strings.ToLower(part)) {
					t.Errorf("the example does not say of %s: %s", option.Name, part)
				}
			}
		}
	}
	if same < 3 {
		t.Errorf("%d options are keys", same)
	}
	keys := config.Keys()
	for name, headings := range map[string][]string{"sources": {"### limits", "### retry", "### read_ahead", "## decode"},
		"tiers": {"## The tier `disk`", "## The tier `cluster`"}} {
		spec := fatal.Value(os.ReadFile(filepath.Join("..", "..", "docs", "spec", name+".md")))(t)
		for _, heading := range headings {
			_, section, _ := strings.Cut(string(spec), "\n"+heading+"\n")
			section, _, _ = strings.Cut(section, "\n#")
			found := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1)
			if found == nil {
				t.Errorf("no keys below %s", heading)
			}
			for _, key := range found {
				keys = append(keys, key[1])
			}
		}
	}
	for _, key := range keys {
		if !strings.Contains(string(text), "\n"+key+":") && !strings.Contains(string(text), " "+key+":") &&
			!strings.Contains(string(text), "{"+key+":") {
			t.Errorf("the example says nothing of %s", key)
		}
	}
}
