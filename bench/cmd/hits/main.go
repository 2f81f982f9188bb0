// Command hits makes hits of caches with each policy, between the marks of bench/instructions/step.c.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

const slots, times = 64, 101

func init() { runtime.LockOSThread() } // step.c follows the main thread

func mark(signal unix.Signal) {
	if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), signal); err != nil {
		panic(err)
	}
}

func main() {
	debug.SetGCPercent(-1)
	bytes := 64
	if len(os.Args) > 1 {
		bytes, _ = strconv.Atoi(os.Args[1])
	}
	fmt.Print("nothing: ")
	for range times {
		mark(unix.SIGUSR2)
		mark(unix.SIGUSR2)
	}
	mark(unix.SIGUSR1)
	data := make([]byte, bytes)
	for policy := shm.PolicyFirstCome; policy <= shm.PolicyLFU; policy++ {
		if err := hits(policy, data); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func hits(policy shm.Policy, data []byte) error {
	seg, err := shm.Create(shm.Options{Samples: slots, SampleBytes: uint64(len(data)), Policy: policy})
	if err != nil {
		return err
	}
	defer seg.Close()
	c, err := cache.Attach(seg, cache.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range slots {
		if _, err := c.Set(i, data, 0); err != nil {
			return err
		}
	}
	for k := range 20 * slots { // reference bytes as after many hits
		if _, hit, err := c.Get(k%slots, data); !hit || err != nil {
			return fmt.Errorf("no hit: %w", err)
		}
	}
	fmt.Printf("Go, %d bytes, %v: ", len(data), policy)
	for k := range times {
		mark(unix.SIGUSR2)
		_, hit, err := c.Get(k%slots, data)
		mark(unix.SIGUSR2)
		if !hit || err != nil {
			return fmt.Errorf("no hit: %w", err)
		}
	}
	mark(unix.SIGUSR1)
	return nil
}
