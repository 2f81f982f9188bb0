// Package bench measures the server, its tiers and the source s3 beside programs and calls that do the
// least that must be done. A benchmark has one name for each way to do the work, so that
// `benchstat -col /way` shows the ways beside each other.
package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
)

const (
	sampleBytes = 3 * 224 * 224
	samples     = 1024
	batch       = 256
	parallel    = 4 // samples that a server reads at a time by default, and goroutines of bare reads
	shmDir      = "/dev/shm"
)

// program builds stocached once.
var program = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../build/bench/stocached")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", path, "./cmd/stocached")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// serve starts a server with one cache, and returns its process and how long it took until it served.
func serve(b *testing.B, dir string, s source.Settings, size string) (*exec.Cmd, time.Duration) {
	b.Helper()
	stocached := fatal.Value(program())(b)
	settings, err := json.Marshal(map[string]any{ // JSON is YAML
		"caches":  []any{map[string]any{"name": "bench", "source": s, "size": size, "dir": dir}},
		"sockets": map[string]string{"dir": filepath.Join(dir, "sockets")}, "log": map[string]string{"level": "warn"}})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(dir, "config.yaml")
	fatal.If(b, os.WriteFile(path, settings, 0o600))
	var log strings.Builder
	c := exec.Command(stocached, "serve", "-c", path)
	c.Stderr = &log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := fatal.Value(c.StdoutPipe())(b)
	began := time.Now()
	fatal.If(b, c.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "serving ") {
		b.Fatalf("stocached serve said %q: %v\n%s", line, errors.Join(err, c.Wait()), &log)
	}
	return c, time.Since(began)
}

// stop ends a server. Its cache stays.
func stop(b *testing.B, c *exec.Cmd) {
	b.Helper()
	fatal.If(b, errors.Join(c.Process.Signal(syscall.SIGTERM), c.Wait()))
}

// dial starts a server for the time of the benchmark, and attaches to its cache.
func dial(b *testing.B, s source.Settings) *client.Served {
	b.Helper()
	dir := onTmpfs(b)
	server, _ := serve(b, dir, s, "all")
	b.Cleanup(func() { stop(b, server) })
	c, err := client.Dial(b.Context(), "bench",
		client.DialOptions{SocketsDir: filepath.Join(dir, "sockets"), Timeout: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

func onTmpfs(b *testing.B) string {
	b.Helper()
	dir := fatal.Value(os.MkdirTemp(shmDir, "stocached-bench-"))(b)
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// each passes every sample of a dataset. Its first bytes are its index.
func each(n, bytes int, one func(i int, sample []byte) error) error {
	sample := make([]byte, bytes)
	rand.NewChaCha8([32]byte{}).Read(sample)
	for i := range n {
		binary.LittleEndian.PutUint64(sample, uint64(i))
		if err := one(i, sample); err != nil {
			return err
		}
	}
	return nil
}

// raw makes a file of records, which stays in the page cache.
func raw(b *testing.B) source.Settings {
	b.Helper()
	path := filepath.Join(b.TempDir(), "bench.raw")
	f, err := os.Create(path)
	if err == nil {
		err = each(samples, sampleBytes, func(_ int, sample []byte) error { _, err := f.Write(sample); return err })
	}
	fatal.If(b, errors.Join(err, f.Sync(), f.Close()))
	return source.Settings{"kind": "raw", "path": path, "sample_bytes": sampleBytes}
}

// tree makes a folder of files with the same records.
func tree(b *testing.B) source.Settings {
	b.Helper()
	dir := b.TempDir()
	if err := each(samples, sampleBytes, func(i int, sample []byte) error {
		return os.WriteFile(fileOf(dir, i), sample, 0o600)
	}); err != nil {
		b.Fatal(err)
	}
	return source.Settings{"kind": "dir", "path": dir}
}

func fileOf(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("%06d.bin", i)) }

// blocks makes block files of n samples.
func blocks(b *testing.B, n, bytes int) source.Settings {
	b.Helper()
	path := filepath.Join(b.TempDir(), "bench.block")
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{uint64(bytes)}}}, false)
	if err != nil {
		b.Fatal(err)
	}
	w, err := block.Create(b.Context(), path, block.Options{Schema: schema,
		Source: block.Origin{Kind: "bench", Fingerprint: "bench"}})
	if err == nil {
		err = each(n, bytes, func(_ int, sample []byte) error { return w.Write(sample) })
	}
	if err == nil {
		err = w.Finish()
	}
	if err != nil {
		b.Fatal(err)
	}
	return source.Settings{"kind": "block", "path": path}
}

