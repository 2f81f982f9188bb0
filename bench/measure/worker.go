package measure

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"

	"github.com/stocached/stocached/client"

	"golang.org/x/sys/unix"
)

// Worker is the program that type process describes, in Go.
func Worker(arguments []string) error {
	switch {
	case len(arguments) == 4 && arguments[0] == "hits":
		core, err1 := strconv.Atoi(arguments[2])
		seed, err2 := strconv.Atoi(arguments[3])
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		return hitsWorker(arguments[1], core, uint64(seed))
	case len(arguments) == 2 && arguments[0] == "memory":
		return memoryWorker(arguments[1])
	case len(arguments) == 6 && arguments[0] == "read":
		samples, err1 := strconv.Atoi(arguments[3])
		bytes, err2 := strconv.Atoi(arguments[4])
		seed, err3 := strconv.Atoi(arguments[5])
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		return readWorker(arguments[1], arguments[2], samples, bytes, uint64(seed))
	case len(arguments) == 3 && arguments[0] == "asked":
		bytes, err := strconv.Atoi(arguments[2])
		if err != nil {
			return err
		}
		return askedWorker(arguments[1], bytes)
	case len(arguments) == 1 && arguments[0] == "tick":
		return tickWorker()
	}
	return fmt.Errorf("worker %q: want hits PATH CORE SEED, memory PATH, read KIND ADDRESS SAMPLES BYTES SEED, "+
		"asked SOURCE BYTES, or tick", arguments)
}

func hitsWorker(path string, core int, seed uint64) error {
	runtime.LockOSThread()
	var cores unix.CPUSet
	cores.Set(core)
	if err := unix.SchedSetaffinity(0, &cores); err != nil {
		return fmt.Errorf("pin to core %d: %w", core, err)
	}
	c, err := client.Attach(path, client.AttachOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	order := rand.New(rand.NewPCG(seed, 0)).Perm(c.Info().Samples)
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var start, window int64
		if _, err := fmt.Sscanf(in.Text(), "go %d %d", &start, &window); err != nil {
			return err
		}
		for monotonic() < start {
		}
		var before, after unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before); err != nil {
			return err
		}
		views := 0
		for at := 0; views == 0 || monotonic() < start+window; views += 256 {
			for range 256 {
				if _, hit, err := c.View(order[at]); !hit || err != nil {
					return errors.Join(errMiss, err)
				}
				if at++; at == len(order) {
					at = 0
				}
			}
		}
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after); err != nil {
			return err
		}
		fmt.Println(views, monotonic()-start, after.Nano()-before.Nano())
	}
	return nil
}

func memoryWorker(path string) error {
	c, err := client.Attach(path, client.AttachOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range c.Info().Samples {
		p, hit, err := c.View(i)
		if !hit || err != nil {
			return errors.Join(errMiss, err)
		}
		touch(p)
		runtime.KeepAlive(p[len(p)-1])
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		bytes, err := shareOf(os.Getpid(), path)
		if err == nil && bytes == 0 {
			err = fmt.Errorf("smaps has no pages of %s", path)
		}
		if err != nil {
			return err
		}
		fmt.Println(bytes)
	}
	return nil
}

func monotonic() int64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) //nolint:errcheck // cannot fail with this clock
	return now.Nano()
}
