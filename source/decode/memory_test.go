package decode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/dir"
)

// childVariable makes the test binary a program that decodes: see decodeAll.
const childVariable = "STOCACHED_TEST_DECODE"

func TestMain(m *testing.M) {
	if folder := os.Getenv(childVariable); folder != "" {
		if err := decodeAll(folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	childMemory  = 48 << 20
	childReaders = 8
)

// peak returns the most memory that this process has used.
func peak() (bytes int, err error) {
	text, err := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, err = fmt.Sscan(rest, &bytes)
			return bytes << 10, err
		}
	}
	return 0, errors.Join(err, errors.New("no VmHWM"))
}

// decodeAll decodes the files of a folder with many concurrent readers. It prints the memory that
// it used, and how many files failed.
func decodeAll(folder string) error {
	s, err := dir.Kind.Open(context.Background(), source.Settings{"path": folder})
	if err != nil {
		return err
	}
	pictures, err := New(s, map[string]any{"resize": []int{256, 256}, "memory": childMemory})
	if err != nil {
		return err
	}
	before, err := peak()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	var next, failed, tooLarge atomic.Int64
	samples := s.Info().Samples
	for range childReaders {
		all.Go(func() {
			dst := make([]byte, 3*256*256)
			for i := next.Add(1) - 1; i < int64(2*samples); i = next.Add(1) - 1 { // each comes twice, beside other samples
				if _, err := pictures.Read(context.Background(), int(i)%samples, dst); err != nil && strings.Contains(err.Error(), "raise it") {
					tooLarge.Add(1)
				} else if err != nil {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	after, err := peak()
	fmt.Println(after-before, failed.Load(), tooLarge.Load())
	return err
}

// Ensure that many readers of pictures that are much larger than their files together stay within
// the memory limit. The test measures it in a separate process.
func TestPeak(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector takes memory of its own")
	}
	folder := t.TempDir()
	for name, bomb := range bombs {
		if err := os.WriteFile(filepath.Join(folder, name), bomb(t, 1480, 1480), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+folder)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var bytes, failed, tooLarge int
	if _, err := fmt.Sscan(string(out), &bytes, &failed, &tooLarge); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f MiB for %.0f MiB allowed; %d files did not decode, %d would have taken too much",
		float64(bytes)/(1<<20), float64(childMemory)/(1<<20), failed, tooLarge)
	if bytes > childMemory*11/10+16<<20 {
		t.Errorf("%d bytes of memory, %d are allowed", bytes, childMemory)
	}
	if failed > 2*10 || tooLarge > 2 { // files whose data end before their pixels, and a lossless WebP with its code trees
		t.Errorf("%d files did not decode, %d would have taken too much, of %d", failed, tooLarge, 2*len(bombs))
	}
}

// Ensure that a picture that exceeds the limit alone is an error that names the limit and the key.
func TestPictureLargerThanTheMemory(t *testing.T) {
	for _, name := range []string{"interlaced, 16 bits, alpha", "interlaced, a palette", "PNG", "JPEG, progressive",
		"JPEG, CMYK", "WebP", "WebP, lossless", "GIF", "the first picture of a GIF"} {
		s, err := New(onePicture{bombs[name](t, 2900, 2900)}, map[string]any{"resize": []int{8, 8}, "memory": "16MiB"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Read(context.Background(), 0, make([]byte, 192))
		if !errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), "2900 x 2900 pixels take up to ") ||
			!strings.Contains(err.Error(),
				"more than the 12.0 MiB that memory, 16.0 MiB, has for pictures; raise it (decode: {memory: ...})") {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
	large, err := New(onePicture{make([]byte, 5<<20)}, map[string]any{"resize": []int{8, 8}, "memory": "16MiB"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := large.Read(context.Background(), 0, make([]byte, 192)); !errors.Is(err, source.ErrCorrupt) ||
		!strings.Contains(err.Error(), "the file has 5.0 MiB, more than the 4.0 MiB that memory, 16.0 MiB, has for files") {
		t.Error(err)
	}
}

// onePicture is a source of one file.
type onePicture struct{ file []byte }

func (o onePicture) Info() source.Info {
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Bytes, Dims: []uint64{shm.VariableDim}}}, true)
	if err != nil {
		panic(err)
	}
	return source.Info{Kind: "one", Samples: 1, Schema: schema}
}
func (o onePicture) Size(int) (int, error) { return len(o.file), nil }
func (o onePicture) Read(_ context.Context, _ int, dst []byte) (int, error) {
	return copy(dst, o.file), nil
}
func (o onePicture) Where(int) string { return "file 0" }
func (o onePicture) Close() error     { return nil }

// Ensure that readers get memory in their order, that readers whose context ends leave, and that no
// memory is lost.
func TestMemory(t *testing.T) {
	m := memory{limit: 100}
	background := context.Background()
	if err := m.acquire(background, 60); err != nil {
		t.Fatal(err)
	}
	waits := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			m.mu.Lock()
			have := len(m.waiting)
			m.mu.Unlock()
			if have == n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d wait, want %d", have, n)
			}
		}
	}
	came := make(chan int, 2)
	go func() { came <- errorOf(m.acquire(background, 100)) }()
	waits(1)
	leaves, leave := context.WithCancelCause(background)
	left := make(chan error)
	go func() { left <- m.acquire(leaves, 50) }()
	waits(2)
	go func() { came <- errorOf(m.acquire(background, 10)) }() // after those, though memory is free
	waits(3)
	reason := errors.New("enough")
	leave(reason)
	if err := <-left; !errors.Is(err, reason) {
		t.Error(err)
	}
	m.release(60, 60)
	<-came
	waits(1)
	m.release(100, 100)
	<-came
	m.release(10, 10)
	if m.used != 0 || len(m.waiting) != 0 || m.garbage > 100 {
		t.Errorf("%+v", &m)
	}
}

func errorOf(err error) int {
	if err != nil {
		return 1
	}
	return 0
}
