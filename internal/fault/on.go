//go:build faultpoints

package fault

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Enabled says whether fault points exist in this build.
const Enabled = true

var (
	hook  atomic.Pointer[func(string)]
	armed = parse(os.Getenv("STOCACHED_FAULT"))
)

// order is the content of STOCACHED_FAULT.
type order struct {
	point  string
	signal unix.Signal
	left   atomic.Int64 // remaining passes; the pass that makes it 0 gets the signal
}

// parse reads an order; nil if there is none. It panics on a malformed order: otherwise a test
// would pass without its fault.
func parse(text string) *order {
	if text == "" {
		return nil
	}
	where, what, ok := strings.Cut(text, "=")
	point, count, counted := strings.Cut(where, "@")
	n := 1
	if counted {
		var err error
		if n, err = strconv.Atoi(count); err != nil || n < 1 {
			ok = false
		}
	}
	o := &order{point: point}
	switch what {
	case "kill":
		o.signal = unix.SIGKILL
	case "stop":
		o.signal = unix.SIGSTOP
	default:
		ok = false
	}
	if !ok || point == "" {
		panic(fmt.Sprintf("STOCACHED_FAULT=%q: want <point>[@<n>]=<kill|stop>", text))
	}
	o.left.Store(int64(n))
	return o
}

// At passes a fault point.
func At(point string) {
	if f := hook.Load(); f != nil {
		(*f)(point)
	}
	if armed != nil && armed.point == point && armed.left.Add(-1) == 0 {
		// Send the signal to this thread. Another thread could take a signal to the process, and
		// this one would go on for a while.
		runtime.LockOSThread()
		unix.Tgkill(unix.Getpid(), unix.Gettid(), armed.signal)
		runtime.UnlockOSThread()
	}
}

// SetHook installs a function that is called at every point, in the goroutine that passes it; nil
// removes it. The function may block, or call runtime.Goexit, which ends the goroutine there like a
// death.
func SetHook(f func(point string)) {
	if f == nil {
		hook.Store(nil)
		return
	}
	hook.Store(&f)
}
