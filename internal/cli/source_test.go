package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	"github.com/stocached/stocached/source/sourcetest"
)

// blockSource makes a dataset of pictures with labels, of several sizes.
func blockSource(t testing.TB) (folder string, samples [][]byte) {
	t.Helper()
	schema, err := shm.NewSchema([]shm.Field{{Name: "image", DType: shm.Uint8, Dims: []uint64{shm.VariableDim, 4}},
		{Name: "label", DType: shm.Int16}}, true)
	fatal.If(t, err)
	folder = filepath.Join(t.TempDir(), "set")
	w, err := block.Create(t.Context(), folder,
		block.Options{Schema: schema, BlockBytes: 4096, FileBytes: 8192,
			Notes: []source.Note{{Name: "classes", Text: "cat, dog"}}})
	fatal.If(t, err)
	defer w.Close()
	for i := range 60 {
		s, err := schema.Join([]shm.Part{{Dims: []uint64{uint64(i + 1), 4},
			Data: bytes.Repeat([]byte{byte(i)}, 4*i+4)}, {Data: []byte{byte(i), 1}}})
		fatal.If(t, err)
		fatal.If(t, w.Write(s))
		samples = append(samples, s)
	}
	fatal.If(t, w.Finish())
	return folder, samples
}

// Ensure that info describes a source.
func TestSourceInfo(t *testing.T) {
	folder, samples := blockSource(t)
	total := 0
	for _, s := range samples {
		total += len(s)
	}
	got := decode[jsonObject](t, ok(t, "source", "info", folder, "--json"))
	wantFields(t, got, jsonObject{"path": folder, "kind": "block", "samples": 60, "variable": true, "bytes": total,
		"smallest_bytes": len(samples[0]), "largest_bytes": len(samples[59])})
	if got["blocks"].(float64) < 4 || !strings.HasPrefix(got["fingerprint"].(string), "block-") {
		t.Error(got)
	}
	wantFields(t, got, jsonObject{"compression": "none", "made_from": ""})
	fields := got["fields"].([]any)
	wantFields(t, fields[0].(jsonObject), jsonObject{"name": "image", "dtype": "uint8", "shape": []any{nil, 4}})
	wantFields(t, got["notes"].([]any)[0].(jsonObject), jsonObject{"name": "classes", "text": "cat, dog"})
	contains(t, ok(t, "source", "info", folder), "samples        60\n", "image", "?,4", "classes", "cat, dog")

	path, flags := rawSource(t, 10)
	got = decode[jsonObject](t, ok(t, args("source", "info", path, flags, "--json")...))
	wantFields(t, got, jsonObject{"kind": "raw", "samples": 10, "variable": false, "bytes": 10 * recordBytes,
		"blocks": nil, "compression": nil, "file_bytes": nil, "notes": []any{}})
	fails(t, exitNotFound, []string{"none"}, "source", "info", filepath.Join(folder, "none"))
	fails(t, exitUsage, []string{"give its folder"}, "source", "info", filepath.Join(folder, "dataset.json"))
	fails(t, exitUsage, []string{"info, cat or verify"}, "source")
	fails(t, exitUsage, []string{"--help says more"}, "source", "frob")
	fails(t, exitUsage, []string{"stocached source info --help"}, "source", "info")
}

// Ensure that cat writes the bytes of a sample or of a field, and nothing to a terminal.
func TestSourceCat(t *testing.T) {
	folder, samples := blockSource(t)
	expect.Equal(t, ok(t, "source", "cat", folder, "17"), string(samples[17]), "the sample")
	expect.Equal(t, ok(t, "source", "cat", folder, "17", "--field", "label"), "\x11\x01", "")
	expect.Equal(t, ok(t, "source", "cat", folder, "17", "--field", "image"), strings.Repeat("\x11", 4*18), "its image")
	fails(t, exitUsage, []string{`no field "x"; there are: image, label`}, "source", "cat", folder, "17",
		"--field", "x")
	fails(t, exitUsage, []string{"index 60 is not in 0..59"}, "source", "cat", folder, "60")
	fails(t, exitUsage, []string{"not a whole number; the source has samples 0 to 59"}, "source", "cat", folder, "x")
	stdout, written := terminal(t)
	expect.Equal(t, Run([]string{"source", "cat", folder, "17"}, stdout, io.Discard), exitUsage, "")
	if code := Run([]string{"source", "cat", folder, "17", "--field", "label", "--force"}, stdout,
		io.Discard); code != exitOK {
		t.Error(code)
	}
	expect.Equal(t, written(), "\x11\x01", "")
}

