package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// damage changes a byte of a file, as another program could.
func damage(t testing.TB, path string, at uint64) {
	t.Helper()
	overwrite(t, path, at, 0xff)
}

// overwrite changes bytes of a file.
func overwrite(t testing.TB, path string, at uint64, bytes ...byte) {
	t.Helper()
	f := fatal.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer f.Close()
	fatal.Value(f.WriteAt(bytes, int64(at)))(t)
}

// Ensure that verify finds exactly the samples that differ from what was stored, and ends with its
// own code.
func TestVerify(t *testing.T) {
	// several steps
	_, path := newCache(t, shm.Options{Samples: 200000, Slots: 100, SampleBytes: 100, UnlinkLast: true})
	c := newClient(t, path)
	for i := range 100 {
		store(t, c, i*1999)
	}
	contains(t, ok(t, "verify", path), "checked  100\n", "corrupt  0\n")
	payload := c.Segment().PayloadOffset
	damage(t, path, payload+17*100)
	damage(t, path, payload+99*100+99)
	code, out, stderr := cli(t, "verify", path)
	expect.Equal(t, code, exitCorrupt, "")
	contains(t, out, "checked  100\n", "corrupt  2\n")
	contains(t, stderr, "the cache is corrupt: 2 of 100 samples", "33983,197901", "stocached rm "+path)
	code, out, stderr = cli(t, "verify", path, "--json")
	if code != exitCorrupt || stderr != "" {
		t.Error(code, stderr)
	}
	wantFields(t, decode[jsonObject](t, out),
		jsonObject{"name": path, "samples": 200000, "checked": 100, "corrupt": 2,
			"corrupt_samples": []any{33983, 197901}})
	if s, err := c.Stats(); err != nil || s.Hits != 0 || s.Corrupt != 0 {
		t.Error("verify counted:", s.Hits, s.Corrupt, err)
	}
}

// Ensure that many corrupt samples do not flood a terminal.
func TestVerifyMany(t *testing.T) {
	_, path := newCache(t, shm.Options{Samples: 50, SampleBytes: 100})
	c := newClient(t, path)
	for i := range 50 {
		store(t, c, i)
		damage(t, path, c.Segment().PayloadOffset+uint64(i)*100+50)
	}
	code, _, stderr := cli(t, "verify", path)
	if code != exitCorrupt || strings.Contains(stderr, "20,") {
		t.Error(code, stderr)
	}
	contains(t, stderr, "50 of 50", "18,19, ... (--json lists all)")
}

// Ensure that an interrupt ends verify with an error that says how far it was.
func TestVerifyInterrupted(t *testing.T) {
	_, path := newCache(t, small())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := (&dirFlag{}).with(path, func(seg *shm.Segment, reader *cache.Cache) error {
		return new(verification).check(ctx, seg, reader, io.Discard)
	})
	if exitCode(err) != exitFailed || !strings.Contains(fmt.Sprint(err), "interrupted after 0 of 10") {
		t.Error(err)
	}
}

// Ensure that verify finds nothing while samples go for others, and finds damage in a cache that evicts.
func TestVerifyWhileSamplesGo(t *testing.T) {
	_, path := newCache(t, shm.Options{Samples: 1000, Slots: 50, SampleBytes: 100, Policy: shm.PolicyFIFO})
	c := newClient(t, path)
	done := make(chan struct{})
	var clients sync.WaitGroup
	clients.Go(func() {
		for i := 0; ; i = (i + 1) % 1000 {
			select {
			case <-done:
				return
			default:
			}
			if _, err := c.Set(i, content(i, 100), 0); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 50 {
		wantFields(t, decode[jsonObject](t, ok(t, "verify", path, "--json")), jsonObject{"corrupt": 0})
	}
	close(done)
	clients.Wait()
	if s, err := c.Stats(); err != nil || s.Evicted < 1000 || s.Ready != 50 {
		t.Error(s, err)
	}
	damage(t, path, c.Segment().PayloadOffset+7)
	code, out, _ := cli(t, "verify", path, "--json")
	expect.Equal(t, code, exitCorrupt, "")
	wantFields(t, decode[jsonObject](t, out), jsonObject{"checked": 50, "corrupt": 1})
}
