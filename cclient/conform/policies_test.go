//go:build cgo

package conform

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stocached/stocached/internal/verify/decisions"
	"github.com/stocached/stocached/shm"
)

// Each language makes exactly the simulator's decisions.
func TestDecisionsAreTheSimulators(t *testing.T) {
	for language := range languages {
		t.Run(languages[language].name, func(t *testing.T) {
			decisions.Compare(t, func(t *testing.T, o shm.Options) (*shm.Segment, decisions.Client) {
				o.Name, o.Dir = "policy", directory(t)
				seg, err := shm.Create(o)
				if err != nil {
					t.Fatal(err)
				}
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

func (d decider) SetLoaded(i int, data []byte, took time.Duration) {
	if code := d.c.setLoaded(i, [][]byte{data}, 0, int64(took)); code < 0 {
		d.t.Fatalf("set of sample %d: %d", i, code)
	}
}

// C does not know arenas that evict yet: it refuses to attach one.
func TestArenaThatEvictsIsRefused(t *testing.T) {
	o := shm.Options{Name: "arena", Dir: directory(t), Samples: 10, Variable: true, Policy: shm.PolicyCost,
		SlotBytes: 4096, Limit: 8 << 20}
	seg, err := shm.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	defer seg.Close()
	c, code, message := openC(seg.Path(), false)
	if c != nil {
		c.close()
	}
	if code != shm.Code(shm.ErrFormat) || !strings.Contains(message, "policy 2 of a segment with the flags") {
		t.Errorf("C: %d %s", code, message)
	}
}
