package cli

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/sourcetest"
)

// Ensure that `source verify` and `serve --check` count pictures of a folder, a tar shard, block files and a bucket by
// what the files have in them, and say what becomes of kinds that the server does not decode.
func TestKindsOfPictures(t *testing.T) {
	helper := sourcetest.Helper(t, "../..")
	t.Setenv("STOCACHED_DECODE", helper)
	bucket := s3test.Servers(t)["gofakes3"](t)
	s := newFolder(t)
	picture := func(name string) []byte {
		data := fatal.Value(os.ReadFile(filepath.Join("../../source/decode/testdata", name)))(t)
		return data
	}
	files := [][]byte{1: picture("one.png"), 2: picture("still.gif"), 3: []byte("BM and more"), 4: []byte("<html>"),
		5: picture("lossy.webp"), 1199: nil}
	jpeg, photos := picture("small.jpg"), filepath.Join(s.folder, "photos")
	var shard bytes.Buffer
	w := tar.NewWriter(&shard)
	fatal.If(t, os.Mkdir(photos, 0o700))
	for k, data := range files {
		if data == nil {
			data = jpeg
		}
		name := fmt.Sprintf("%04d.jpg", k)
		fatal.If(t, os.WriteFile(filepath.Join(photos, name), data, 0o600))
		fatal.If(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data))}))
		fatal.Value(w.Write(data))(t)
	}
	fatal.If(t, w.Close())
	fatal.If(t, os.WriteFile(photos+".tar", shard.Bytes(), 0o600))
	bucket.Put(t, "photos.tar", shard.Bytes())
	ok(t, "pack", photos, filepath.Join(s.folder, "packed"))
	remote := "remote={endpoint: " + bucket.URL + "}"

	lines := []string{"kinds: 1,195 JPEG, 1 BMP, 1 GIF, 1 PNG, 1 WebP, 1 unknown\n",
		"2 of other kinds (BMP, GIF): Python clients decode them with Pillow; Go and C clients get an error. The first: ",
		"1 of no known kind. The first: "}
	type kind struct {
		Kind           string
		Samples, First int
		Other          bool
		Where          string
	}
	for _, source := range [][]string{{photos}, {photos + ".tar"}, {filepath.Join(s.folder, "packed")},
		{"s3://" + s3test.Bucket + "/photos.tar", "--source", remote}} {
		stores := map[string]int{"decoded": 1, "encoded": 0, "auto": 1}
		if source[0] != photos { // kinds are counted alike, wherever the bytes come from
			stores = map[string]int{"auto": 1}
		}
		for store, failed := range stores {
			flags := args("source", "verify", source, "--decode", "resize=[4,4],store="+store)
			if store == "auto" { // a table has the numbers of its JSON
				_, stdout, _ := cli(t, flags...)
				contains(t, stdout, lines...)
			}
			flags = append(flags, "--json")
			code, stdout, stderr := cli(t, flags...)
			if want := map[bool]int{true: exitOK, false: exitCorrupt}[failed == 0]; code != want {
				t.Errorf("%v: exit %d, want %d: %s", flags, code, want, stderr)
			}
			v := decode[struct {
				Samples, Read, Failed int
				Kinds                 []kind
			}](t, stdout)
			unread := 2 // the server decodes neither BMP nor GIF
			if store == "encoded" {
				unread = 0
			}
			if v.Samples != 1200 || v.Failed != failed || v.Read != 1200-failed-unread || len(v.Kinds) != 6 ||
				v.Kinds[0].Samples != 1195 || v.Kinds[1].Kind != "BMP" || !v.Kinds[1].Other || v.Kinds[1].First != 3 ||
				v.Kinds[1].Where == "" || v.Kinds[0].Other || v.Kinds[5].Other {
				t.Errorf("%v: %s", flags, stdout)
			}
		}
		if stdout := ok(t, args("source", "verify", source)...); strings.Contains(stdout, "JPEG") {
			t.Errorf("%v without decode: %s", source, stdout)
		}
	}

	s.configure(fmt.Sprintf(`caches:
  - {name: pets, dir: %[1]s, size: 5MiB, source: {kind: dir, path: photos}, decode: {resize: [4, 4]}}
  - {name: files, dir: %[1]s, size: 5MiB, source: {kind: tar, path: photos.tar}, decode: {resize: [4, 4], store: encoded}}
  - {name: far, dir: %[1]s, size: 5MiB, source: {kind: tar, path: "s3://%[2]s/photos.tar", remote: {endpoint: "%[3]s"}}, decode: {resize: [4, 4]}}
  - {name: raw, dir: %[1]s, size: 5MiB, source: {kind: dir, path: photos}}
`, s.segments, s3test.Bucket, bucket.URL))
	before := bucket.Requests.Load()
	stdout := ok(t, "serve", "-c", s.path, "--check")
	for _, cache := range []string{"pets", "files", "far"} { // each fourth or fifth file
		contains(t, stdout, "cache "+cache+": looked at 256 of 1,200 files: 255 JPEG, 1 ")
	}
	if strings.Contains(stdout, "cache raw") || !strings.HasSuffix(stdout, "good, 4 caches\n") {
		t.Error(stdout)
	}
	if requests := bucket.Requests.Load() - before; requests > 2*256 {
		t.Errorf("%d requests to the bucket", requests)
	}

	// A folder that is small is read whole.
	for k := 100; k < len(files); k++ {
		fatal.If(t, os.Remove(filepath.Join(photos, fmt.Sprintf("%04d.jpg", k))))
	}
	about := "cache pets: "
	contains(t, ok(t, "serve", "-c", s.path, "--check"),
		about+"looked at 100 of 100 files: 95 JPEG, 1 BMP, 1 GIF, 1 PNG, 1 WebP, 1 unknown\n", about+lines[1]+filepath.Join(photos, "0002.jpg"),
		about+lines[2]+filepath.Join(photos, "0004.jpg"), about+"1 of them cannot be read, such as: ", "0004.jpg does not decode")
}

// Ensure that the server needs no helper to count what clients decode.
func TestKindsWithoutADecoder(t *testing.T) {
	t.Setenv("STOCACHED_DECODE", "")
	folder := t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(folder, "0.jpg"), []byte("GIF89a"), 0o600))
	contains(t, ok(t, "source", "verify", folder, "--decode", "resize=[4,4],store=encoded"), "kinds: 1 GIF\n",
		"1 of another kind (GIF): ", "The first: "+filepath.Join(folder, "0.jpg"))
}
