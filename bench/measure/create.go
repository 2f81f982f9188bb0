package measure

import (
	"path/filepath"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"
)

// GiB is the limit of the caches that are created, images in them.
const GiB = 1 << 30

// Create measures the creation of a named cache of 1 GiB for images.
func Create(dir string, runs int) (report.Measurement, error) {
	var remove func() error
	return Alternate("go/create", "", runs, Subject{Name: "Create", Samples: 1,
		Run: func() (err error) {
			_, remove, err = fresh(dir, "create", client.Options{Samples: GiB / 150528, SampleBytes: 150528, Size: GiB})
			return err
		},
		Clean: func() error { return remove() },
	})
}

// HugeOptions are those of the cache that attaching is measured with. It has so many samples that
// its index alone has 1.6 GB. Its payload is one hole.
func HugeOptions(dir string, quick bool) client.Options {
	n := 100_000_000
	if quick {
		n = 1_000_000
	}
	return client.Options{Dir: dir, Samples: n, SampleBytes: 16, Policy: client.PolicyFirstIndices}
}

// Huge makes that cache. Others attach by its path.
func Huge(dir string, quick bool) (path string, remove func() error, err error) {
	_, remove, err = fresh(dir, "huge", HugeOptions(dir, quick))
	return filepath.Join(dir, "huge"), remove, err
}

// Attach measures attaching, with the registration of a client.
func Attach(path string, runs int) (report.Measurement, error) {
	var c *client.Cache
	return Alternate("go/attach", "", runs, Subject{Name: "Attach", Samples: 1,
		Run: func() (err error) {
			c, err = client.Attach(path, client.AttachOptions{})
			if err == nil {
				_, _, err = c.View(0) // includes what is left to the first use
			}
			return err
		},
		Clean: func() error { return c.Close() },
	})
}
