package block_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	"github.com/stocached/stocached/source/sourcetest"
)

// sameTree compares folders byte by byte.
func sameTree(t testing.TB, got, want map[string]string) {
	t.Helper()
	for name, b := range want {
		if got[name] != b {
			t.Errorf("%s: %d bytes, want other %d", name, len(got[name]), len(b))
		}
	}
	expect.Equal(t, len(got), len(want), "files")
}

// create begins to write to a folder.
func (s shape) create(t testing.TB, folder string) *block.Writer {
	t.Helper()
	w := fatal.Value(block.Create(t.Context(), folder, s.options))(t)
	t.Cleanup(func() { w.Close() })
	return w
}

// writeTo writes the missing samples up to n.
func (s shape) writeTo(t testing.TB, w *block.Writer, n int) {
	t.Helper()
	for w.Next() < n {
		fatal.If(t, w.Write(s.samples[w.Next()]))
	}
}

// Ensure that a writer that stops after any sample leaves no dataset, and that the next one
// continues and makes exactly the same bytes as one without interruption.
func TestGoingOn(t *testing.T) {
	for name, s := range shapes(t) {
		t.Run(name, func(t *testing.T) {
			want := sourcetest.Tree(t, s.write(t))
			most := 0
			for n := range len(s.samples) + 1 {
				folder := filepath.Join(t.TempDir(), "set")
				w := s.create(t, folder)
				s.writeTo(t, w, n)
				whole := w.Whole()
				fatal.If(t, w.Close())
				if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("after %d samples there is a folder: %v", n, err)
				}
				if entries, err := os.ReadDir(folder + ".part"); len(entries) != 0 && whole == 0 || whole == 0 && !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("nothing is whole, and %v is left: %v", entries, err)
				}
				if _, err := block.Open(t.Context(), folder, true); !errors.Is(err, fs.ErrNotExist) || n > 0 && whole > 0 && !strings.Contains(err.Error(), "not whole") {
					t.Fatal(err)
				}
				if _, err := block.Open(t.Context(), folder+".part", true); !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				var kept []int
				o := s
				o.options.Kept = func(n int) { kept = append(kept, n) }
				w = o.create(t, folder)
				if w.Next() != whole || whole > 0 && kept[len(kept)-1] != whole {
					t.Fatalf("goes on at %d after %v, want %d", w.Next(), kept, whole)
				}
				most = max(most, whole)
				s.writeTo(t, w, len(s.samples))
				fatal.If(t, w.Finish())
				sameTree(t, sourcetest.Tree(t, folder), want)
			}
			if most == 0 && len(want) > 2 {
				t.Error("nothing was ever kept")
			}
		})
	}
}

// Ensure that a file that is incomplete, or not the next one, is not kept, nor the files after it.
func TestWhatIsNotKept(t *testing.T) {
	s := shapes(t)["fixed"]
	want := sourcetest.Tree(t, s.write(t))
	for name, c := range map[string]struct {
		damage func(part string)
		next   int
	}{
		"nothing":             {func(string) {}, 24},
		"a flipped byte":      {func(part string) { flip(t, file(part, 1), 4097) }, 8},
		"a flipped footer":    {func(part string) { flip(t, file(part, 1), 8192+30) }, 8},
		"a cut file":          {func(part string) { os.Truncate(file(part, 1), 8192) }, 8},
		"a gap":               {func(part string) { os.Remove(file(part, 0)) }, 0},
		"another file's name": {func(part string) { os.Rename(file(part, 2), file(part, 1)) }, 8},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "set")
			w := s.create(t, folder)
			s.writeTo(t, w, 30)
			w.Close()
			c.damage(folder + ".part")
			w = s.create(t, folder)
			expect.Equal(t, w.Next(), c.next, "goes on at")
			s.writeTo(t, w, len(s.samples))
			fatal.If(t, w.Finish())
			sameTree(t, sourcetest.Tree(t, folder), want)
		})
	}
}

