package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
)

// Ensure that clients get a cache without a name only from its server. It outlives the server in
// its clients, and is cold when the next server starts.
func TestServedWithoutAName(t *testing.T) {
	s := newFolder(t)
	s.configure(fmt.Sprintf("caches: [{name: pets, unnamed: true, source: {kind: raw, path: records, sample_bytes: %d}}]\n",
		servedBytes))
	s.write(300)
	s.start()
	expect.Fails(stocclient.Attach("pets", stocclient.AttachOptions{}))(t, stocclient.ErrNotFound)
	c, other := s.dial(), s.dial()
	wantFetch(t, c, first(200))
	wantFetch(t, other, first(200))
	if c.Info().Path != "" || s.metric("stocached_source_reads_total", `cache="pets"`) != 200 {
		t.Errorf("its path is %q, the server has read %v samples", c.Info().Path,
			s.metric("stocached_source_reads_total", `cache="pets"`))
	}
	s.kill()
	wantFetch(t, c, first(200)) // hits
	s.start()
	if err := c.Fetch(context.Background(), []int{250}, make([]byte, servedBytes), servedBytes); !errors.Is(err,
		stocclient.ErrReplaced) {
		t.Errorf("the next server has another one: %v", err)
	}
	again := s.dial()
	expect.Equal(t, ready(t, again.Cache), 0, "samples are there")
	wantFetch(t, again, first(300))
}
