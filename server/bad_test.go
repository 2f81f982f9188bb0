package server_test

import (
	"fmt"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

// Ensure that a bad sample is read once, that each client that asks for it gets BAD with the file and
// the reason, that other errors are read again, and that a prefetch does no harm.
func TestBadSamples(t *testing.T) {
	m := newMemory(30, 1000)
	for _, i := range []int{4, 5, 29} {
		m.fails[i] = fmt.Errorf("a wrapper: %w", &source.BadError{Where: fmt.Sprintf("%d.jpg", i), Reason: "it is cut"})
	}
	m.fails[7] = unix.EIO
	m.fails[8] = fmt.Errorf("%w: a checksum", source.ErrCorrupt)
	s, _ := start(t, options(t, m, server.CacheOptions{Parallel: 2}))
	p, number, c := attachTo(t, s)
	for round := range 2 {
		a := p.fetch(number, 0, append(upTo(30), 4)...)
		expect.Equal(t, len(a.failures), 6, "%+v", a.failures)
		for position, i := range map[uint32]int{4: 4, 5: 5, 29: 29, 30: 4} {
			if g := a.failures[position]; g.Code != control.CodeBad || g.Text != fmt.Sprintf("%d.jpg: it is cut", i) {
				t.Errorf("position %d: %+v", position, g)
			}
		}
		if a.failures[7].Code != control.CodeRead || a.failures[8].Code != control.CodeDamaged {
			t.Errorf("%+v", a.failures)
		}
		expect.Gives(c.State(4))(t, cache.StateEmpty)
		if m.begun(4) != 1 || m.begun(29) != 1 || m.begun(7) != round+1 || m.begun(3) != 1 {
			t.Errorf("read %d, %d, %d and %d times", m.begun(4), m.begun(29), m.begun(7), m.begun(3))
		}
	}
	q, other, _ := join(t, s)
	if a := q.fetch(other, control.Send, 4, 6); a.failures[0].Code != control.CodeBad || len(a.samples) != 1 {
		t.Errorf("%+v", a)
	}
	expect.Equal(t, about(t, s)["bad_samples"], 3.0, "")
	wantMetrics(t, s, `stocached_bad_samples{cache="pets"} 3`)
	wantMetrics(t, s, `stocached_source_errors_total{cache="pets",kind="decode"} 3`)
	wantMetrics(t, s, `stocached_source_errors_total{cache="pets",kind="damaged"} 2`)
	// A client may store the sample.
	fatal.Gives(c.Set(4, sourcetest.Content(4, 1000), 0))(t, cache.Stored)
	p.wantFetched(number, 4)
}
