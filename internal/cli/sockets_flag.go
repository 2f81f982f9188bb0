package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/sockets"
	"github.com/stocached/stocached/shm"
)

// socketsFlag says how to reach a server.
type socketsFlag struct {
	dir     string        // folder of the sockets. "": sockets.Find chooses
	timeout time.Duration // for an answer
}

// folder adds only --sockets.
func (f *socketsFlag) folder(c *cobra.Command) {
	c.Flags().StringVar(&f.dir, "sockets", "", "folder of the server's sockets (default $"+control.SocketsVariable+
		", else $XDG_RUNTIME_DIR/stocached, else /tmp/stocached-UID)")
	must(c.MarkFlagDirname("sockets"))
}

func (f *socketsFlag) add(c *cobra.Command) {
	f.folder(c)
	c.Flags().DurationVar(&f.timeout, "timeout", 2*time.Second, "how long to wait for a server to answer")
}

func (f *socketsFlag) check() error {
	if f.timeout <= 0 {
		return usage("--timeout %v is not above 0", f.timeout)
	}
	return nil
}

// path returns the folder of the sockets.
func (f *socketsFlag) path() string {
	return sockets.Find(f.dir).Path
}

func (f *socketsFlag) options() stocclient.DialOptions {
	return stocclient.DialOptions{SocketsDir: f.dir, Timeout: f.timeout, Label: "stocached"}
}

// asMissing gives the error of an unknown name the exit code of a missing cache.
func asMissing(err error) error {
	var remote *stocclient.RemoteError
	if errors.As(err, &remote) && remote.Code == control.CodeNotFound {
		return fmt.Errorf("%w: %s", shm.ErrNotFound, remote.Text)
	}
	return err
}

// checkServed checks the name of a server's cache.
func checkServed(name string) error {
	if err := shm.CheckName(name); err != nil {
		return usage("%q is not a name of a server's cache: its configuration has the names, which are not paths", name)
	}
	return nil
}

// complete offers the names of the server's caches to the shell.
func (f *socketsFlag) complete(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond) // the longest wait after a key press
	defer cancel()
	var caches []struct{ Name string }
	if err := (admin{f.dir}).json(ctx, "/v1/caches", &caches); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range caches {
		if checkServed(c.Name) == nil {
			names = append(names, c.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
