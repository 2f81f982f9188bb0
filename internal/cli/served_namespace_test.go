package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
)

func init() { servedChildren["elsewhere"] = fetchElsewhere }

// fetchElsewhere is "elsewhere SOCKETS SEGMENTS", in its own mount namespace: a client that cannot
// see the folder of the segments, as in a container.
func fetchElsewhere(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("none", "/dev/shm", "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if _, err := stocclient.Attach(args[1]+"/pets", stocclient.AttachOptions{}); !errors.Is(err,
		stocclient.ErrNotFound) {
		return fmt.Errorf("the segment can be seen: %w", err)
	}
	c, err := stocclient.Dial(context.Background(), "pets", stocclient.DialOptions{SocketsDir: args[0]})
	if err != nil {
		return err
	}
	samples, err := c.FetchSamples(context.Background(), first(50))
	if err != nil {
		return err
	}
	for i, sample := range samples {
		if !bytes.Equal(sample, servedRecord(i)) {
			return fmt.Errorf("sample %d came wrong", i)
		}
	}
	// a client with its own lock
	if result, err := c.Set(70, servedRecord(70), 0); result != stocclient.Stored || err != nil {
		return fmt.Errorf("set: %v, %w", result, err)
	}
	return c.Close()
}

// Ensure that a program in another mount namespace, which cannot see the segment, gets it through
// the socket, and can use it fully.
func TestFetchFromAnotherMountNamespace(t *testing.T) {
	s := newServed(t, 100, "all")
	p := exec.Command(os.Args[0], s.sockets, s.segments)
	p.Env = append(os.Environ(), childVariable+"=elsewhere")
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNS}
	out, err := p.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("making a mount namespace is not permitted here")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	expect.Equal(t, ready(t, s.dial().Cache), 51, "samples are there")
}
