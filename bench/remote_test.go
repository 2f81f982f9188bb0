package bench

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/redistest"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/tier"
	"github.com/stocached/stocached/tier/cluster"
	"github.com/stocached/stocached/tier/disk"
)

const (
	objectBytes = 110 << 10
	objects     = 1000
	requests    = 16 // at a time
)

// together has goroutines read objects in a random order, b.N times.
func together(b *testing.B, goroutines int, read func(i int, dst []byte) error) {
	order := rand.Perm(objects)
	b.SetBytes(objectBytes)
	b.SetParallelism(max(1, goroutines/2))
	var mu sync.Mutex
	next := 0
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		dst := make([]byte, objectBytes+max(source.Spare, tier.Spare))
		for p.Next() {
			mu.Lock()
			i := order[next%objects]
			next++
			mu.Unlock()
			if err := read(i, dst); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// The source s3 beside bare requests of net/http for the same objects of versitygw, by presigned addresses.
func BenchmarkS3(b *testing.B) {
	address := versitygw(b)
	client, err := minio.New(address, &minio.Options{Creds: credentials.NewStaticV4(user, secret, ""), Region: "us-east-1"})
	if err != nil {
		b.Fatal(err)
	}
	b.Setenv("AWS_ACCESS_KEY_ID", user)
	b.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	b.Setenv("AWS_ENDPOINT_URL", "http://"+address)
	b.Setenv("XDG_CACHE_HOME", b.TempDir())
	b.Run("way=source", func(b *testing.B) {
		s := fatal.Value(kinds.Open(b.Context(), source.Settings{"kind": "dir", "path": "s3://bench"}))(b)
		defer s.Close()
		together(b, requests, func(i int, dst []byte) error { _, err := s.Read(context.Background(), i, dst); return err })
	})
	b.Run("way=bare", func(b *testing.B) {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost, transport.DisableCompression = requests, true
		plain := &http.Client{Transport: transport}
		urls := make([]string, objects)
		for i := range urls {
			u := fatal.Value(client.PresignedGetObject(b.Context(), "bench", filepath.Base(fileOf("", i)), time.Hour, nil))(b)
			urls[i] = u.String()
		}
		together(b, requests, func(i int, dst []byte) error {
			request, err := http.NewRequest(http.MethodGet, urls[i], nil)
			if err != nil {
				return err
			}
			request.Header.Set("Range", fmt.Sprintf("bytes=0-%d", objectBytes-1)) // as the source does
			answer, err := plain.Do(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusPartialContent {
				return fmt.Errorf("%s", answer.Status)
			}
			_, err = io.ReadFull(answer.Body, dst[:objectBytes])
			return err
		})
	})
}

const user, secret = "bench", "bench-secret"

// versitygw serves a bucket of objects for the time of the benchmark.
func versitygw(b *testing.B) string {
	b.Helper()
	program, err := filepath.Abs("../.tools/versitygw")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		b.Skipf("%v: make setup-versitygw builds it", err)
	}
	dir := b.TempDir()
	fatal.If(b, os.Mkdir(filepath.Join(dir, "bench"), 0o700))
	if err := each(objects, objectBytes, func(i int, data []byte) error {
		return os.WriteFile(fileOf(filepath.Join(dir, "bench"), i), data, 0o600)
	}); err != nil {
		b.Fatal(err)
	}
	l := fatal.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	address := l.Addr().String()
	l.Close()
	c := exec.Command(program, "--port", address, "--quiet", "--keep-alive", "posix", dir)
	c.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+user, "ROOT_SECRET_KEY="+secret)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	fatal.If(b, c.Start())
	b.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return address
		}
	}
	b.Fatalf("versitygw does not listen at %s", address)
	return ""
}

// made is a source whose samples are made.
type made struct{}

func (made) Info() source.Info {
	return source.Info{Kind: "made", Samples: objects, Fingerprint: "made", Schema: shm.Schema{SampleBytes: objectBytes}}
}
func (made) Size(int) (int, error) { return objectBytes, nil }
func (made) Read(_ context.Context, i int, dst []byte) (int, error) {
	return rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(dst[:objectBytes])
}
func (made) Where(i int) string { return fmt.Sprint(i) }
func (made) Close() error       { return nil }

func about() tier.About {
	return tier.About{Cache: "bench", Info: made{}.Info(), Log: slog.New(slog.DiscardHandler)}
}

