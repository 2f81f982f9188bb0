//go:build cgo

package conform

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/decisions"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Each language makes exactly the simulator's decisions.
func TestDecisionsAreTheSimulators(t *testing.T) { inEachLanguage(t, decisions.Compare) }

// And in an arena that evicts too.
func TestChainsAreTheSimulators(t *testing.T) { inEachLanguage(t, decisions.CompareChains) }

func inEachLanguage(t *testing.T, compare func(*testing.T, func(*testing.T, shm.Options) (*shm.Segment, decisions.Client))) {
	for language := range languages {
		t.Run(languages[language].name, func(t *testing.T) {
			compare(t, func(t *testing.T, o shm.Options) (*shm.Segment, decisions.Client) {
				o.Name, o.Dir = "policy", directory(t)
				seg := fatal.Value(shm.Create(o))(t)
				t.Cleanup(func() { seg.Close() })
				return seg, decider{t, open(t, language, filepath.Join(o.Dir, o.Name), false)}
			})
		})
	}
}

// decider is a decisions.Client.
type decider struct {
	t *testing.T
	c client
}

func (d decider) Get(i int, dst []byte) bool {
	code, _ := d.c.get(i, dst)
	if code < 0 {
		d.t.Fatalf("get of sample %d: %d", i, code)
	}
	return code == 1
}

func (d decider) SetLoaded(i int, data []byte, took time.Duration) bool {
	code := d.c.setLoaded(i, [][]byte{data}, cache.Overwrite, int64(took))
	if code < 0 {
		d.t.Fatalf("set of sample %d: %d", i, code)
	}
	return code == int(cache.Stored)
}
