package remote_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
)

// Ensure, over both kinds of server, that a read whose request hangs is answered by a second one, that
// both are counted, and that second requests are few, however many reads hang.
func TestSecondRequest(t *testing.T) {
	const samples, sampleBytes = 150, 2000
	for _, scheme := range []string{"s3", "http"} {
		t.Run(scheme, func(t *testing.T) {
			s := newStorage(t)
			data := make([]byte, 0, samples*sampleBytes)
			for i := range samples {
				data = append(data, bytes.Repeat([]byte{byte(i)}, sampleBytes)...)
			}
			s.Put(t, "records", data)
			settings := source.Settings{"kind": "raw", "path": "s3://photos/records", "sample_bytes": sampleBytes,
				"remote": map[string]any{"endpoint": s.URL, "stall": "400ms"}, "retry": map[string]any{"tries": 1}}
			if scheme == "http" {
				settings["path"], settings["remote"] = s.URL+"/photos/records", map[string]any{"stall": "400ms"}
			}
			src, _, err := kinds.Whole(t.Context(), kinds.Open, settings, nil)
			fatal.If(t, err)
			defer src.Close()
			traffic := src.Info().Traffic
			read := func(i int) error {
				got := make([]byte, sampleBytes)
				if _, err := src.Read(t.Context(), i, got); err != nil {
					return err
				}
				if !bytes.Equal(got, data[i*sampleBytes:][:sampleBytes]) {
					t.Errorf("sample %d is wrong", i)
				}
				return nil
			}
			for i := range samples { // how long reads take is known then
				fatal.If(t, read(i))
			}
			before := traffic.Hedged.Load() // reads that a busy machine has made slow
			hung := atomic.Int64{}
			hang := func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
				hung.Add(1)
				<-r.Context().Done() // until the client gives up
			}
			if before < 3 {
				// A second request that was cancelled may arrive late, so only one for this sample hangs.
				s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					wanted := strings.HasPrefix(r.Header.Get("Range"), fmt.Sprintf("bytes=%d-", 7*sampleBytes))
					if wanted && hung.Load() == 0 {
						hang(w, r, next)
						return
					}
					next.ServeHTTP(w, r)
				})
				expect.NoError(t, read(7))
				if hung.Load() != 1 || traffic.Hedged.Load() != before+1 || traffic.HedgesWon.Load() < 1 {
					t.Errorf("%d requests hung, %d second requests, %d of them faster", hung.Load(),
						traffic.Hedged.Load()-before, traffic.HedgesWon.Load())
				}
			}
			s.spoilNext(1000, hang)
			var all sync.WaitGroup
			failed := atomic.Int64{}
			for i := range 12 {
				all.Go(func() {
					if err := read(i); err != nil && strings.Contains(err.Error(), "no byte came for 400ms") {
						failed.Add(1)
					} else if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if most := uint64(4 + (samples+1)/100); traffic.Hedged.Load() > most || failed.Load() != 12 {
				t.Errorf("%d second requests, want at most %d; %d of 12 hung reads failed", traffic.Hedged.Load(), most, failed.Load())
			}
		})
	}
}

// Ensure that the key hedge turns second requests off, and that local files count no traffic.
func TestNoSecondRequest(t *testing.T) {
	s := newStorage(t)
	src, _ := records(t, s, 3, map[string]any{"hedge": false, "stall": "300ms"})
	for range 60 {
		for i := range 3 {
			fatal.Value(src.Read(t.Context(), i, make([]byte, recordBytes)))(t)
		}
	}
	s.spoilNext(1, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
	if _, err := src.Read(t.Context(), 1, make([]byte, recordBytes)); err != nil {
		t.Error(err) // the policy of retries has read it again, after stall
	}
	expect.Equal(t, src.Info().Traffic.Hedged.Load(), 0, "second requests")
	path := t.TempDir() + "/records"
	write(t, path, fmt.Appendf(nil, "0123456789"))
	local := opened(t, source.Settings{"kind": "raw", "path": path, "sample_bytes": 5})
	if local.Info().Traffic != nil {
		t.Error("a local file counts requests")
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	fatal.If(t, os.WriteFile(path, data, 0o600))
}
