package wrap_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest/faults"
	"github.com/stocached/stocached/source/wrap"

	"golang.org/x/sys/unix"
)

func TestApplySuite(t *testing.T) {
	suite(t, func(s source.Source) (source.Source, error) {
		_, blocks := s.(source.Blocks)
		return wrap.Apply(s, map[string]any{
			"limits": map[string]any{"concurrency": 3, "bytes_per_second": "1GB",
				"latency": "1us"}, "retry": map[string]any{"tries": 2}, "read_ahead": map[string]any{"blocks": blocks},
		}, nil)
	})
}

// Ensure that settings add their wrappers, with their options, in the documented order.
func TestApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, want := records(t, 10, 15_000)
		f := faults.Wrap(inner, faults.Rule{Times: 1, Err: unix.EIO})
		s, err := wrap.Apply(f, map[string]any{"limits": map[string]any{"concurrency": 1, "bytes_per_second": "150MB", "latency": "8ms"}, "retry": map[string]any{"tries": 2},
			"read_ahead": map[string]any{"size": "64KiB", "readers": 1}}, nil)
		fatal.If(t, err)
		begun := time.Now()
		expect.Equal(t, s.(wrap.Ahead).Prefetch([]int{1, 2, 3, 4, 5}), 5, "announced")
		time.Sleep(time.Second)
		expect.Equal(t, s.(wrap.Ahead).Held(), 4*15_000, "bytes held")
		wantSample(t, s, want, 1)
		if f.Reads(1) != 2 || time.Since(begun) != time.Second {
			t.Errorf("%d reads, %v", f.Reads(1), time.Since(begun))
		}
		time.Sleep(time.Second)
		begun = time.Now()
		wantSample(t, s, want, 9)
		expect.Equal(t, time.Since(begun), 8100*time.Microsecond, "took")
		s.Close()
	})
	inner, _ := records(t, 10, 24)
	for _, settings := range []map[string]any{nil, {}, {"limits": nil}, {"limits": map[string]any{}},
		{"retry": nil, "read_ahead": nil}} {
		expect.Gives(wrap.Apply(inner, settings, nil))(t, inner, settings)
	}
	synctest.Test(t, func(t *testing.T) {
		f := faults.Wrap(inner, faults.Rule{Err: unix.EIO})
		s := fatal.Value(wrap.Apply(f, map[string]any{"retry": map[string]any{}}, nil))(t)
		if _, err := readOne(s, 1); !errors.Is(err, unix.EIO) || f.Reads(1) != 5 {
			t.Errorf("%v after %d tries, want the default of 5", err, f.Reads(1))
		}
	})
}

func TestApplyRefuses(t *testing.T) {
	inner, _ := records(t, 10, 24)
	for want, settings := range map[string]map[string]any{
		`unknown key "limit"; known are: limits, read_ahead, retry`:                                            {"limit": 1},
		`limits: invalid source: unknown key "rate"; known are: bytes_per_second, concurrency, heads, latency`: {"limits": map[string]any{"rate": 1}},
		`8 has no unit`:                {"limits": map[string]any{"latency": 8}},
		`"150 M" is not a size`:        {"limits": map[string]any{"bytes_per_second": "150 M"}},
		`concurrency is 0`:             {"limits": map[string]any{"concurrency": 0}},
		`concurrency is -3`:            {"limits": map[string]any{"concurrency": -3}},
		`describe no device`:           {"limits": map[string]any{"latency": "-8ms"}},
		`retry of -1 tries`:            {"retry": map[string]any{"tries": -1}},
		`1.5 is not a whole`:           {"retry": map[string]any{"tries": 1.5}},
		`in -1 seconds`:                {"retry": map[string]any{"seconds": -1}},
		`unknown key "try"`:            {"retry": map[string]any{"try": 1}},
		`read_ahead: invalid`:          {"read_ahead": map[string]any{"readers": -1}},
		`blocks: this source has none`: {"read_ahead": map[string]any{"blocks": true}},
		`limits: a mapping is wanted, and there is a whole number`: {"limits": 3},
	} {
		if s, err := wrap.Apply(inner, settings, nil); s != nil || !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", settings, err, want)
		}
	}
}