// Hits of the tier cluster, with their checksums, beside bare pipelines of go-redis: batches of 64 samples
// from a Redis Cluster of three nodes.
func BenchmarkClusterTier(b *testing.B) {
	if _, err := exec.LookPath(redistest.Program()); err != nil {
		b.Skip(err)
	}
	var addresses []any
	var names []string
	for _, s := range redistest.Cluster(b, 3) {
		addresses, names = append(addresses, s.Addr), append(names, s.Addr)
	}
	opened := fatal.Value(cluster.Open(source.Settings{"addresses": addresses, "timeout": "5s"}, about()))(b)
	set := tier.New([]tier.Tier{opened}, []int64{1 << 30})
	s := tier.Around(made{}, set)
	defer s.Close()
	for len(tier.Problems(set.Status())) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	const many = 64
	buffers := make([][]byte, many)
	for k := range buffers {
		buffers[k] = make([]byte, objectBytes+tier.Spare)
	}
	for i := range objects {
		fatal.Value(s.Read(b.Context(), i, buffers[0]))(b)
	}
	for set.Status()[0].Queued > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	b.Run("way=tier", func(b *testing.B) {
		b.SetBytes(many * objectBytes)
		for b.Loop() {
			var all sync.WaitGroup
			for k := range many {
				all.Go(func() {
					if _, err := s.Read(b.Context(), rand.IntN(objects), buffers[k]); err != nil {
						b.Error(err)
					}
				})
			}
			all.Wait()
		}
	})
	b.Run("way=bare", func(b *testing.B) {
		bare := redis.NewClusterClient(&redis.ClusterOptions{Addrs: names, Protocol: 2})
		defer bare.Close()
		keys := keysOf(b, bare)
		b.SetBytes(many * objectBytes)
		for b.Loop() {
			pipe := bare.Pipeline()
			for k := range many {
				pipe.GetToBuffer(b.Context(), keys[rand.IntN(len(keys))], buffers[k])
			}
			fatal.Value(pipe.Exec(b.Context()))(b)
		}
	})
}

// keysOf returns the keys of the samples.
func keysOf(b *testing.B, c *redis.ClusterClient) (keys []string) {
	b.Helper()
	var mu sync.Mutex
	if err := c.ForEachMaster(b.Context(), func(ctx context.Context, c *redis.Client) error {
		found, err := c.Keys(ctx, "stoc1:{*}").Result()
		mu.Lock()
		defer mu.Unlock()
		for _, k := range found {
			if n, _ := c.StrLen(ctx, k).Result(); n >= objectBytes && strings.HasPrefix(k, "stoc1:") {
				keys = append(keys, k)
			}
		}
		return err
	}); err != nil || len(keys) != objects {
		b.Fatalf("%d values: %v", len(keys), err)
	}
	return keys
}

// Hits of the tier disk beside a pread and a checksum of the same bytes, from the page cache, and from the
// disk below b.TempDir. Set TMPDIR to measure another disk.
func BenchmarkDiskTier(b *testing.B) {
	dir := b.TempDir()
	t, err := disk.Open(source.Settings{"dir": dir, "size": fmt.Sprint(objects*objectBytes + 64<<20)}, about())
	if err != nil {
		b.Fatal(err)
	}
	defer t.Close()
	for t.Status().Nodes[0].LeftOut {
		time.Sleep(time.Millisecond)
	}
	sample := make([]byte, objectBytes, objectBytes+tier.Spare)
	for i := range objects {
		fatal.Value((made{}).Read(b.Context(), i, sample))(b)
		t.Put(b.Context(), i, sample)
	}
	f := fatal.Value(os.Open(filepath.Join(dir, "bench.tier")))(b)
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		b.Fatal(err)
	}
	const stride = int64(objectBytes+15) &^ 15
	payload := (info.Size() - objects*stride) &^ (2<<20 - 1)
	table := crc32.MakeTable(crc32.Castagnoli)
	ways := map[string]func(i int, dst []byte) error{
		"tier": func(i int, dst []byte) error {
			if _, r := t.Get(context.Background(), i, objectBytes, dst); r != tier.Hit {
				return fmt.Errorf("sample %d: %v", i, r)
			}
			return nil
		},
		"bare": func(i int, dst []byte) error {
			_, err := f.ReadAt(dst[:objectBytes], payload+int64(i)*stride)
			_ = crc32.Checksum(dst[:objectBytes], table)
			return err
		},
	}
	for _, name := range []string{"tier", "bare"} {
		read := ways[name]
		b.Run("from=memory/way="+name, func(b *testing.B) { together(b, 2, read) })
		b.Run("from=disk/way="+name, func(b *testing.B) {
			fatal.If(b, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
			k := 0
			b.SetBytes(objectBytes)
			dst := make([]byte, objectBytes+tier.Spare)
			for order := rand.Perm(objects); b.Loop(); k++ {
				if k%objects == 0 && k > 0 {
					b.StopTimer()
					fatal.If(b, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
					b.StartTimer()
				}
				fatal.If(b, read(order[k%objects], dst))
			}
		})
	}
}
