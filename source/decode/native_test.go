package decode_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
	"github.com/stocached/stocached/source/sourcetest"
)

// helper makes later sources use stocached-decode, if the test has not named another program. It returns the folder
// of the program.
func helper(t testing.TB) (build string) {
	t.Helper()
	path := sourcetest.Helper(t, "../..")
	if os.Getenv("STOCACHED_DECODE") == "" {
		t.Setenv("STOCACHED_DECODE", path)
	}
	return filepath.Dir(path)
}

// Ensure that JPEG files have the pixels of stoc_image_decode, bit by bit, in each fit and layout.
func TestHelperPixels(t *testing.T) {
	build := helper(t)
	for _, name := range []string{"420.jpg", "422.jpg", "444.jpg", "progressive.jpg", "rgb.jpg", "grey.jpg", "cmyk.jpg",
		"exif6.jpg", "small.jpg", "500x375.jpg"} {
		for fit, fitName := range []string{"stretch", "crop", "pad"} {
			for layout, layoutName := range []string{"chw", "hwc"} {
				s := open(t, files(t, name), map[string]any{"resize": []int{31, 47}, "fit": fitName, "layout": layoutName})
				got, err := readOne(s, 0)
				if err != nil {
					t.Fatal(name, err)
				}
				want, err := exec.Command(filepath.Join(build, "image/pixels"), "testdata/"+name, "47", "31", fmt.Sprint(fit),
					fmt.Sprint(layout)).Output()
				if err != nil || len(want) != 3*31*47 || !bytes.Equal(got, want) {
					t.Errorf("%s, %s, %s: other pixels than stoc_image_decode's, %v", name, fitName, layoutName, err)
				}
			}
		}
	}
}

// Ensure that the notes name the decoder, and that without a helper a source that decodes is refused with the ways to
// get one. The store encoded needs none.
func TestHelperNamed(t *testing.T) {
	t.Setenv("STOCACHED_DECODE", "")
	expect.Works(decode.New(files(t, "420.jpg"), with("encoded")))(t)
	for _, store := range []string{"decoded", "auto"} {
		_, err := decode.New(files(t, "420.jpg"), with(store))
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), "stocached-decode") ||
			!strings.Contains(err.Error(), "install a package") || !strings.Contains(err.Error(), "store: encoded") {
			t.Errorf("%s: %v", store, err)
		}
	}
	build := helper(t)
	if got := sourcetest.Note(open(t, files(t, "420.jpg"), small), decode.DecoderNote); !strings.Contains(got, build+"/stocached-decode (libjpeg") ||
		strings.Contains(got, "without a filter") {
		t.Errorf("the decoder is %q", got)
	}
}

// Ensure that a helper has a filter of system calls.
func TestHelperConfined(t *testing.T) {
	helper(t)
	open(t, files(t, "420.jpg"), small)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", processes(t)[0]))
	if err != nil || !strings.Contains(string(status), "\nSeccomp:\t2\n") ||
		!strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
		t.Errorf("%v\n%s", err, status)
	}
}

// Ensure that a bad file is ErrCorrupt with its name, and that the next picture is right.
func TestHelperDamaged(t *testing.T) {
	helper(t)
	half := read(t, "420.jpg")
	half = half[:len(half)/2]
	other := bytes.Clone(half)
	copy(other[len(other)-300:], bytes.Repeat([]byte{0xff, 0xc4}, 150))
	s := open(t, newMemory(t, fieldsOf("data"), half, other, read(t, "one.png")[:40], read(t, "420.jpg")), small)
	for k := range 3 {
		_, err := readOne(s, k)
		expect.Error(t, err, source.ErrCorrupt, s.Where(k)+" does not decode: ")
		expect.Works(readOne(s, 3))(t)
	}
	limited := open(t, files(t, "420.jpg"), map[string]any{"resize": []int{6, 8}, "max_pixels": 125*94 - 1})
	expect.Fails(readOne(limited, 0))(t, source.ErrCorrupt, "max_pixels")
}

// Ensure that each helper is used again, and that a large picture is not kept in memory.
func TestHelperMemory(t *testing.T) {
	helper(t)
	s := open(t, files(t, "500x375.jpg", "420.jpg"), map[string]any{"resize": []int{2000, 2000}})
	want := fatal.Value(readOne(s, 0))(t)
	for range 3 {
		if got, err := readOne(s, 0); err != nil || !bytes.Equal(got, want) {
			t.Fatal("other pixels the next time", err)
		}
	}
	var shared unix.Stat_t
	if err := unix.Stat(sourcetest.Descriptors(t, "/memfd:stocached-decode")[0], &shared); err != nil || shared.Blocks != 0 {
		t.Errorf("%d blocks of shared memory are kept after a picture of 12 MB, %v", shared.Blocks, err)
	}
}