// Ensure that only a writer with the same source and options continues, and that no other files are
// overwritten.
func TestInTheWay(t *testing.T) {
	s := shapes(t)["fixed"]
	other := s
	other.options.BlockBytes = 8192
	begin := func(t *testing.T) string {
		folder := filepath.Join(t.TempDir(), "set")
		w := s.create(t, folder)
		s.writeTo(t, w, 30)
		w.Close()
		return folder
	}
	refused := func(t *testing.T, s shape, folder string, want error, text string) {
		t.Helper()
		before := ""
		if b, err := os.ReadFile(file(folder+".part", 0)); err == nil {
			before = string(b)
		}
		w, err := block.Create(t.Context(), folder, s.options)
		if err == nil {
			w.Close()
		}
		if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%v; want %v with %q", err, want, text)
		}
		if b, _ := os.ReadFile(file(folder+".part", 0)); string(b) != before {
			t.Error("what was there was changed")
		}
	}
	for name, c := range map[string]struct {
		prepare func(folder string) error
		want    error
		text    string
	}{
		"a file":          {func(folder string) error { return os.WriteFile(folder, nil, 0o600) }, block.ErrInTheWay, "not a folder"},
		"a file as part":  {func(folder string) error { return os.WriteFile(folder+".part", nil, 0o600) }, block.ErrInTheWay, "not a folder"},
		"a link":          {func(folder string) error { return os.Symlink(t.TempDir(), folder) }, block.ErrInTheWay, "symbolic link"},
		"a link as part":  {func(folder string) error { return os.Symlink(t.TempDir(), folder+".part") }, block.ErrInTheWay, "not a folder"},
		"a full folder":   {func(folder string) error { return os.MkdirAll(folder+"/letters", 0o700) }, block.ErrInTheWay, "something in it"},
		"no folder above": {func(folder string) error { return os.Remove(filepath.Dir(folder)) }, fs.ErrNotExist, "set"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "above", "set")
			fatal.If(t, errors.Join(os.Mkdir(filepath.Dir(folder), 0o700), c.prepare(folder)))
			refused(t, s, folder, c.want, c.text)
		})
	}
	t.Run("a mount point", func(t *testing.T) {
		refused(t, s, tmpfs.Mount(t, t.TempDir(), "size=64k"), block.ErrInTheWay, "mount point")
	})
	for name, c := range map[string]struct {
		found string // in the folder of an unfinished dataset
		by    shape
		text  string
	}{
		"other options":        {"", other, "--restart"},
		"a foreign file":       {"letter.txt", s, "letter.txt"},
		"a folder in the part": {"00009.stocblk/x", s, "00009.stocblk"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := begin(t)
			if c.found != "" {
				path := filepath.Join(folder+".part", c.found)
				fatal.If(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)))
			}
			refused(t, c.by, folder, block.ErrInTheWay, c.text)
		})
	}
	for name, change := range map[string]func(o *block.Options){
		"restarted":      func(o *block.Options) { o.BlockBytes, o.Restart = 8192, true },
		"no fingerprint": func(o *block.Options) { o.Source = block.Origin{} },
	} {
		t.Run(name, func(t *testing.T) {
			changed := s
			change(&changed.options)
			expect.Equal(t, changed.create(t, begin(t)).Next(), 0, "")
		})
	}
	t.Run("other notes", func(t *testing.T) { // notes may hold anything, such as how the source was opened
		folder := begin(t)
		noted := s
		noted.options.Notes = []source.Note{{Name: "opened", Text: "again"}}
		w := noted.create(t, folder)
		expect.Equal(t, w.Next(), 24, "")
		noted.writeTo(t, w, len(s.samples))
		fatal.If(t, w.Finish())
		if notes := open(t, folder).Info().Notes; len(notes) != 1 || notes[0].Text != "again" {
			t.Error(notes)
		}
		refused(t, s, folder, block.ErrWhole, folder)
		refused(t, other, folder, block.ErrInTheWay, "other data or otherwise")
		if _, err := os.Stat(folder + ".part"); err == nil {
			t.Error("a folder is left")
		}
	})
	t.Run("another writer", func(t *testing.T) {
		folder := begin(t)
		w := s.create(t, folder)
		refused(t, s, folder, block.ErrBusy, folder)
		w.Close()
		s.create(t, folder)
	})
	t.Run("an empty folder, and something that appears during the work", func(t *testing.T) {
		for _, appears := range []bool{false, true} {
			folder := t.TempDir()
			w := s.create(t, folder)
			s.writeTo(t, w, len(s.samples))
			if appears {
				os.Mkdir(folder+"/here", 0o700)
			}
			if err := w.Finish(); errors.Is(err, block.ErrInTheWay) != appears || !appears && err != nil {
				t.Error(err)
			}
		}
	})
}

