package cli

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/source/block"
	"github.com/stocached/stocached/source/sourcetest"
)

// recordBytes is the size of a record in the sources of these tests.
const recordBytes = 1000

// record returns record i.
func record(i int) []byte {
	b := bytes.Repeat([]byte{byte(i), byte(i >> 8), 7, byte(i % 251)}, recordBytes/4)
	b[len(b)-1] = byte(i * 31)
	return b
}

// rawSource makes a file of n records, and the flags that describe it.
func rawSource(t testing.TB, n int) (path string, flags []string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "records.bin")
	var b []byte
	for i := range n {
		b = append(b, record(i)...)
	}
	fatal.If(t, os.WriteFile(path, b, 0o600))
	return path, []string{"--kind", "raw", "--source", fmt.Sprintf("sample_bytes=%d", recordBytes)}
}

// smallBlocks are flags for many blocks and files of few samples.
var smallBlocks = []string{"--block-size", "8KiB", "--file-size", "32KiB"}

// wantRecords compares a dataset with the records.
func wantRecords(t testing.TB, folder string, n int) {
	t.Helper()
	d := fatal.Value(block.Open(t.Context(), folder, true))(t)
	defer d.Close()
	fatal.Equal(t, d.Info().Samples, n, "samples")
	buffer := make([]byte, recordBytes)
	for i := range n {
		if _, err := d.Read(t.Context(), i, buffer); err != nil || !bytes.Equal(buffer, record(i)) {
			t.Fatalf("sample %d: %v", i, err)
		}
	}
}

func args(parts ...any) (all []string) {
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			all = append(all, p)
		case []string:
			all = append(all, p...)
		}
	}
	return all
}

// Ensure that a pack holds every sample, for any number of readers, and reports its work.
func TestPack(t *testing.T) {
	path, flags := rawSource(t, 700)
	var first map[string]string
	for _, c := range []struct{ jobs, compress string }{{"1", "none"}, {"8", "none"}, {"64", "none"}, {"3", "zstd"}} {
		out := filepath.Join(t.TempDir(), "out")
		text := ok(t, args("pack", path, out, flags, smallBlocks, "-j", c.jobs, "--compress", c.compress,
			"--verify", "--json")...)
		got := decode[jsonObject](t, text)
		wantFields(t, got, jsonObject{"path": out, "samples": 700, "kept_samples": 0, "bytes": 700 * recordBytes,
			"verified": true, "compression": c.compress, "largest_bytes": recordBytes})
		if got["blocks"].(float64) < 3 || got["files"].(float64) < 2 && c.compress == "none" || got["source"] == "" {
			t.Error(text)
		}
		wantRecords(t, out, 700)
		expect.Fails(os.Stat(out+".part"))(t, os.ErrNotExist)
		if c.compress == "none" {
			if files := sourcetest.Tree(t, out); first == nil {
				first = files
			} else if !maps.Equal(files, first) {
				t.Error("other bytes with other readers")
			}
		}
	}
}