// spread has goroutines take 0 to n-1.
func spread(b *testing.B, n int, one func(k int, buffer []byte) error) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range parallel {
		all.Go(func() {
			buffer := make([]byte, sampleBytes)
			for k := int(next.Add(1)) - 1; k < n; k = int(next.Add(1)) - 1 {
				if err := one(k, buffer); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// readAt is a pread of a sample.
func readAt(b *testing.B, s source.Settings) func(i int, dst []byte) error {
	b.Helper()
	f := fatal.Value(os.Open(s["path"].(string)))(b)
	b.Cleanup(func() { f.Close() })
	return func(i int, dst []byte) error {
		n, err := unix.Pread(int(f.Fd()), dst[:sampleBytes], int64(i)*sampleBytes)
		if err == nil && n != sampleBytes {
			err = fmt.Errorf("pread: %d bytes", n)
		}
		return err
	}
}

func emptied(b *testing.B, c *client.Served) {
	b.Helper()
	if r, err := c.Clear(context.Background()); err != nil || r != client.Stored {
		b.Fatal(r, err)
	}
}

// A server fills its cache from files in the page cache. Beside it, as many goroutines as it has read the
// same samples.
func BenchmarkFill(b *testing.B) {
	order := rand.New(rand.NewPCG(1, 2)).Perm(samples)
	kinds := []struct {
		name  string
		files func(b *testing.B) source.Settings
	}{{"raw", raw}, {"dir", tree},
		{"block", func(b *testing.B) source.Settings { return blocks(b, samples, sampleBytes) }}}
	for _, kind := range kinds {
		b.Run("from="+kind.name+"/way=server", func(b *testing.B) {
			c := dial(b, kind.files(b))
			b.SetBytes(samples * sampleBytes)
			for b.Loop() {
				b.StopTimer()
				emptied(b, c)
				b.StartTimer()
				var all sync.WaitGroup
				for half := range 2 { // so that the server always has a request
					all.Go(func() {
						for at := half * batch; at < samples; at += 2 * batch {
							if err := c.Fill(context.Background(), order[at:at+batch]); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
			}
		})
	}
	b.Run("from=raw/way=pread", func(b *testing.B) {
		read := readAt(b, raw(b))
		b.SetBytes(samples * sampleBytes)
		for b.Loop() {
			spread(b, samples, func(k int, buffer []byte) error { return read(order[k], buffer) })
		}
	})
	b.Run("from=dir/way=pread", func(b *testing.B) {
		dir := tree(b)["path"].(string)
		b.SetBytes(samples * sampleBytes)
		for b.Loop() {
			spread(b, samples, func(k int, buffer []byte) error { return readFile(fileOf(dir, order[k]), buffer) })
		}
	})
}

// A client fetches samples that the cache lacks, from a source in the page cache.
func BenchmarkFetchMiss(b *testing.B) {
	order := rand.New(rand.NewPCG(1, 2)).Perm(samples)
	s := raw(b)
	for _, n := range []int{1, batch} {
		b.Run(fmt.Sprintf("samples=%d/way=server", n), func(b *testing.B) {
			c, rows := dial(b, s), make([]byte, n*sampleBytes)
			b.SetBytes(int64(n) * sampleBytes)
			for k := 0; b.Loop(); k++ {
				if at := k * n % samples; at > 0 || k == 0 {
					fetch(b, c, order[at:at+n], rows)
					continue
				}
				b.StopTimer()
				emptied(b, c)
				b.StartTimer()
				fetch(b, c, order[:n], rows)
			}
		})
		b.Run(fmt.Sprintf("samples=%d/way=pread", n), func(b *testing.B) {
			read, buffer := readAt(b, s), make([]byte, sampleBytes)
			b.SetBytes(int64(n) * sampleBytes)
			for k := 0; b.Loop(); k++ {
				if n > 1 {
					spread(b, n, func(j int, buffer []byte) error { return read(order[(k*n+j)%samples], buffer) })
				} else if err := read(order[k%samples], buffer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func fetch(b *testing.B, c *client.Served, indices []int, rows []byte) {
	fatal.If(b, c.Fetch(context.Background(), indices, rows, sampleBytes))
}

// A batch that is in the cache: what Fetch adds to Gather.
func BenchmarkFetchHits(b *testing.B) {
	order := rand.New(rand.NewPCG(1, 2)).Perm(samples)
	c, rows, hit := dial(b, raw(b)), make([]byte, batch*sampleBytes), make([]bool, batch)
	fatal.If(b, c.Fill(b.Context(), order))
	b.Run("way=fetch", func(b *testing.B) {
		b.SetBytes(batch * sampleBytes)
		for k := 0; b.Loop(); k++ {
			fetch(b, c, order[k%3*batch:][:batch], rows)
		}
	})
	b.Run("way=gather", func(b *testing.B) {
		b.SetBytes(batch * sampleBytes)
		for k := 0; b.Loop(); k++ {
			n, err := c.Gather(order[k%3*batch:][:batch], rows, client.GatherOptions{Stride: sampleBytes, Hit: hit})
			if n != batch || err != nil {
				b.Fatal(n, err)
			}
		}
	})
}

// A server starts with ten million samples, whose index lies beside its files: without a segment, and with
// one that it takes over. The server's own memory is beside it.
func BenchmarkStart(b *testing.B) {
	n := 10_000_000
	if testing.Short() {
		n = 10_000
	}
	s := blocks(b, n, 16)
	for _, way := range []string{"cold", "warm"} {
		b.Run("way="+way, func(b *testing.B) {
			dir := onTmpfs(b)
			if way == "warm" {
				server, _ := serve(b, dir, s, "1GiB")
				stop(b, server)
			}
			var took time.Duration
			var memory int64
			for b.Loop() {
				server, started := serve(b, dir, s, "1GiB")
				took, memory = took+started, memory+anonymous(b, server.Process.Pid)
				stop(b, server)
				if way == "cold" {
					fatal.If(b, client.Remove(filepath.Join(dir, "bench")))
				}
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/op")
			b.ReportMetric(float64(memory)/float64(b.N), "RSS-bytes")
		})
	}
}

// anonymous returns the memory of a process without mapped files.
func anonymous(b *testing.B, pid int) int64 {
	b.Helper()
	text := fatal.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(b)
	for line := range strings.Lines(string(text)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	b.Fatal("no RssAnon")
	return 0
}
