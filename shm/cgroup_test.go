package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/cgroup"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

func init() { children["in-cgroup"] = childInCgroup }

// Ensure that in a real cgroup of 512 MiB a cache that does not fit is refused before any
// allocation, and that a fill that draws from its allowance gets FULL and is not killed.
func TestRealCgroup(t *testing.T) {
	g := memoryGroup(t, 512<<20)
	runInGroup(t, g, "in-cgroup", g.LimitFile)
}

// memoryGroup makes a cgroup of the memory controller, until the test ends.
func memoryGroup(t *testing.T, limit uint64) *cgroup.Group {
	t.Helper()
	g, err := cgroup.New(limit)
	if errors.Is(err, cgroup.ErrNone) {
		fatal.Privileged(t, "make a cgroup with a memory limit", err)
	}
	fatal.If(t, err)
	t.Cleanup(func() { expect.NoError(t, g.Remove()) })
	return g
}

// runInGroup is runChild in a cgroup.
func runInGroup(t *testing.T, g *cgroup.Group, name string, args ...string) {
	t.Helper()
	self := fatal.Value(os.Executable())(t)
	cmd := g.Command(self, args...)
	cmd.Env = append(os.Environ(), "STOCACHED_TEST_CHILD="+name)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("child %s: %v\n%s", name, err, out)
	}
}

func childInCgroup(args []string) error {
	_, err := Create(Options{Samples: 1000, SampleBytes: 1 << 20})
	if err := refusal(err, ErrMemory, "cgroup", args[0], "536870912 bytes (512.0 MiB)", "floor of 134217728"); err != nil {
		return err
	}
	s, err := Create(Options{Samples: 300, SampleBytes: 1 << 20})
	if err != nil {
		return err
	}
	// Another allocation after the check. The rest is not enough for all slots.
	other, err := unix.MemfdCreate("stoctest", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.Fallocate(other, 0, 0, 150<<20); err != nil {
		return err
	}
	sample, filled, allowance := make([]byte, 1<<20), uint64(0), s.NewAllowance(0)
	for slot := range s.Slots {
		var drawn uint64
		if drawn, err = allowance.Draw(s.SlotStride); err != nil {
			break
		}
		if _, err := s.WritePayload(sample, slot*s.SlotStride); err != nil {
			return err
		}
		allowance.Settle(drawn)
		filled += uint64(len(sample))
	}
	if err := refusal(err, ErrFull, "cgroup", "floor of 134217728"); err != nil {
		return fmt.Errorf("after %d bytes: %w", filled, err)
	}
	if filled == 0 {
		return errors.New("nothing could be filled")
	}
	if !strings.Contains(err.Error(), "not cached") {
		return err
	}
	return s.Close()
}