// script makes a program that stands for the helper.
func script(t *testing.T, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stocached-decode")
	fatal.If(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	t.Setenv("STOCACHED_DECODE", path)
}

// firstFrame writes what a helper says first into a file.
func firstFrame(t *testing.T, path string, frames uint32, lanes uint64, message string) {
	t.Helper()
	order := binary.NativeEndian
	frame := order.AppendUint64(order.AppendUint32(order.AppendUint32(nil, 0x44435453), frames), lanes)
	frame = append(append(frame, message...), make([]byte, 240-len(message))...)
	fatal.If(t, os.WriteFile(path, frame, 0o600))
}

// Ensure that the fingerprint has the number of the helper's pixels, and no version of a library that makes the same.
func TestHelperPixelsInFingerprint(t *testing.T) {
	fingerprint := func(message string) string {
		first := filepath.Join(t.TempDir(), "first")
		firstFrame(t, first, 6, 4, message)
		script(t, "cat "+first+" >&3; exec sleep 30")
		return open(t, files(t, "420.jpg"), small).Info().Fingerprint
	}
	one := fingerprint("libjpeg-turbo 2.1.5, pixels 0123456789abcdef")
	if other := fingerprint("libjpeg-turbo 2.1.5, pixels 0123456789abcdee"); one == other {
		t.Error("other pixels have the same fingerprint")
	}
	if other := fingerprint("libjpeg-turbo 2.1.4, pixels 0123456789abcdef"); one != other {
		t.Error("another version with the same pixels has another fingerprint")
	}
}

// Ensure that a server does not mix pixels of two libraries, if another one is installed while it runs.
func TestHelperOfAnotherLibrary(t *testing.T) {
	first := filepath.Join(t.TempDir(), "first")
	firstFrame(t, first, 6, 4, "libjpeg-turbo 2.0.3, pixels 0123456789abcdef")
	script(t, "cat "+first+" >&3")
	s := open(t, files(t, "420.jpg"), small)
	firstFrame(t, first, 6, 4, "libjpeg-turbo 2.1.5, pixels 0123456789abcdee")
	_, err := readOne(s, 0)
	if err == nil || errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), "which makes other pixels") {
		t.Error(err)
	}
}

// Ensure that a helper that is not there, does not start or has another version is an error with
// the next step: not other pixels.
func TestHelperThatDoesNotStart(t *testing.T) {
	begin := func(frames uint32, lanes uint64) func() {
		first := filepath.Join(t.TempDir(), "first")
		firstFrame(t, first, frames, lanes, "")
		return func() { script(t, "cat "+first+" >&3") }
	}
	for want, set := range map[string]func(){
		"no such file":  func() { t.Setenv("STOCACHED_DECODE", filepath.Join(t.TempDir(), "none")) },
		"exit status 3": func() { script(t, "echo a library is missing >&2; exit 3") },
		"a library":     func() { script(t, "echo a library is missing >&2; exit 3") },
		"a frame of 5":  func() { script(t, `sleep 30 & printf hello >&3; exec sleep 30`) },
		"its frames are 5 and its lanes 4, those of this server 6 and 4": begin(5, 4),
		"its frames are 6 and its lanes 2, those of this server 6 and 4": begin(6, 2),
	} {
		set()
		began := time.Now()
		s, err := decode.New(files(t, "420.jpg"), small)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "; install stocached again and restart the server") {
			t.Errorf("%v; want %q", err, want)
		}
		if took := time.Since(began); took > 15*time.Second { // a process that is left has the standard error
			t.Errorf("%v after %v", err, took)
		}
	}
}

