package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/redistest"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
)

// programHosts are servers whose samples come from programs, over one tier.
func programHosts(t *testing.T, count, samples int, size, tiers string) (all []*served) {
	t.Helper()
	for range count {
		s := configureServed(t, fmt.Sprintf("size: %s, parallel: 8, %s source: {kind: none, samples: %d, "+
			"fingerprint: records-1, fields: [{name: data, shape: [%d], dtype: uint8}]}", size, tiers, samples, servedBytes))
		all = append(all, s)
	}
	return all
}

// loads counts the loads of each sample.
type loads struct {
	counts []atomic.Int32
	pause  time.Duration
}

func newLoads(n int) *loads { return &loads{counts: make([]atomic.Int32, n)} }

func (l *loads) load(i int) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		l.counts[i].Add(1)
		time.Sleep(l.pause)
		return servedRecord(i), nil
	}
}

// sum returns all loads, and how many samples were loaded more than once.
func (l *loads) sum() (sum, again int) {
	for k := range l.counts {
		n := int(l.counts[k].Load())
		sum += n
		if n > 1 {
			again++
		}
	}
	return sum, again
}

func (l *loads) want(t *testing.T, c *stocclient.Served, order []int) {
	t.Helper()
	for _, i := range order {
		got, err := c.GetOrLoad(context.Background(), i, l.load(i))
		if err != nil || string(got) != string(servedRecord(i)) {
			t.Errorf("sample %d: %d bytes, %v", i, len(got), err)
			return
		}
	}
}

// Ensure that programs on three nodes load each sample once, cold and at the same time, although no cache has
// room for all, that a later node loads none, and that what Offer gives is there for other nodes.
func TestProgramsLoadOnce(t *testing.T) {
	const n = 300
	servers := redistest.Cluster(t, 3)
	all := programHosts(t, 4, n, "4500kB", "tiers: [{kind: cluster, "+on(servers[0])+"}],")
	l := newLoads(n)
	l.pause = time.Millisecond
	var programs sync.WaitGroup
	for _, s := range all[:3] {
		s.start()
		s.reaches()
	}
	for _, s := range all[:3] {
		for range 3 {
			c := s.dial()
			if !c.Info().Programs {
				t.Fatal("the cache does not say that programs fill it")
			}
			programs.Go(func() { l.want(t, c, rand.Perm(n)) })
		}
	}
	programs.Wait()
	if sum, again := l.sum(); sum != n || again != 0 {
		t.Errorf("%d loads of %d samples, %d more than once", sum, n, again)
	}
	last := all[3]
	last.start()
	last.reaches()
	l.want(t, last.dial(), rand.Perm(n))
	if sum, _ := l.sum(); sum != n {
		t.Errorf("%d loads after a fourth node came", sum)
	}
	wantFetch(t, last.dial(), first(n)) // plain fetches have all of them too
}

