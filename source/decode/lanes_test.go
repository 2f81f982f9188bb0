package decode

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/jpeg"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source/sourcetest"
)

// pair is two pictures that are under way in two lanes of one process.
type pair struct {
	process *process
	errors  [2]chan error
}

// twoPictures sends two pictures to a process that is stopped. atWork: it has taken the first one, whose
// context is ctx.
func twoPictures(ctx context.Context, t *testing.T, all *helpers, large, small []byte, atWork bool) *pair {
	t.Helper()
	var p pair
	send := func(signal unix.Signal) {
		fatal.If(t, unix.Kill(p.process.cmd.Process.Pid, signal))
	}
	for k, file := range [][]byte{large, small} {
		l := fatal.Value(all.take(context.Background()))(t)
		if k == 0 {
			p.process = l.process
			send(unix.SIGSTOP)
		} else if l.process != p.process {
			t.Fatal("the second picture is in another process")
		}
		fatal.If(t, l.room(len(file)+1<<10))
		copy(l.shared, file)
		r := request{Input: uint64(len(file)), Result: uint64(len(file)), Most: 1 << 30, MaxPixels: 1 << 30,
			Width: 5, Height: 5}
		p.errors[k] = make(chan error, 1)
		ends := []context.Context{ctx, context.Background()}[k]
		go func() {
			_, err := l.do(ends, &r)
			all.put(l, err != nil)
			p.errors[k] <- err
		}()
		raw := fatal.Value(l.socket.SyscallConn())(t)
		await := func(waits bool) {
			for queued := -1; queued < 0 || waits != (queued > 0); runtime.Gosched() {
				fatal.If(t, raw.Control(func(fd uintptr) { queued, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
			}
		}
		if await(true); k == 0 && atWork {
			send(unix.SIGCONT)
			await(false)
			send(unix.SIGSTOP)
		}
	}
	return &p
}

// Ensure that only the picture that a process works on gets an error when the process dies or hangs. The
// picture in another lane does not.
func TestHelperLanes(t *testing.T) {
	if testing.Short() {
		t.Skip("not under the race detector: one goroutine makes a large picture")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	all := fatal.Value(openHelpers(sourcetest.Helper(t, "../..")))(t)
	defer all.close()
	runtime.GOMAXPROCS(2)
	var large bytes.Buffer
	fatal.If(t, jpeg.Encode(&large, image.NewGray(image.Rect(0, 0, 8000, 6000)), nil))
	small := fatal.Value(os.ReadFile(filepath.Join("testdata", "420.jpg")))(t)
	kill := func(p *pair) {
		fatal.If(t, unix.Kill(p.process.cmd.Process.Pid, unix.SIGKILL))
	}
	defer SetDecodeLimit(20 * time.Second)()
	yes, no := []bool{true}, []bool{false}
	either := []bool{false, true} // the deadlines of both lanes are a moment apart
	for name, c := range map[string]struct {
		atWork, ends  bool
		limit         time.Duration
		again, waited [2][]bool
	}{
		"killed at work":   {true, false, 0, [2][]bool{yes, yes}, [2][]bool{no, yes}},
		"killed before it": {false, false, 0, [2][]bool{yes, yes}, [2][]bool{yes, yes}},
		"hangs at work":    {true, false, time.Second, [2][]bool{no, yes}, [2][]bool{no, either}},
		"context at work":  {true, true, 0, [2][]bool{no, yes}, [2][]bool{no, yes}},
		"context":          {false, true, 0, [2][]bool{no, yes}, [2][]bool{no, yes}},
	} {
		if c.limit > 0 {
			SetDecodeLimit(c.limit)
		}
		ctx, cancel := context.WithCancel(context.Background())
		p := twoPictures(ctx, t, all, large.Bytes(), small, c.atWork)
		if c.ends {
			cancel()
		} else if c.limit == 0 {
			kill(p)
		}
		for k := range p.errors {
			err := <-p.errors[k]
			lost := new(lostError)
			if !errors.As(err, &lost) || !slices.Contains(c.again[k], lost.again) || !slices.Contains(c.waited[k], lost.waited) {
				t.Errorf("%s: picture %d: %v, again %v, waited %v", name, k, err, lost.again, lost.waited)
			}
		}
		cancel()
		SetDecodeLimit(20 * time.Second)
	}
}
