package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/tmpfs"
)

func init() { servedChildren["churn"] = churn }

// churn is "churn DIR": it creates the cache x or attaches to it, stores and reads a sample, and closes, again and again
// until its standard input ends.
func churn(args []string) error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	fmt.Println("ready")
	for k := 0; ; k++ {
		select {
		case err := <-ended:
			return err
		default:
		}
		c, err := stocclient.Create("x", stocclient.Options{Samples: 10, SampleBytes: 100, Dir: args[0], Clients: 8})
		if errors.Is(err, stocclient.ErrExists) {
			c, err = stocclient.Attach(args[0]+"/x", stocclient.AttachOptions{})
		}
		if errors.Is(err, stocclient.ErrNotFound) {
			continue // it was removed in between
		}
		if err != nil {
			return err
		}
		dst := make([]byte, 100)
		r, err := c.Set(k%10, content(k%10, 100), 0)
		if err != nil {
			return err
		}
		if _, hit, err := c.Get(k%10, dst); err != nil || !hit && r != stocclient.Busy || hit && !bytes.Equal(dst, content(k%10, 100)) {
			return fmt.Errorf("sample %d: set %v, hit %v, %w", k%10, r, hit, err)
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
}

// Ensure that gc, rm and ls run beside programs that create, attach and close, and that neither side fails or loses a
// sample.
func TestRemovalBesidePrograms(t *testing.T) {
	dir := tmpfs.Folder(t)
	programs := []*process{start(t, "churn", dir), start(t, "churn", dir)}
	for k := range 21 {
		for _, args := range [][]string{{"gc", "--yes"}, {"rm", "x"}, {"ls"}, {"stats"}} {
			if k%3 > 0 && args[0] == "rm" {
				continue
			}
			if code, _, stderr := cli(t, append(args, "--dir", dir)...); code != exitOK && (code != exitNotFound || args[0] == "gc") {
				t.Errorf("%v: status %d: %s", args, code, stderr)
			}
		}
	}
	for _, p := range programs {
		p.end(t)
	}
	ok(t, "gc", "--yes", "--dir", dir)
	expect.Equal(t, ok(t, "ls", "--dir", dir, "--json"), "[]\n", "")
}
