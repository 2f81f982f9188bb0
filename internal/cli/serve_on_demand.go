package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source/s3"
)

// onDemand are the flags of a server for the addresses that programs open.
type onDemand struct {
	on   bool
	dir  socketsFlag
	by   string
	idle time.Duration
}

func (d *onDemand) add(c *cobra.Command) {
	c.Flags().BoolVar(&d.on, "on-demand", false, "serve the addresses that programs open, and end after the last program")
	d.dir.folder(c)
	c.Flags().StringVar(&d.by, "by", "", "with --on-demand: the program that starts it, for ls and top")
	c.Flags().DurationVar(&d.idle, "idle", 30*time.Second, "with --on-demand: how long it stays without a program, at least 1s")
}

// serve serves until no program uses the server.
func (d *onDemand) serve(c *cobra.Command) error {
	if d.idle < time.Second {
		return usage("--idle %v is below 1s", d.idle)
	}
	// It keeps keys in memory. A limit of 1 also stops dumps that the kernel pipes to a program, which 0 does not.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("no core dumps: %w", err)
	}
	ctx, stop := interruptible(c.Context())
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	options := server.Options{SocketsDir: d.dir.dir, Log: log, Version: version,
		OnDemand: &server.OnDemand{By: d.by, Idle: d.idle, End: stop, Keys: s3.HandKeys}}
	page := serverPage(&options)
	options.Page = page
	s, err := server.New(ctx, options)
	if err != nil {
		return err
	}
	log.Info("serves on demand", "by", d.by, "sockets", s.Dir(), "pid", os.Getpid())
	fmt.Fprintln(c.OutOrStdout(), "serving on demand on", s.Dir())
	// Who started it waits for this line on a pipe, and must not wait for the end of the pipe.
	return errors.Join(closeOutput(), s.Serve(ctx))
}

// closeOutput leads what is written to the standard output nowhere.
func closeOutput() error {
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer nowhere.Close()
	return unix.Dup3(int(nowhere.Fd()), int(os.Stdout.Fd()), 0)
}
