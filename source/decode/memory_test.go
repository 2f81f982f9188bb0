package decode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
)

// enlarged says in the header of a JPEG that it has other sides. The bytes stay few.
func enlarged(t testing.TB, name string, w, h int) []byte {
	t.Helper()
	file := fatal.Value(os.ReadFile(filepath.Join("testdata", name)))(t)
	for at := 2; ; at += 2 + int(binary.BigEndian.Uint16(file[at+2:])) {
		if marker := file[at+1]; marker >= 0xc0 && marker <= 0xc2 {
			binary.BigEndian.PutUint16(file[at+5:], uint16(h))
			binary.BigEndian.PutUint16(file[at+7:], uint16(w))
			return file
		}
	}
}

// mostMemoryOf returns the most memory that a process has had since its peak was cleared.
func mostMemoryOf(t *testing.T, process int) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, err = fmt.Sscan(rest, &bytes)
		}
	}
	if err != nil || bytes == 0 {
		t.Fatal(err)
	}
	return bytes << 10
}

func clearPeak(t *testing.T, process int) {
	t.Helper()
	fatal.If(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", process), []byte("5"), 0))
}

// filesOf is a source of files in memory.
type filesOf [][]byte

func (f filesOf) Info() source.Info {
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}}, true)
	if err != nil {
		panic(err)
	}
	return source.Info{Kind: "files", Samples: len(f), Schema: schema}
}
func (f filesOf) Size(i int) (int, error) { return len(f[i]), nil }
func (f filesOf) Read(_ context.Context, i int, dst []byte) (int, error) {
	return copy(dst, f[i]), nil
}
func (f filesOf) Where(i int) string { return fmt.Sprintf("file %d", i) }
func (f filesOf) Close() error       { return nil }

func decoding(t *testing.T, f filesOf, memory string) *pictures {
	t.Helper()
	t.Setenv(helperVariable, sourcetest.Helper(t, "../.."))
	s := fatal.Value(New(f, map[string]any{"resize": []int{8, 8}, "memory": memory}))(t)
	t.Cleanup(func() { s.Close() })
	return s.(*pictures)
}

// Ensure that a picture gets the memory that it needs when it is free, that it never takes more than that, and that
// pictures of little memory do not wait for it.
func TestLargePictures(t *testing.T) {
	large := enlarged(t, "progressive.jpg", 3000, 2000) // libjpeg keeps 3 bytes of each pixel
	small := fatal.Value(os.ReadFile("testdata/420.jpg"))(t)
	p := decoding(t, filesOf{large, small}, "64MiB")
	read := func(i int) error {
		_, err := p.Read(context.Background(), i, make([]byte, 192))
		return err
	}
	process := p.helpers.seats[0].process.cmd.Process.Pid
	clearPeak(t, process)
	before := mostMemoryOf(t, process)
	if err := read(0); err == nil || strings.Contains(err.Error(), "raise it") || !errors.Is(err, source.ErrCorrupt) {
		t.Errorf("%v; want the end of the file", err)
	}
	took := mostMemoryOf(t, process) - before
	if took < 10<<20 || took > int64(p.o.forLarge()) {
		t.Errorf("a picture of about 18 MB took %d bytes", took)
	}
	if p.o.forProcess() > took {
		t.Errorf("a process may take %d bytes, so nothing was tested", p.o.forProcess())
	}
	var readers sync.WaitGroup
	for k := range 4 * runtime.GOMAXPROCS(0) {
		readers.Go(func() {
			if err := read(k % 2); k%2 == 1 && err != nil || k%2 == 0 && !errors.Is(err, source.ErrCorrupt) {
				t.Error(err)
			}
		})
	}
	readers.Wait()
	for k := range p.helpers.seats {
		if process := p.helpers.seats[k].process; process != nil {
			if most := mostMemoryOf(t, process.cmd.Process.Pid); most > before+p.o.forLarge()+8<<20 {
				t.Errorf("process %d took %d bytes", k, most)
			}
		}
	}
	if err := p.large.Acquire(context.Background(), p.o.forLarge()); err != nil { // all is given back
		t.Fatal(err)
	}
	defer p.large.Release(p.o.forLarge())
	expect.NoError(t, read(1))
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error)
	go func() {
		_, err := p.Read(ctx, 0, make([]byte, 192))
		ended <- err
	}()
	cancel(reason)
	expect.Error(t, <-ended, reason)
}

// Ensure that a picture or a file that exceeds the limit alone is an error that names the limit and the key.
func TestPictureLargerThanTheMemory(t *testing.T) {
	p := decoding(t, filesOf{enlarged(t, "progressive.jpg", 2900, 2900), make([]byte, 5<<20)}, "16MiB")
	for i, want := range []string{
		"it takes more than 8.0 MiB, the half of memory, 16.0 MiB, that one picture may take; raise it (decode: {memory: ...})",
		"the file has 5.0 MiB, more than the 4.0 MiB that memory, 16.0 MiB, has for files"} {
		_, err := p.Read(context.Background(), i, make([]byte, 192))
		if !errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// Ensure that a header of 65,500 x 65,500 is refused before anything takes memory for the pixels.
func TestHeaderBombs(t *testing.T) {
	var files filesOf
	for _, name := range []string{"420.jpg", "progressive.jpg", "cmyk.jpg", "grey.jpg"} {
		files = append(files, enlarged(t, name, 65500, 65500))
	}
	p := decoding(t, files, "1GiB")
	for _, process := range []int{os.Getpid(), p.helpers.seats[0].process.cmd.Process.Pid} {
		for i := range files {
			clearPeak(t, process)
			before := mostMemoryOf(t, process)
			if _, err := p.Read(context.Background(), i, make([]byte, 192)); err == nil ||
				!strings.Contains(err.Error(), "max_pixels") {
				t.Errorf("file %d: %v", i, err)
			}
			if took := mostMemoryOf(t, process) - before; took > 4<<20 {
				t.Errorf("file %d: %d bytes were taken", i, took)
			}
		}
	}
}
