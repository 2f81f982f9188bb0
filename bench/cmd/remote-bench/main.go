// Command remote-bench compares the source s3 with bare requests of net/http to the same objects: presigned
// addresses, 110 KiB each, from a versitygw that it starts.
//
//	remote-bench VERSITYGW                        16 at a time, over the loopback device
//	remote-bench -delay 20ms -rate 125 VERSITYGW  through a link of 20 ms and 125 MB/s: fixed numbers of
//	                                              requests beside the source, which finds its own
//	remote-bench -delay 20ms -shards VERSITYGW    through the link, 4 requests at a time: single objects beside
//	                                              tar shards of them that are read in shuffled windows
//
// The link is a TCP proxy that delays each byte by half of -delay in each direction. Runs alternate.
package main

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/wrap"
)

var (
	runs    = flag.Int("runs", 9, "of each")
	size    = flag.Int("size", 110<<10, "bytes of an object")
	objects = flag.Int("objects", 2000, "in the bucket")
	readers = flag.Int("readers", 16, "at a time, without -delay")
	delay   = flag.Duration("delay", 0, "of the link, there and back")
	rate    = flag.Float64("rate", 125, "of the link, in MB/s, with -delay")
	shards  = flag.Bool("shards", false, "compare single objects with tar shards")
	seconds = flag.Duration("time", 8*time.Second, "of a run, with -delay")
)

const key, secret, bucket = "bench", "bench-secret", "bench"

func main() {
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("give the program versitygw")
	}
	if err := run(flag.Arg(0)); err != nil {
		log.Fatal(err)
	}
}

func run(program string) error {
	dir, err := os.MkdirTemp("", "remote-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	data := make([]byte, *size)
	if err := os.Mkdir(filepath.Join(dir, bucket), 0o700); err != nil {
		return err
	}
	for i := range *objects {
		rand.Read(data)
		if err := os.WriteFile(filepath.Join(dir, bucket, name(i)), data, 0o600); err != nil {
			return err
		}
	}
	address, stop, err := serve(program, dir)
	if err != nil {
		return err
	}
	defer stop()
	if *delay > 0 {
		if address, err = link(address); err != nil {
			return err
		}
	}
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret,
		"AWS_ENDPOINT_URL": "http://" + address} {
		os.Setenv(name, value)
	}
	urls, err := presign(address)
	if err != nil {
		return err
	}
	switch {
	case *shards:
		return compareShards(dir)
	case *delay > 0:
		return compareWidths(urls)
	}
	return compare(urls)
}

func name(i int) string { return fmt.Sprintf("%05d.bin", i) }

// serve starts versitygw and returns its address.
func serve(program, dir string) (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = l.Addr().String()
	l.Close()
	c := exec.Command(program, "--port", address, "--quiet", "--keep-alive", "posix", dir)
	c.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+key, "ROOT_SECRET_KEY="+secret)
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { _ = c.Process.Kill(); _ = c.Wait() }
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return address, stop, nil
		}
	}
	stop()
	return "", nil, fmt.Errorf("versitygw does not listen at %s", address)
}

func presign(address string) (urls []string, err error) {
	client, err := minio.New(address, &minio.Options{Creds: credentials.NewStaticV4(key, secret, ""), Region: "us-east-1"})
	if err != nil {
		return nil, err
	}
	for i := range *objects {
		u, err := client.PresignedGetObject(context.Background(), bucket, name(i), time.Hour, nil)
		if err != nil {
			return nil, err
		}
		urls = append(urls, u.String())
	}
	return urls, nil
}

// reader reads an object into dst.
type reader func(i int, dst []byte) error

func bare(urls []string, connections int) reader {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost, transport.DisableCompression = 0, connections, true
	client := &http.Client{Transport: transport}
	return func(i int, dst []byte) error {
		request, err := http.NewRequest(http.MethodGet, urls[i], nil)
		if err != nil {
			return err
		}
		request.Header.Set("Range", fmt.Sprintf("bytes=0-%d", *size-1)) // as the source does
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusPartialContent {
			return fmt.Errorf("%s", answer.Status)
		}
		_, err = io.ReadFull(answer.Body, dst[:*size])
		return err
	}
}