// Ensure that samples that differ in size are loaded once, too, also where caches have no room for all.
func TestProgramsOfAnySize(t *testing.T) {
	const n = 200
	server := redistest.Cluster(t, 3)[0]
	text := fmt.Sprintf("tiers: [{kind: cluster, %s}], source: {kind: none, samples: %d, fingerprint: any-1, "+
		"fields: [{name: data, shape: [any, 2], dtype: uint8}], sample_bytes: 4KiB}", on(server), n)
	rows := func(i int) uint64 { return uint64(i*37) % 2000 }
	l := newLoads(n)
	read := func(c *stocclient.Served, seed uint64) {
		for _, i := range rand.New(rand.NewPCG(seed, 1)).Perm(n) {
			data, err := c.GetOrLoad(t.Context(), i, func(context.Context) ([]byte, error) {
				l.counts[i].Add(1)
				return c.Join([]stocclient.Part{{Dims: []uint64{rows(i), 2}, Data: bytes.Repeat([]byte{byte(i)}, int(2*rows(i)))}})
			})
			var parts []stocclient.Part
			if err == nil {
				parts, err = c.Split(data)
			}
			if err != nil || parts[0].Dims[0] != rows(i) || !bytes.Equal(parts[0].Data, bytes.Repeat([]byte{byte(i)}, int(2*rows(i)))) {
				t.Errorf("sample %d: %v, %v", i, parts, err)
				return
			}
		}
	}
	var programs sync.WaitGroup
	for k, size := range []string{"8MiB", "4400kB, policy: lru"} {
		s := configureServed(t, "size: "+size+", parallel: 8, "+text)
		s.start()
		s.reaches()
		for again := range 2 {
			c := s.dial()
			programs.Go(func() { read(c, uint64(2*k+again)) })
		}
	}
	programs.Wait()
	if sum, again := l.sum(); sum != n || again != 0 {
		t.Errorf("%d loads of %d samples, %d more than once", sum, n, again)
	}
	c := configureServed(t, "size: 8MiB, source: {kind: none, samples: 9, fingerprint: a, sample_bytes: 1KiB, "+
		"fields: [{name: data, shape: [any, 3], dtype: uint8}]}")
	c.start()
	if _, err := c.dial().Offer(t.Context(), 3, []byte("no sample")); err == nil || !strings.Contains(err.Error(), "sample 3") {
		t.Errorf("what is no sample was offered: %v", err)
	}
}

// Ensure that Go loaders of two nodes load each sample once together, and what they got from each other is right.
func TestProgramsWithLoaders(t *testing.T) {
	const n = 200
	all := programHosts(t, 2, n, "4500kB", "tiers: [{kind: cluster, "+on(redistest.Start(t))+"}],")
	l := newLoads(n)
	var jobs sync.WaitGroup
	for k, s := range all {
		s.start()
		s.reaches()
		c := s.dial()
		from := loader.FromPrograms(c, func(ctx context.Context, i int, dst []byte) ([]byte, error) {
			data, err := l.load(i)(ctx)
			return append(dst, data...), err
		})
		o := order.Order{Samples: n, Kind: order.Shuffled, Seed: uint64(k)}
		made := fatal.Value(loader.New(from, loader.Options{BatchSize: 20, Order: o, Workers: 4}))(t)
		jobs.Go(func() {
			for range 2 {
				for b, err := range made.Batches(context.Background()) {
					if err != nil {
						t.Error(err)
						return
					}
					for k, i := range b.Indices() {
						if string(b.Sample(k)) != string(servedRecord(i)) {
							t.Errorf("sample %d is wrong", i)
						}
					}
					b.Release()
				}
			}
		})
	}
	jobs.Wait()
	if sum, again := l.sum(); sum != n || again != 0 {
		t.Errorf("%d loads of %d samples, %d more than once", sum, n, again)
	}
}