// Ensure that verify reads every sample, and counts and names the bad ones.
func TestSourceVerify(t *testing.T) {
	folder, samples := blockSource(t)
	contains(t, ok(t, "source", "verify", folder), "read     60\n", "failed   0\n")
	d := fatal.Value(block.Open(t.Context(), folder, true))(t)
	second := d.Where(1)
	d.Close()
	path := filepath.Join(folder, "00000.stocblk")
	damage(t, path, 130)                       // sample 0, in its image
	damage(t, path, uint64(len(samples[0])+3)) // sample 1, in its header
	code, out, stderr := cli(t, "source", "verify", folder, "-j", "3")
	expect.Equal(t, code, exitCorrupt, "")
	contains(t, out, "read     58\n", "failed   2\n")
	contains(t, stderr, "stocached: 2 of 60 samples cannot be read", "  sample 0, "+path, "  sample 1, "+second, "CRC-32C")
	code, out, stderr = cli(t, "source", "verify", folder, "--json")
	got := decode[jsonObject](t, out)
	wantFields(t, got, jsonObject{"samples": 60, "read": 58, "failed": 2})
	failures := got["failures"].([]any)
	if code != exitCorrupt || stderr != "" || len(failures) != 2 {
		t.Fatal(code, stderr, out)
	}
	wantFields(t, failures[1].(jsonObject), jsonObject{"index": 1, "where": second})
	// Without checksums the schema still finds invalid samples.
	_, out, _ = cli(t, "source", "verify", folder, "--json", "--source", "verify=false")
	wantFields(t, decode[jsonObject](t, out), jsonObject{"read": 59, "failed": 1})
	fails(t, exitUsage, []string{"--jobs"}, "source", "verify", folder, "-j", "5000")
}

// Ensure that a source in a command line gets the same settings as in a configuration.
func TestSourceSettings(t *testing.T) {
	s := source.Settings{"path": "p"}
	if err := parsePairs(s, "--source",
		`a=1,b=text,c=[1,2,3],d="1,2",e=true,f={"x":[1.5]},g=**/*.jpg,h=,i=1x,j=null,k=[jpg, cls],l=[],m=[a,"b,c",3]`); err != nil {
		t.Fatal(err)
	}
	want := source.Settings{"path": "p", "a": 1, "b": "text", "c": []any{1, 2, 3}, "d": "1,2", "e": true,
		"f": map[string]any{"x": []any{1.5}}, "g": "**/*.jpg", "h": "", "i": "1x", "j": "null",
		"k": []any{"jpg", "cls"}, "l": []any{}, "m": []any{"a", "b,c", 3}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("%#v\nwant %#v", s, want)
	}
	for _, bad := range []string{"a", "=1", "x=1,x=2", "k=1,,l=2"} {
		if err := parsePairs(source.Settings{}, "--source", bad); exitCode(err) != exitUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"a.npy", "a.tar", "a.bin"} {
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	folder, _ := blockSource(t)
	for path, want := range map[string]string{dir: "dir", dir + "/a.npy": "npy", dir + "/a.tar": "tar",
		dir + "/b-{00..12}.tar": "tar", dir + "/x.tar.gz": "tar", folder: "block"} {
		expect.Gives(guessKind(t.Context(), path, nil))(t, want, path)
	}
	if _, err := guessKind(t.Context(), dir+"/a.bin", nil); exitCode(err) != exitUsage {
		t.Error(err)
	}
}

// Ensure that the commands accept the settings of a server's cache: how to read a source, and how
// to decode its pictures.
func TestSourceDecoded(t *testing.T) {
	t.Setenv("STOCACHED_DECODE", sourcetest.Helper(t, "../.."))
	folder := t.TempDir()
	for _, name := range []string{"420.jpg", "rgb.png"} {
		data := fatal.Value(os.ReadFile(filepath.Join("../../source/decode/testdata", name)))(t)
		fatal.If(t, os.WriteFile(filepath.Join(folder, name), data, 0o600))
	}
	decoded := []string{folder, "--decode", "resize=[30,40],layout=hwc", "--decode", "fit=crop",
		"--source", "retry={tries: 2},limits={concurrency: 1}"}
	want := fatal.Value(os.ReadFile("../../source/decode/testdata/rgb.png.cropped"))(t)
	with := func(command, index string, args ...string) []string {
		all := append([]string{"source", command, args[0]}, args[1:]...)
		if index != "" {
			all = append(all[:3:3], append([]string{index}, all[3:]...)...)
		}
		return all
	}
	got := ok(t, with("cat", "1", append(decoded, "--field", "image")...)...)
	fatal.Equal(t, len(got), len(want), "bytes")
	for k := range want {
		if apart := int(got[k]) - int(want[k]); apart < -1 || apart > 1 { // Pillow resizes down first if that is less work
			t.Fatalf("byte %d is %d, and %d in Pillow", k, got[k], want[k])
		}
	}
	contains(t, ok(t, with("info", "", decoded...)...), "samples        2\n", "image  uint8  30,40,3",
		"to 30 x 40, hwc, cropped")
	contains(t, ok(t, with("verify", "", decoded...)...), "read     2\n", "failed   0\n")
	ok(t, append([]string{"pack", folder, filepath.Join(t.TempDir(), "packed")}, decoded[1:]...)...)
	fails(t, exitUsage, []string{`--decode "resize": "resize" is not key=value`}, "source", "info", folder,
		"--decode", "resize")
	fails(t, exitUsage, []string{"resize is [5]"}, "source", "info", folder, "--decode", "resize=[5]")
}