func ours() (reader, source.Source, error) {
	s, err := kinds.Open(context.Background(), source.Settings{"kind": "dir", "path": "s3://" + bucket})
	if err != nil {
		return nil, nil, err
	}
	return func(i int, dst []byte) error {
		_, err := s.Read(context.Background(), i, dst)
		return err
	}, s, nil
}

// read has n goroutines read for a time, or each object once with 0. It returns MB/s and the processor seconds.
func read(r reader, n int, limit time.Duration, each func(bytes int)) (rate, cpu float64) {
	order, next, bytes := mathrand.Perm(*objects), atomic.Int64{}, atomic.Int64{}
	began, before := time.Now(), processor()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			dst := make([]byte, *size+source.Spare)
			for {
				k := int(next.Add(1)) - 1
				if limit == 0 && k >= len(order) || limit > 0 && time.Since(began) > limit {
					return
				}
				if err := r(order[k%len(order)], dst); err != nil {
					log.Fatal(err)
				}
				bytes.Add(int64(*size))
				if each != nil {
					each(*size)
				}
			}
		})
	}
	all.Wait()
	return float64(bytes.Load()) / time.Since(began).Seconds() / 1e6, processor() - before
}

func compare(urls []string) error {
	source, opened, err := ours()
	if err != nil {
		return err
	}
	defer opened.Close()
	plain := bare(urls, *readers)
	read(plain, *readers, 0, nil)
	read(source, *readers, 0, nil)
	var rates, cpus [2][]float64
	var ratios []float64
	most := uint64(0)
	for range *runs {
		for k, r := range []reader{plain, source} {
			runtime.GC()
			rate, cpu := read(r, *readers, 0, nil)
			rates[k], cpus[k] = append(rates[k], rate), append(cpus[k], cpu/float64(*objects)*1e6)
			var m runtime.MemStats
			if runtime.ReadMemStats(&m); k == 1 {
				most = max(most, m.Sys-m.HeapReleased)
			}
		}
		ratios = append(ratios, rates[1][len(rates[1])-1]/rates[0][len(rates[0])-1])
	}
	slices.Sort(ratios)
	fmt.Printf("%d readers: net/http %.0f MB/s, %.0f us of processor an object; source s3 %.0f MB/s, %.0f us; ratio %.3f (%.3f to %.3f); "+
		"at most %.0f MB of memory of Go, with both\n", *readers, median(rates[0]), median(cpus[0]), median(rates[1]), median(cpus[1]),
		median(ratios), ratios[0], ratios[len(ratios)-1], float64(most)/1e6)
	return nil
}

// compareWidths compares fixed numbers of requests at a time with the source, from its first request on.
func compareWidths(urls []string) error {
	widths := []int{4, 8, 16, 32, 64}
	fixed := make([][]float64, len(widths))
	var found, early []float64
	for range *runs {
		for k, n := range widths {
			rate, _ := read(bare(urls, n), n, *seconds/2, nil)
			fixed[k] = append(fixed[k], rate)
		}
		source, opened, err := ours()
		if err != nil {
			return err
		}
		var at5 atomic.Int64
		var total atomic.Int64
		began := time.Now()
		read(source, slices.Max(widths), *seconds, func(n int) {
			total.Add(int64(n))
			if time.Since(began) < 5*time.Second {
				at5.Add(int64(n))
			}
		})
		late := (*seconds - 5*time.Second).Seconds()
		found = append(found, float64(total.Load()-at5.Load())/late/1e6)
		early = append(early, float64(at5.Load())/5/1e6)
		opened.Close()
	}
	best := 0.0
	for k, n := range widths {
		fmt.Printf("%d requests at a time: %.1f MB/s\n", n, median(fixed[k]))
		best = max(best, median(fixed[k]))
	}
	fmt.Printf("source s3: %.1f MB/s in the first 5 s, %.1f MB/s after them, %.3f of the best fixed number\n", median(early),
		median(found), median(found)/best)
	return nil
}

const (
	fewRequests  = 4
	windowLength = 1000 // samples
)