// Ensure that a writer refuses invalid samples, with the reason.
func TestWriterRefuses(t *testing.T) {
	s := shapes(t)["fixed"]
	for _, o := range []block.Options{
		{}, {Schema: s.options.Schema, BlockBytes: 1000}, {Schema: s.options.Schema,
			BlockBytes: 2 << 30}, {Schema: s.options.Schema, BlockBytes: -4096},
		{Schema: s.options.Schema, FileBytes: 1}, {Schema: s.options.Schema, Compression: "lzma"},
		{Schema: shm.Schema{Fields: []shm.Field{{Name: "x", Dims: []uint64{shm.VariableDim}}}}},
	} {
		folder := filepath.Join(t.TempDir(), "set")
		if _, err := block.Create(t.Context(), folder, o); !errors.Is(err, source.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
		if _, err := os.Stat(folder + ".part"); err == nil {
			t.Error("a folder is left")
		}
	}
	w := s.create(t, filepath.Join(t.TempDir(), "set"))
	expect.Error(t, w.Write(make([]byte, 999)), source.ErrInvalid)
	expect.Error(t, w.Finish(), source.ErrInvalid, "without samples")
	s.writeTo(t, w, 3) // the writer continues
	expect.NoError(t, w.Finish())
	expect.Error(t, w.Write(s.samples[3]), source.ErrClosed)
	expect.NoError(t, errors.Join(w.Close(), w.Close()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	folder := filepath.Join(t.TempDir(), "set")
	w = s.create(t, folder)
	s.writeTo(t, w, 30)
	w.Close()
	expect.Fails(block.Create(ctx, folder, s.options))(t, context.Canceled)
}

// Ensure that a full disk is an error with the file's name, that no incomplete dataset looks
// complete, and that the writer can continue when space is free.
func TestFullDisk(t *testing.T) {
	dir := tmpfs.Mount(t, t.TempDir(), "size=64k")
	s := shapes(t)["fixed"]
	for i := range 160 {
		s.samples = append(s.samples, noise(40+i, 1000))
	}
	want := sourcetest.Tree(t, s.write(t))
	folder := filepath.Join(dir, "set")
	w := s.create(t, folder)
	var err error
	for err == nil && w.Next() < len(s.samples) {
		err = w.Write(s.samples[w.Next()])
	}
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), folder+".part/") {
		t.Fatalf("after %d samples: %v", w.Next(), err)
	}
	if again := w.Write(s.samples[0]); again == nil || again.Error() != err.Error() {
		t.Errorf("it writes on: %v", again)
	}
	if again := w.Finish(); again == nil {
		t.Error("it finishes")
	}
	whole := w.Whole()
	w.Close()
	if _, err := block.Open(t.Context(), folder, true); !errors.Is(err, fs.ErrNotExist) || whole == 0 {
		t.Error(whole, err)
	}
	fatal.If(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=1m"))
	w = s.create(t, folder)
	expect.Equal(t, w.Next(), whole, "goes on at")
	s.writeTo(t, w, len(s.samples))
	fatal.If(t, w.Finish())
	sameTree(t, sourcetest.Tree(t, folder), want)
}

// Ensure that samples packed by several goroutines, in any order, are the same as from one: the
// compressor keeps no state.
func TestPackIsAFunction(t *testing.T) {
	s := shapes(t)["fixed zstd"]
	want := sourcetest.Tree(t, s.write(t))
	folder := filepath.Join(t.TempDir(), "set")
	w := s.create(t, folder)
	packed := make([]block.Packed, len(s.samples))
	done := make(chan error)
	for g := range 4 {
		go func() {
			var err error
			for k := len(packed) - 1 - g; k >= 0 && err == nil; k -= 4 {
				packed[k], err = w.Pack(bytes.Clone(s.samples[k]))
			}
			done <- err
		}()
	}
	for range 4 {
		fatal.If(t, <-done)
	}
	for _, p := range packed {
		fatal.If(t, w.Append(p))
	}
	fatal.If(t, w.Finish())
	sameTree(t, sourcetest.Tree(t, folder), want)
}

// Ensure the rules of the layout, with numbers that can be checked by hand.
func TestLayout(t *testing.T) {
	s := shape{options: block.Options{Schema: schema(t, true, shm.Field{Name: "x", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}), BlockBytes: 4096, FileBytes: 12288}}
	for i, n := range []int{4000, 96, 1, 9000, 0, 4096, 0, 4096, 4096, 5} {
		s.samples = append(s.samples, noise(i, n))
	}
	d := open(t, s.write(t))
	// The empty sample 4 cannot join a block of 9,000 bytes, which exceeds block_bytes. The empty
	// sample 6 joins one of exactly 4,096.
	want := [][2]int{{0, 2}, {2, 1}, {3, 1}, {4, 3}, {7, 1}, {8, 1}, {9, 1}}
	for b, w := range want {
		if first, n := d.Block(b); first != w[0] || n != w[1] {
			t.Errorf("block %d: %d samples from %d, want %d from %d", b, n, first, w[1], w[0])
		}
	}
	expect.Equal(t, d.Blocks(), len(want), "blocks")
	// Blocks take 4096, 4096, 12288 | 4096, 4096, 4096 | 4096 with their paddings.
	for i, name := range []string{"00000", "00000", "00000", "00000", "00001", "00001", "00001", "00001", "00001",
		"00002"} {
		if where := d.Where(i); !strings.Contains(where, name) {
			t.Errorf("sample %d is in %s, want %s", i, where, name)
		}
	}
	for i, at := range map[int]string{1: "96 bytes at 4000", 3: "9000 bytes at 8192", 8: "4096 bytes at 8192",
		9: "5 bytes at 0"} {
		if where := d.Where(i); !strings.HasSuffix(where, at) {
			t.Errorf("sample %d: %s, want %s", i, where, at)
		}
	}
}
