package wrap_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest/faults"
	"github.com/stocached/stocached/source/wrap"

	"golang.org/x/sys/unix"
)

// Ensure that temporary errors are tried again and final ones are not, also when one wraps the
// other.
func TestRetryable(t *testing.T) {
	for _, err := range []error{unix.EIO, unix.EAGAIN, unix.ESTALE, unix.ETIMEDOUT, unix.EMFILE, unix.ENFILE,
		unix.ENOMEM, &fs.PathError{Op: "read", Path: "x", Err: unix.EIO},
		unix.ECONNRESET} {
		if !wrap.Retryable(err) {
			t.Errorf("%v is final", err)
		}
	}
	for _, err := range []error{source.ErrIndex, source.ErrShort, source.ErrChanged, source.ErrCorrupt,
		source.ErrClosed, source.ErrInvalid, unix.ENOENT, unix.EACCES, unix.EPERM,
		unix.EISDIR, context.Canceled, context.DeadlineExceeded, errors.New("unknown"), fmt.Errorf("%w: %w",
			source.ErrChanged, unix.EIO)} {
		if wrap.Retryable(err) {
			t.Errorf("%v is tried again", err)
		}
	}
}

func retried(t *testing.T, o wrap.RetryOptions, rules ...faults.Rule) (source.Source, *faults.Source, [][]byte) {
	t.Helper()
	s, want := records(t, 6, 24)
	f := faults.Wrap(blocky{s, 3}, rules...)
	r := fatal.Value(wrap.Retry(f.Blocks(), o, nil))(t)
	return r, f, want
}

// Ensure that a read that fails twice succeeds at the third try, after growing waits of different
// lengths.
func TestRetrySucceeds(t *testing.T) {
	waits := map[time.Duration]bool{}
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			s, f, want := retried(t, wrap.RetryOptions{}, faults.Rule{Times: 2, Err: unix.EIO})
			begun := time.Now()
			got, err := readOne(s, 4)
			if err != nil || !bytes.Equal(got, want[4]) || f.Reads(4) != 3 {
				t.Errorf("%x, %v, %d reads", got, err, f.Reads(4))
			}
			waited := time.Since(begun)
			if waited < 25*time.Millisecond+37*time.Millisecond || waited > 75*time.Millisecond+113*time.Millisecond {
				t.Errorf("waited %v", waited)
			}
			waits[waited] = true
		})
	}
	if len(waits) < 2 {
		t.Errorf("five times the same waits: %v", waits)
	}
}

func TestRetryGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		o     wrap.RetryOptions
		err   error
		tries int
		text  string
	}{
		"tries":          {wrap.RetryOptions{Tries: 4}, unix.EIO, 4, "ms; retry: {tries} sets how many)"},
		"by default":     {wrap.RetryOptions{}, unix.EIO, 5, "(tries: 5, in "},
		"no time":        {wrap.RetryOptions{Seconds: 0.01}, unix.EIO, 1, "(tries: 1, in 0s; retry: {seconds} sets how long, up to read_timeout)"},
		"one try":        {wrap.RetryOptions{Tries: 1}, unix.EIO, 1, "input/output error"},
		"a final error":  {wrap.RetryOptions{}, source.ErrCorrupt, 1, "damaged"},
		"an unknown one": {wrap.RetryOptions{}, errors.New("odd"), 1, "odd"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, f, _ := retried(t, c.o, faults.Rule{Err: c.err})
			if _, err := readOne(s, 2); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) ||
				f.Reads(2) != c.tries {
				t.Errorf("%s: %v after %d tries; want %d, and %q", name, err, f.Reads(2), c.tries, c.text)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // for ever, except for the time limit
		s, f, _ := retried(t, wrap.RetryOptions{Tries: 1000, Seconds: 60}, faults.Rule{Err: unix.EIO})
		begun := time.Now()
		if _, err := readOne(s, 2); !errors.Is(err, unix.EIO) || time.Since(begun) > time.Minute ||
			time.Since(begun) < 50*time.Second || f.Reads(2) < 12 {
			t.Errorf("%v after %d tries in %v", err, f.Reads(2), time.Since(begun))
		}
	})
	synctest.Test(t, func(t *testing.T) { // an error that becomes final
		s, f, _ := retried(t, wrap.RetryOptions{}, faults.Rule{Times: 1, Err: unix.EIO},
			faults.Rule{Every: 2, Err: source.ErrChanged})
		if _, err := readOne(s, 2); !errors.Is(err, source.ErrChanged) || f.Reads(2) != 2 || strings.Contains(err.Error(), "retry:") {
			t.Errorf("%v after %d tries", err, f.Reads(2))
		}
	})
}

// Ensure that neither a context nor Close waits for the next try.
func TestRetryWaitEnds(t *testing.T) {
	cause := errors.New("had enough")
	for want, end := range map[error]func(cancel context.CancelCauseFunc, s source.Source){
		cause:            func(cancel context.CancelCauseFunc, _ source.Source) { cancel(cause) },
		source.ErrClosed: func(_ context.CancelCauseFunc, s source.Source) { s.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _, _ := retried(t, wrap.RetryOptions{Tries: 100, Seconds: 1000}, faults.Rule{Err: unix.EIO})
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			begun := time.Now()
			go func() {
				time.Sleep(time.Minute + time.Millisecond)
				end(cancel, s)
			}()
			if _, err := s.Read(ctx, 1, make([]byte, 24)); !errors.Is(err, want) || time.Since(begun) != time.Minute+time.Millisecond {
				t.Errorf("%v after %v, want %v", err, time.Since(begun), want)
			}
		})
	}
}

// Ensure that a block is read again without passing a sample on twice, and not after an error of
// its callback.
func TestRetryBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, want := records(t, 6, 24)
		// below the blocks: the second sample of one fails
		f := faults.Wrap(s, faults.Rule{Samples: []int{4}, Times: 2, Err: unix.EIO})
		r, err := wrap.Retry(blocky{f, 3}, wrap.RetryOptions{}, nil)
		fatal.If(t, err)
		if got, err := readBlock(r, 1); err != nil || !bytes.Equal(bytes.Join(got, nil), bytes.Join(want[3:], nil)) || f.Reads(3) != 3 {
			t.Errorf("%x, %v, %d reads", got, err, f.Reads(3))
		}
		calls := 0
		err = r.(source.Blocks).ReadBlock(context.Background(), 0, func(int, []byte) error { calls++; return unix.EIO })
		if err != unix.EIO || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}
