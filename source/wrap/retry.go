package wrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/source"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sys/unix"
)

// RetryOptions limit the tries of a read.
type RetryOptions struct {
	Tries   int     `key:"tries"`   // tries of a read, the first one included. 0: 5
	Seconds float64 `key:"seconds"` // no try begins later than this after the first. 0: 30
}

// The first wait before another try, and the longest. Each wait is 1.5 times the previous one, plus
// or minus up to a half at random, so that the readers of a failing disk do not all try at the same
// time.
const (
	firstWait   = 50 * time.Millisecond
	longestWait = 5 * time.Second
)

// Retry tries a read again after an error that may pass (Retryable), with growing waits between
// tries. It returns the last error, with the number of tries and their time. A wait ends at once
// when the read's context ends. A block is read again from its beginning, but no sample is passed
// on twice. told takes notice of tries that fail; nil: none does. It returns ErrInvalid for negative
// options.
func Retry(s source.Source, o RetryOptions, told *source.Retries) (source.Source, error) {
	if o.Tries < 0 || !(o.Seconds >= 0) || o.Seconds > 1e9 {
		return nil, fmt.Errorf("%w: retry of %d tries in %v seconds", source.ErrInvalid, o.Tries, o.Seconds)
	}
	o.Tries, o.Seconds = cmp.Or(o.Tries, 5), cmp.Or(o.Seconds, 30)
	return through(s, retry{o, told}), nil
}

// passing are errors that another try may not meet. final are errors that it will meet, also if they
// wrap others.
//
//	EIO EREMOTEIO                          a device or a server failed once
//	EAGAIN EINTR EBUSY ENOMEM ENOBUFS      temporary
//	EMFILE ENFILE                          too many open files: others may close theirs
//	ESTALE                                 a network file was replaced, or its server restarted: the next try
//	                                       opens it by name
//	ETIMEDOUT and other errors of networks the connection may come back
//	ErrUnavailable                         a remote source is busy, or an answer broke off
//	ErrIndex ErrShort ErrInvalid           a mistake of the caller
//	ErrChanged ErrCorrupt                  a fault of the data
//	ErrClosed, ends of contexts            the caller wants no answer
//	missing files, no permission           an operator must act
//
// All other errors are final.
var (
	passing = append([]error{unix.EAGAIN, unix.EINTR, unix.EBUSY, unix.ENOMEM, unix.ENOBUFS, unix.EMFILE, unix.ENFILE},
		unreachable...)
	unreachable = []error{unix.EIO, unix.EREMOTEIO, unix.ESTALE, unix.ETIMEDOUT,
		unix.ECONNRESET, unix.ECONNABORTED, unix.ECONNREFUSED, unix.EHOSTDOWN, unix.EHOSTUNREACH,
		unix.ENETDOWN, unix.ENETUNREACH, unix.ENETRESET, unix.EPIPE,
		os.ErrDeadlineExceeded, source.ErrUnavailable}
	final = []error{source.ErrIndex, source.ErrShort, source.ErrInvalid, source.ErrChanged, source.ErrCorrupt,
		source.ErrClosed, context.Canceled, context.DeadlineExceeded,
		fs.ErrNotExist, fs.ErrPermission}
)

// Retryable says whether another try may succeed after err.
func Retryable(err error) bool { return isAny(err, passing) && !isAny(err, final) }

func isAny(err error, of []error) bool {
	return slices.ContainsFunc(of, func(one error) bool { return errors.Is(err, one) })
}

type retry struct {
	RetryOptions
	told *source.Retries
}

func (t retry) pass(ctx context.Context, closing <-chan struct{}, r read) (int, error) {
	if r.each == nil {
		return t.try(ctx, closing, r, new(error))
	}
	var refused error // error of the caller's each, after which each is not called again
	each, next := r.each, 0
	r.each = func(i int, sample []byte) error {
		if i < next {
			return nil
		}
		next = i + 1
		refused = each(i, sample)
		return refused
	}
	return t.try(ctx, closing, r, &refused)
}

// try reads until the read succeeds, each fails, or another try is useless.
func (t retry) try(ctx context.Context, closing <-chan struct{}, r read, refused *error) (int, error) {
	begun := time.Now()
	n, err := r.do(ctx)
	if err == nil || *refused != nil || !Retryable(err) || t.Tries == 1 { // the usual cases, without allocation
		return n, err
	}
	waits := backoff.NewExponentialBackOff()
	waits.InitialInterval, waits.MaxInterval = firstWait, longestWait
	limit := time.Duration(t.Seconds * float64(time.Second))
	tries := 1
	t.told.Begin()
	defer t.told.End()
	for ; err != nil && *refused == nil && Retryable(err) && ctx.Err() == nil && tries < t.Tries; tries++ {
		wait := waits.NextBackOff()
		if time.Since(begun)+wait > limit {
			break
		}
		t.told.Failed(err)
		paused := time.Now()
		ended := sleep(ctx, closing, wait)
		loadtime.Queued(ctx, time.Since(paused)) // the next load of the sample needs no pause
		if ended != nil {
			return 0, fmt.Errorf("%w while waiting to read again, after %d tries: %v", ended, tries, err)
		}
		n, err = r.do(ctx)
	}
	if err != nil && *refused == nil {
		next := ""
		switch {
		case !Retryable(err) || ctx.Err() != nil:
		case tries < t.Tries:
			next = "; retry: {seconds} sets how long, up to read_timeout"
		default:
			next = "; retry: {tries} sets how many"
		}
		err = fmt.Errorf("%w (tries: %d, in %v%s)", err, tries, time.Since(begun).Round(time.Millisecond), next)
	}
	return n, err
}