// Ensure that small samples, which travel in batches, and large ones, which exceed a batch or a
// block, are packed unchanged.
func TestPackSizes(t *testing.T) {
	for _, c := range []struct{ samples, bytes int }{{20_000, 3}, {5, 3 << 20}, {1, 1}} {
		data := make([]byte, c.samples*c.bytes)
		for k := range data {
			data[k] = byte(k * 7 >> 3)
		}
		path, out := filepath.Join(t.TempDir(), "x"), filepath.Join(t.TempDir(), "out")
		fatal.If(t, os.WriteFile(path, data, 0o600))
		ok(t, "pack", path, out, "--kind", "raw", "--source", fmt.Sprintf("sample_bytes=%d", c.bytes),
			"--block-size", "1MiB", "--verify")
		d := fatal.Value(block.Open(t.Context(), out, true))(t)
		var got []byte
		for b := range d.Blocks() {
			if err := d.ReadBlock(t.Context(), b,
				func(_ int, sample []byte) error { got = append(got, sample...); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		d.Close()
		if !bytes.Equal(got, data) {
			t.Errorf("%d samples of %d bytes came out as %d bytes", c.samples, c.bytes, len(got))
		}
	}
}

// Ensure that an existing dataset is neither made again nor overwritten.
func TestPackAgain(t *testing.T) {
	path, flags := rawSource(t, 100)
	out := filepath.Join(t.TempDir(), "out")
	pack := args("pack", path, out, flags, smallBlocks)
	ok(t, pack...)
	before := sourcetest.Tree(t, out)
	contains(t, ok(t, pack...), "is already complete")
	wantFields(t, decode[jsonObject](t, ok(t, append(pack, "--json", "--verify", "--resume")...)),
		jsonObject{"kept_samples": 100, "bytes": 0, "verified": true, "bytes_per_second": 0})
	fails(t, exitExists, []string{"something else is in the way", "other data or otherwise"},
		args("pack", path, out, flags)...)
	fails(t, exitExists, []string{"something else is in the way"}, args("pack", path, out, flags, "--restart")...)
	other, otherFlags := rawSource(t, 101)
	fails(t, exitExists, []string{"other data or otherwise"}, args("pack", other, out, otherFlags, smallBlocks)...)
	if !maps.Equal(sourcetest.Tree(t, out), before) {
		t.Error("the dataset was changed")
	}
	// --verify finds damage, and names the sample.
	overwrite(t, filepath.Join(out, "00000.stocblk"), 2500, 0xAA)
	fails(t, exitCorrupt, []string{"sample 2", "CRC-32C"}, append(pack, "--verify")...)
}

// Ensure that a source that fails ends a pack with the sample's name, that complete files are kept,
// and that the same command goes on when the source works again.
func TestPackOfABadSource(t *testing.T) {
	path, flags := rawSource(t, 200)
	good := filepath.Join(t.TempDir(), "good")
	ok(t, args("pack", path, good, flags, smallBlocks)...)
	damage(t, filepath.Join(good, "00003.stocblk"), 2500) // from sample 84 on
	again := filepath.Join(t.TempDir(), "again")
	code, out, stderr := cli(t, args("pack", good, again, smallBlocks)...)
	if code != exitCorrupt || out != "" {
		t.Error(code, out)
	}
	contains(t, stderr, "00003.stocblk", "sample 98", "samples are complete in "+again+".part",
		"the same command goes on")
	expect.Fails(os.Stat(again))(t, os.ErrNotExist)
	// A changed source is another source: the interrupted pack does not go on with it.
	overwrite(t, filepath.Join(good, "00003.stocblk"), 2500, record(98)[500])
	fails(t, exitExists, []string{"--restart"}, args("pack", good, again, smallBlocks)...)
	ok(t, args("pack", good, again, smallBlocks, "--restart", "--verify")...)
	wantRecords(t, again, 200)
}

// Ensure that a full disk is reported before the first sample if the sizes are known, else by the
// write, and that the pack can go on.
func TestPackOnAFullDisk(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=128k")
	data := make([]byte, 300*recordBytes)
	for k := range data { // incompressible
		data[k] = byte(k*k>>7 ^ k*2654435761>>11)
	}
	path, out := filepath.Join(t.TempDir(), "x"), filepath.Join(dir, "out")
	fatal.If(t, os.WriteFile(path, data, 0o600))
	pack := args("pack", path, out, "--kind", "raw", "--source", fmt.Sprintf("sample_bytes=%d", recordBytes),
		smallBlocks)
	fails(t, exitMemory, []string{out + " needs 300.0 KiB more", "128.0 KiB free", "free some space",
		"--compress zstd"},
		pack...)
	expect.Fails(os.Stat(out+".part"))(t, os.ErrNotExist)
	zstd := append(pack, "--compress", "zstd")
	code, _, stderr := cli(t, zstd...)
	expect.Equal(t, code, exitMemory, "")
	contains(t, stderr, "no space left on device", "of 300 samples: free some space", "samples are complete in "+out+
		".part")
	expect.Fails(os.Stat(out))(t, os.ErrNotExist)
	fails(t, exitNotFound, []string{"not whole"}, "source", "info", out, "--kind", "block")
	fatal.If(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=2m"))
	got := decode[jsonObject](t, ok(t, append(zstd, "--json", "--verify")...))
	if kept := got["kept_samples"].(float64); kept == 0 || got["bytes"].(float64) != (300-kept)*recordBytes {
		t.Error(got)
	}
}

// Ensure that an invalid command line is reported before anything is made.
func TestPackUsage(t *testing.T) {
	path, flags := rawSource(t, 10)
	dir := t.TempDir()
	out, pictures := filepath.Join(dir, "out"), t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(pictures, "0.jpg"), nil, 0o600))
	for _, c := range []struct {
		args []string
		want string
	}{
		{args("pack", path), "expected the path of a source and the folder to make"},
		{args("pack", path, out), "its name does not say what kind of source it is; give --kind"},
		{args("pack", path, out, flags, "-j", "0"), "--jobs 0"},
		{args("pack", path, out, flags, "--compress", "gzip"), "neither none nor zstd"},
		{args("pack", path, out, flags, "--block-size", "1000"), "not a multiple of 4096"},
		{args("pack", path, out, flags, "--block-size", "2GiB"), "up to 1GiB"},
		{args("pack", path, out, flags, "--file-size", "1"), "--file-size"},
		{args("pack", path, out, flags, "--resume"), "there is no interrupted pack in " + out + ".part"},
		{args("pack", path, out, flags, "--resume", "--restart"), "resume"},
		{args("pack", path, out+".part", flags), "ends in .part"},
		{args("pack", dir, out), "lies in " + dir},
		{args("pack", dir, dir), "lies in " + dir},
		{args("pack", path, out, flags, "--source", "ofset=3"), `unknown key "ofset"`},
		{args("pack", path, out, "--kind", "zip"), "known are: "},
		{args("pack", path, path+"/out", flags), "is not a folder"},
		{args("pack", pictures, out, "--decode", "resize=[8,8],store=encoded"), "leave store out"},
		{args("pack", pictures, out, "--decode", "resize=[8,8],store=auto"), "leave store out"},
	} {
		fails(t, exitUsage, []string{c.want}, c.args...)
	}
	fails(t, exitNotFound, []string{"nowhere"}, args("pack", path, filepath.Join(dir, "nowhere", "out"), flags)...)
	fails(t, exitNotFound, []string{"none.npy"}, args("pack", filepath.Join(dir, "none.npy"), out)...)
	fails(t, exitExists, []string{"not a folder"}, args("pack", path, path, flags)...)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("something was made: %v, %v", entries, err)
	}
}

// Ensure that the pace counts only what was done since it began, and is unknown before.
func TestPace(t *testing.T) {
	p := newPace(io.Discard, "x", 100)
	expect.Equal(t, p.left(0, 100), "-", "")
	p.begin(50)
	expect.Equal(t, p.left(50, 100), "-", "")
	p.began.Add(-10e9) // 10 seconds ago
	p.bytes.Store(10 << 20)
	if left, speed := p.left(60, 100), p.speed().String(); left != "40s" || speed != "1.0 MiB/s" &&
		speed != "1023.9 KiB/s" {
		t.Error(left, speed)
	}
}