// Ensure that a load that fails, panics, or whose program is killed or takes too long goes to another program,
// and that no other program has it while it runs.
func TestProgramsThatFail(t *testing.T) {
	r := redistest.Start(t)
	tiers := "tiers: [{kind: cluster, " + on(r) + ", lease: 1s}],"
	all := append(programHosts(t, 2, 50, "all", tiers), programHosts(t, 1, 50, "all", "read_timeout: 2s, "+tiers)...)
	for _, s := range all {
		s.start()
		s.reaches()
	}
	here, there := all[0].dial(), all[1].dial()
	ctx := context.Background()
	l := newLoads(50)
	failed := errors.New("no such file")
	expect.Fails(here.GetOrLoad(ctx, 0, func(context.Context) ([]byte, error) { return nil, failed }))(t, failed)
	took := time.Hour
	for i := 1; i < 10 && took > time.Second; i++ { // a busy machine is not busy each time, and a lease lasts each time
		func() {
			defer func() { _ = recover() }()
			_, _ = here.GetOrLoad(ctx, i, func(context.Context) ([]byte, error) { panic("broken") })
		}()
		began := time.Now()
		l.want(t, there, []int{0, i})
		took = time.Since(began)
	}
	if took > time.Second {
		t.Errorf("samples whose loads failed took %v on another node", took)
	}
	for name, end := range map[string]func(c *stocclient.Served, release chan struct{}){
		"its connection ends": func(c *stocclient.Served, release chan struct{}) { c.Close(); close(release) },
		"its server is killed": func(_ *stocclient.Served, release chan struct{}) {
			all[0].kill()
			all[0].start()
			close(release)
		},
		"it takes too long": func(*stocclient.Served, chan struct{}) {},
	} {
		t.Run(name, func(t *testing.T) {
			i := 10 + len(name)
			c, loading, release := all[0].dial(), make(chan struct{}), make(chan struct{})
			if strings.Contains(name, "too long") {
				c = all[2].dial()
			}
			var slow sync.WaitGroup
			slow.Go(func() {
				_, _ = c.GetOrLoad(ctx, i, func(context.Context) ([]byte, error) {
					close(loading)
					<-release
					return servedRecord(i), nil
				})
			})
			<-loading
			waits, stop := context.WithTimeout(ctx, 300*time.Millisecond)
			expect.Fails(there.GetOrLoad(waits, i, l.load(i)))(t, context.DeadlineExceeded)
			stop()
			end(c, release)
			began := time.Now()
			l.want(t, there, []int{i})
			if took := time.Since(began); took > 20*time.Second { // and not a minute, after which it loads without the right
				t.Errorf("another node waited for %v", took)
			}
			if n := l.counts[i].Load(); n > 1 {
				t.Errorf("%d loads", n)
			}
			select {
			case <-release:
			default:
				close(release)
			}
			slow.Wait()
		})
	}
}

// Ensure that programs go on without a server, without tiers and with a tier that fails, and that a fetch of a
// sample that no program has says so.
func TestProgramsAlone(t *testing.T) {
	s := programHosts(t, 1, 100, "all", "")[0]
	s.start()
	l := newLoads(100)
	c := s.dial()
	var programs sync.WaitGroup
	for range 4 {
		c := s.dial()
		programs.Go(func() { l.want(t, c, rand.Perm(50)) })
	}
	programs.Wait()
	if sum, _ := l.sum(); sum != 50 {
		t.Errorf("%d loads of 50 samples on one node", sum)
	}
	_, err := c.GetOrFetch(context.Background(), 60)
	if failed := (*stocclient.FetchError)(nil); !errors.As(err, &failed) || !strings.Contains(err.Error(), "LOAD: sample 60") ||
		!strings.Contains(err.Error(), "load it yourself") {
		t.Error(err)
	}
	expect.Gives(c.Offer(context.Background(), 60, servedRecord(60)))(t, false)
	expect.Fails(c.Offer(context.Background(), 60, make([]byte, 10)))(t, stocclient.ErrSchema)
	expect.Fails(c.Offer(context.Background(), 100, servedRecord(60)))(t, stocclient.ErrIndex)
	s.kill()
	began := time.Now()
	l.want(t, c, rand.Perm(100))
	if took := time.Since(began); took > 8*time.Second { // one wait for the server, and no more
		t.Errorf("50 samples without a server took %v", took)
	}

	dead := redistest.Start(t)
	dead.Kill()
	s = programHosts(t, 1, 100, "all", "tiers: [{kind: cluster, "+on(dead)+"}],")[0]
	s.start()
	l = newLoads(100)
	l.want(t, s.dial(), first(100))
	if sum, _ := l.sum(); sum != 100 {
		t.Errorf("%d loads of 100 samples", sum)
	}
}

// Ensure that settings that make no sense are refused, with the key.
func TestProgramsRefused(t *testing.T) {
	for more, want := range map[string]string{
		"limits: {concurrency: 2}": "source.limits: programs load the samples",
		"read_ahead: {}":           "source.read_ahead",
		"path: x":                  `unknown key "path"`,
	} {
		s := configureServed(t, "size: all, source: {kind: none, samples: 5, fingerprint: a, fields: [{name: x, shape: [3]}], "+
			more+"}")
		out, err := program("serve", "-c", s.path, "--check").CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s", more, err, out)
		}
	}
}
