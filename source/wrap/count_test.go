package wrap_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest/faults"
	"github.com/stocached/stocached/source/wrap"

	"golang.org/x/sys/unix"
)

func TestWatchSuite(t *testing.T) {
	suite(t, func(s source.Source) (source.Source, error) {
		return wrap.Watch(s, new(wrap.Counts), nil), nil
	})
}

func TestCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, _ := records(t, 6, 24)
		f := faults.Wrap(blocky{inner, 3}, faults.Rule{Samples: []int{1}, Err: unix.EIO},
			faults.Rule{Samples: []int{2}, Delay: 20 * time.Millisecond},
			faults.Rule{Samples: []int{5}, Delay: 2 * time.Minute})
		var c wrap.Counts
		s := wrap.Watch(f.Blocks(), &c, nil)
		for i := range 6 {
			if _, err := readOne(s, i); (err == nil) != (i != 1) {
				t.Error(i, err)
			}
		}
		expect.Works(readBlock(s, 1))(t)
		got := c.Snapshot()
		if got.Reads != 6 || got.BlockReads != 1 || got.Samples != 8 || got.Bytes != 8*24 ||
			got.Errors[wrap.KindUnavailable] != 1 || got.SecondsSum < 120.02 || got.SecondsSum > 120.1 {
			t.Errorf("%+v", got)
		}
		for k, bound := range wrap.SecondsBounds {
			want := uint64(5)
			if bound >= 0.020 {
				want = 6
			}
			if got.Seconds[k] != want { // the seventh, of 2 minutes, is in no bucket
				t.Errorf("%d reads in %v s, want %d", got.Seconds[k], bound, want)
			}
		}
		for kind, n := range got.Errors {
			if (n != 0) != (kind == wrap.KindUnavailable) {
				t.Errorf("%d errors of kind %s", n, kind)
			}
		}
	})
}

// Ensure that each kind of error is recognised when it is wrapped, and that each has its own kind.
func TestKindOf(t *testing.T) {
	cause := errors.New("had enough")
	cancelled, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	seen := map[wrap.ErrorKind]bool{}
	for err, want := range map[error]wrap.ErrorKind{
		context.Canceled: wrap.KindCancelled, context.DeadlineExceeded: wrap.KindCancelled, source.ErrClosed: wrap.KindClosed, source.ErrIndex: wrap.KindIndex,
		source.ErrShort: wrap.KindShort, source.ErrChanged: wrap.KindChanged, source.ErrCorrupt: wrap.KindDamaged, source.ErrDecode: wrap.KindDecode, source.ErrUnavailable: wrap.KindUnavailable, unix.ENOENT: wrap.KindMissing, unix.EACCES: wrap.KindDenied,
		unix.EMFILE: wrap.KindDescriptors, unix.ENFILE: wrap.KindDescriptors, unix.ETIMEDOUT: wrap.KindUnavailable, os.ErrDeadlineExceeded: wrap.KindUnavailable,
		unix.EIO: wrap.KindUnavailable, unix.ESTALE: wrap.KindUnavailable, errors.New("odd"): wrap.KindOther, cause: wrap.KindOther,
	} {
		expect.Equal(t, wrap.KindOf(context.Background(), fmt.Errorf("x: %w", err)), want, "%v", err)
		seen[want] = true
	}
	expect.Equal(t, wrap.KindOf(cancelled, fmt.Errorf("x: %w", cause)), wrap.KindCancelled, "the cause of the context")
	expect.Equal(t, wrap.KindOf(cancelled, unix.EIO), wrap.KindUnavailable, "another error with an ended context")
	counted := new(wrap.Counts).Snapshot().Errors
	for kind := range counted {
		if !seen[kind] {
			t.Errorf("no error is of kind %s", kind)
		}
	}
	expect.Equal(t, len(counted), len(seen), "kinds that are counted")
}
