//go:build faultpoints

package tar_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
	"github.com/stocached/stocached/source/tar"

	"golang.org/x/sys/unix"
)

const (
	childPath    = "STOCACHED_TEST_TAR" // set: this process is a child that opens that shard
	faultSamples = 6000                 // enough for an index that is written in several pieces
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		s, err := tar.Kind.Open(context.Background(), source.Settings{"path": path})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(s.Info().Notes)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child starts a process that opens a shard with a fault.
func child(t *testing.T, path, fault string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childPath+"="+path, "STOCACHED_FAULT="+fault)
	c.Stderr = os.Stderr
	fatal.If(t, c.Start())
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

func wantKilled(t *testing.T, c *exec.Cmd) {
	t.Helper()
	err := c.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed: %v", err)
	}
}

func wantStopped(t *testing.T, c *exec.Cmd) {
	t.Helper()
	var status unix.WaitStatus
	if _, err := unix.Wait4(c.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child did not stop: %v, %v", status, err)
	}
}

func faultShard(t *testing.T) string {
	members, _ := samplesOf(t, 0, faultSamples, func(i int) int { return i % 100 })
	return shardOf(t, members...)
}

// wantWhole opens the shard and checks all samples and this note.
func wantWhole(t *testing.T, path, name, text string) {
	t.Helper()
	s := mustOpen(t, source.Settings{"path": path})
	sourcetest.WantNote(t, s, name, text)
	fatal.Equal(t, s.Info().Samples, faultSamples, "samples")
	for i := 0; i < faultSamples; i += 599 {
		expect.Equal(t, sample(t, s, i)["jpg"], string(bytesOf(i, i%100)), "sample %d", i)
	}
}

// A process that is killed at any step of writing an index leaves a complete index, or one that no
// reader accepts. The next process makes the index, and no other file is left.
func TestKilledWhileKeepingAnIndex(t *testing.T) {
	for _, old := range []bool{false, true} {
		for point, whole := range map[string]bool{"index.locked": false, "index.part": false, "index.part@2": false,
			"index.synced": false, "index.renamed": true} {
			t.Run(fmt.Sprintf("%s, an old index: %v", point, old), func(t *testing.T) {
				path := faultShard(t)
				if old { // the index of the shard before it was changed
					mustOpen(t, source.Settings{"path": path})
					later := time.Now().Add(time.Second)
					fatal.If(t, os.Chtimes(path, later, later))
				}
				wantKilled(t, child(t, path, point+"=kill"))
				_, err := os.Stat(path + suffix)
				expect.Equal(t, err == nil, (whole || old), "there is an index")
				if whole {
					wantWhole(t, path, "indexes kept", "1")
				} else {
					wantWhole(t, path, "indexes made", "1")
				}
				wantWhole(t, path, "indexes kept", "1")
				if _, err := os.Stat(path + suffix + ".new"); err == nil {
					t.Error("an incomplete index is left over")
				}
			})
		}
	}
}

// While one process writes an index, another one that needs it makes its own in memory. Whichever
// ends last, the file is complete.
func TestTwoKeepOneIndex(t *testing.T) {
	for _, point := range []string{"index.locked", "index.part", "index.synced"} {
		t.Run(point, func(t *testing.T) {
			path := faultShard(t)
			c := child(t, path, point+"=stop")
			wantStopped(t, c)
			wantWhole(t, path, "indexes not kept", "another process is writing it")
			fatal.If(t, c.Process.Signal(syscall.SIGCONT))
			fatal.If(t, c.Wait())
			wantWhole(t, path, "indexes kept", "1")
		})
	}
	// A process that opened the file of another one, and gets the lock after that file has become
	// the index, must not write to it.
	path := faultShard(t)
	first := child(t, path, "index.opened=stop")
	wantStopped(t, first)
	wantWhole(t, path, "indexes made", "1")
	before := fatal.Value(os.Stat(path + suffix))(t)
	fatal.If(t, first.Process.Signal(syscall.SIGCONT))
	fatal.If(t, first.Wait())
	if after, err := os.Stat(path + suffix); err != nil || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		t.Errorf("the index was written to: %v, then %v, %v", before, after, err)
	}
	wantWhole(t, path, "indexes kept", "1")
}