// Ensure that a helper that does not answer is killed, and that the error names the file.
func TestHelperThatHangs(t *testing.T) {
	helper(t)
	defer decode.SetDecodeLimit(300 * time.Millisecond)()
	s := open(t, files(t, "420.jpg"), small)
	fatal.Value(readOne(s, 0))(t)
	before := processes(t)
	for _, pid := range before {
		fatal.If(t, unix.Kill(pid, unix.SIGSTOP))
	}
	_, err := readOne(s, 0)
	if err == nil || errors.Is(err, source.ErrCorrupt) ||
		!strings.Contains(err.Error(), "420.jpg was not decoded: stocached-decode: it did not answer within 300ms and was killed") {
		t.Error(err)
	}
	expect.Works(readOne(s, 0))(t)
	for _, pid := range before {
		if unix.Kill(pid, 0) == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
}

// Ensure that the end of a reader's context ends decoding, with its cause.
func TestHelperContext(t *testing.T) {
	helper(t)
	s := open(t, files(t, "420.jpg"), small)
	for _, pid := range processes(t) {
		fatal.If(t, unix.Kill(pid, unix.SIGSTOP))
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 100*time.Millisecond, errors.New("the job ended"))
	defer cancel()
	began := time.Now()
	if _, err := s.Read(ctx, 0, make([]byte, 144)); err == nil || err.Error() != "the job ended" {
		t.Error(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a context of 100ms ended decoding after %v", took)
	}
	expect.Works(readOne(s, 0))(t)
}

// Ensure that the signals of a terminal and of a service manager, which reach all processes of a
// server, do not end the helpers before it.
func TestHelperSignals(t *testing.T) {
	helper(t)
	s := open(t, files(t, "420.jpg"), small)
	before := processes(t)
	for _, pid := range before {
		for _, signal := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
			fatal.If(t, unix.Kill(pid, signal))
		}
	}
	expect.Works(readOne(s, 0))(t)
	if after := processes(t); len(before) != 1 || !slices.Equal(before, after) {
		t.Errorf("processes %v, before %v", after, before)
	}
}

// Ensure that a load costs the processor time of the helper, not the wait for it.
func TestHelperCost(t *testing.T) {
	helper(t)
	s := open(t, files(t, "500x375.jpg"), map[string]any{"resize": []int{224, 224}})
	pid := processes(t)[0]
	fatal.If(t, unix.Kill(pid, unix.SIGSTOP))
	time.AfterFunc(300*time.Millisecond, func() { unix.Kill(pid, unix.SIGCONT) })
	cost := loadtime.Measure(context.Background(), func(ctx context.Context) {
		for range 40 {
			expect.Works(s.Read(ctx, 0, make([]byte, 3*224*224)))(t)
		}
	})
	if cost.All < 12*time.Millisecond || cost.All > 250*time.Millisecond {
		t.Errorf("40 loads of about 1 ms that waited for 300 ms cost %v", cost)
	}
}

// Ensure that samples are right while helpers are killed at random moments. After the end of the sources, no
// process and no descriptor is left.
func TestHelpersKilled(t *testing.T) {
	helper(t)
	before := len(sourcetest.Descriptors(t, ""))
	reads, least := 150, int64(20) // reads of each goroutine; kills. A busy machine needs more reads for so many kills
	if testing.Short() {
		reads, least = 50, 5
	}
	names := []string{"420.jpg", "500x375.jpg", "rgb.png", "lossy.webp", "progressive.jpg", "cmyk.jpg"}
	s, err := decode.New(files(t, names...), map[string]any{"resize": []int{30, 40}})
	fatal.If(t, err)
	want := make([][]byte, len(names))
	for i := range names {
		if want[i], err = readOne(s, i); err != nil {
			t.Fatal(err)
		}
	}
	var readers, killer sync.WaitGroup
	var kills, good, failed atomic.Int64
	done := make(chan struct{})
	killer.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Duration(rand.IntN(6000)) * time.Microsecond):
			}
			if all := processes(t); len(all) > 0 && unix.Kill(all[rand.IntN(len(all))], unix.SIGKILL) == nil {
				kills.Add(1)
			}
		}
	})
	for g := range 8 {
		readers.Go(func() {
			for k := 0; k < reads || kills.Load() < least && k < 100*reads; k++ {
				i := (k*5 + g) % len(names)
				got, err := readOne(s, i)
				switch {
				case err == nil && bytes.Equal(got, want[i]):
					good.Add(1)
				case err == nil:
					t.Errorf("%s: other pixels", names[i])
				case errors.Is(err, source.ErrCorrupt) || !strings.Contains(err.Error(), names[i]+" was not decoded: "):
					t.Error(err)
				default:
					failed.Add(1)
				}
			}
		})
	}
	readers.Wait()
	close(done)
	killer.Wait()
	t.Logf("%d kills; %d pictures were right, %d failed", kills.Load(), good.Load(), failed.Load())
	if kills.Load() < least || failed.Load() > kills.Load()/2 {
		t.Error("too few kills, or too many failures")
	}
	expect.NoError(t, s.Close())
	if left := processes(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if after := len(sourcetest.Descriptors(t, "")); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// processes returns the helpers of this process.
func processes(t *testing.T) (all []int) {
	t.Helper()
	stats := fatal.Value(filepath.Glob("/proc/[0-9]*/stat"))(t)
	for _, path := range stats {
		var pid, parent int
		var name, state string
		text, _ := os.ReadFile(path)
		if _, err := fmt.Sscanf(string(text), "%d %s %s %d", &pid, &name, &state, &parent); err == nil &&
			parent == os.Getpid() && name == "(stocached-decod)" {
			all = append(all, pid)
		}
	}
	return all
}

// Ensure that several sources share the helpers, and that the last one ends them.
func TestHelpersShared(t *testing.T) {
	helper(t)
	a, b := open(t, files(t, "420.jpg"), small), open(t, files(t, "422.jpg"), small)
	fatal.Value(readOne(a, 0))(t)
	a.Close()
	expect.Works(readOne(b, 0))(t)
	if len(processes(t)) == 0 {
		t.Error("no helper for the source that is open")
	}
	b.Close()
	b.Close()
	if left := processes(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}
