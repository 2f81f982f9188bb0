package served_test

import (
	"runtime"
	"testing"

	"github.com/stocached/stocached/server/served"
)

// There are as many readers as lanes.
func TestReadersByDefault(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	resize := map[string]any{"resize": []int{8, 8}}
	for _, c := range []struct {
		processors, asked, want int
		decode                  map[string]any
	}{{2, 0, 4, nil}, {1, 0, 4, resize}, {2, 0, 8, resize}, {7, 0, 28, resize}, {8, 0, 32, resize},
		{64, 0, 32, resize}, {2, 3, 3, resize}} {
		runtime.GOMAXPROCS(c.processors)
		o := served.Options{Name: "pets", Parallel: c.asked, Decode: c.decode}
		if err := o.Check(); err != nil || o.Parallel != c.want {
			t.Errorf("%d processors, parallel %d, decode %v: %d readers, want %d; %v", c.processors, c.asked, c.decode,
				o.Parallel, c.want, err)
		}
	}
}