// compareShards compares single objects in random order with shards in shuffled windows.
func compareShards(dir string) error {
	for k := 0; k < *objects; k += windowLength {
		if err := shard(dir, k, min(k+windowLength, *objects)); err != nil {
			return err
		}
	}
	remote := map[string]any{"requests": fewRequests}
	open := func(s source.Settings) (source.Source, wrap.Ahead, error) {
		s["remote"] = remote
		return kinds.Whole(context.Background(), kinds.Open, s, nil)
	}
	single, _, err := open(source.Settings{"kind": "dir", "path": "s3://" + bucket, "glob": "*.bin"})
	if err != nil {
		return err
	}
	defer single.Close()
	packed, ahead, err := open(source.Settings{"kind": "tar", "path": "s3://" + bucket + "/train-*.tar", "index": dir,
		"read_ahead": map[string]any{"size": "256MiB", "readers": fewRequests, "blocks": true}})
	if err != nil {
		return err
	}
	defer packed.Close()
	var ratios, singles, windows []float64
	for range *runs {
		rate, _ := read(func(i int, dst []byte) error { _, err := single.Read(context.Background(), i, dst); return err },
			fewRequests, *seconds, nil)
		singles = append(singles, rate)
		var order []int
		for k := 0; k < *objects; k += windowLength {
			for _, i := range mathrand.Perm(min(windowLength, *objects-k)) {
				order = append(order, k+i)
			}
		}
		ahead.Prefetch(order)
		began, next := time.Now(), atomic.Int64{}
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				dst := make([]byte, *size+source.Spare)
				for k := int(next.Add(1)) - 1; k < len(order); k = int(next.Add(1)) - 1 {
					if _, err := packed.Read(context.Background(), order[k], dst); err != nil {
						log.Fatal(err)
					}
				}
			})
		}
		all.Wait()
		windows = append(windows, float64(*objects**size)/time.Since(began).Seconds()/1e6)
		ratios = append(ratios, windows[len(windows)-1]/rate)
	}
	slices.Sort(ratios)
	fmt.Printf("%d requests at a time, %d runs: single objects %.1f MB/s; shards in windows of %d %.1f MB/s, %.3f of the link; "+
		"ratio %.2f (%.2f to %.2f)\n", fewRequests, *runs, median(singles), windowLength, median(windows), median(windows) / *rate,
		median(ratios), ratios[0], ratios[len(ratios)-1])
	return nil
}

// shard makes a tar file of the objects [from, to).
func shard(dir string, from, to int) error {
	f, err := os.Create(filepath.Join(dir, bucket, fmt.Sprintf("train-%03d.tar", from/windowLength)))
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	for i := from; i < to; i++ {
		data, err := os.ReadFile(filepath.Join(dir, bucket, name(i)))
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name(i), Size: int64(len(data)), Mode: 0o600}); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), f.Close())
}

// link starts the proxy and returns its address.
func link(to string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	down := &pace{perSecond: *rate * 1e6}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				log.Fatal(err)
			}
			go forward(server, from, nil)
			go forward(from, server, down)
		}
	}()
	return l.Addr().String(), nil
}

// pace is the bandwidth that all connections share.
type pace struct {
	perSecond float64
	mu        sync.Mutex
	free      time.Time // when the link has sent what it has got so far
}

func (p *pace) send(n int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(n) / p.perSecond * 1e9))
	return p.free
}

// forward copies one direction of a connection, each piece half of the delay later.
func forward(to, from net.Conn, p *pace) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	pieces := make(chan piece, 64)
	go func() {
		for one := range pieces {
			time.Sleep(time.Until(one.due))
			if _, err := to.Write(one.bytes); err != nil {
				break
			}
		}
		to.Close()
		for range pieces {
		}
	}()
	for {
		b := make([]byte, 16<<10)
		n, err := from.Read(b)
		if n > 0 {
			due := time.Now()
			if p != nil {
				due = p.send(n)
			}
			pieces <- piece{b[:n], due.Add(*delay / 2)}
		}
		if err != nil {
			close(pieces)
			return
		}
	}
}

func processor() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
