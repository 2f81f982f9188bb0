package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source/sourcetest"
)

// Ensure that the server's log says what decodes, and that no helper is left after the server has
// ended or was killed while helpers decoded.
func TestServerDecodes(t *testing.T) {
	helper := sourcetest.Helper(t, "../..")
	s := configureServed(t, "source: {kind: dir, path: records}, decode: {resize: [224, 224]}")
	const n = 400
	picture := fatal.Value(os.ReadFile("../../source/decode/testdata/500x375.jpg"))(t)
	fatal.If(t, os.Mkdir(s.records, 0o700))
	for k := range n {
		fatal.If(t, os.WriteFile(filepath.Join(s.records, fmt.Sprintf("%03d.jpg", k)), picture, 0o600))
	}
	launch := func(decoder string) {
		t.Helper()
		line := make([]byte, 200)
		out := s.launch("STOCACHED_DECODE=" + decoder)
		if k, err := out.Read(line); err != nil || !strings.HasPrefix(string(line[:k]), "serving") {
			t.Fatalf("%q, %v\n%s", line[:k], err, s.said())
		}
		go io.Copy(io.Discard, out)
	}
	end := func(signal syscall.Signal) {
		t.Helper()
		began, left := time.Now(), helpersOf(t, s.process.Process.Pid)
		fatal.If(t, s.process.Process.Signal(signal))
		if err := s.process.Wait(); signal == syscall.SIGTERM && err != nil {
			t.Error(err)
		}
		for _, pid := range left {
			for runs(pid) && time.Since(began) < 10*time.Second {
				time.Sleep(time.Millisecond)
			}
			if runs(pid) {
				t.Errorf("%v: process %d is left", signal, pid)
			}
		}
		t.Logf("%v: %d helpers ended within %v", signal, len(left), time.Since(began))
	}

	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		launch(helper)
		c := s.dialFor("pets", 20*time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		filled := make(chan struct{})
		go func() {
			defer close(filled)
			for first := 0; first < n && ctx.Err() == nil; first += 50 {
				indices := make([]int, 50)
				for k := range indices {
					indices[k] = first + k
				}
				_ = c.Fill(ctx, indices)
			}
		}()
		for len(helpersOf(t, s.process.Process.Pid)) == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond)
		end(signal)
		cancel()
		<-filled
		c.Close()
	}
	expect.Says(t, s.said(), "decoder=\""+helper+" (libjpeg")
}

// Ensure that a server without a decoder is refused with the ways to get one, before it starts, and that it needs none
// for the store encoded.
func TestServeWithoutADecoder(t *testing.T) {
	t.Setenv("STOCACHED_DECODE", "")
	s := configureServed(t, "source: {kind: dir, path: records}, decode: {resize: [4, 4]}")
	if err := errors.Join(os.Mkdir(s.records, 0o700),
		os.WriteFile(filepath.Join(s.records, "0.jpg"), []byte("of any bytes"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, check := range []bool{true, false} {
		args := []string{"serve", "-c", s.path}
		if check {
			args = append(args, "--check")
		}
		fails(t, exitUsage, []string{"the program stocached-decode, which decodes pictures, is neither",
			"install a package of stocached", "store: encoded"}, args...)
	}
	s.configure(s.configuration("resize: [4, 4]", "resize: [4, 4], store: encoded"))
	contains(t, ok(t, "serve", "-c", s.path, "--check"), "good, 1 cache")
}

// runs says whether a process has not ended. If its parent is dead, it may stay as a zombie.
func runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// helpersOf returns the processes of stocached-decode that a process has started.
func helpersOf(t *testing.T, parent int) (all []int) {
	t.Helper()
	stats := fatal.Value(filepath.Glob("/proc/[0-9]*/stat"))(t)
	for _, path := range stats {
		var pid, of int
		var name, state string
		text, _ := os.ReadFile(path)
		if _, err := fmt.Sscanf(string(text), "%d %s %s %d", &pid, &name, &state, &of); err == nil && of == parent &&
			name == "(stocached-decod)" {
			all = append(all, pid)
		}
	}
	return all
}
