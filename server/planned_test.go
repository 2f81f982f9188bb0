package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/server"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

// training is a job of a test: a client that reads epochs of its own order.
type training struct {
	m     *memory
	s     *client.Served
	order order.Order
	rest  time.Duration // between two batches
	batch int
}

func newTraining(t *testing.T, m *memory, dir string, seed uint64) *training {
	t.Helper()
	s := fatal.Value(client.Dial(t.Context(), "pets", client.DialOptions{SocketsDir: dir}))(t)
	t.Cleanup(func() { s.Close() })
	return &training{m, s, order.Order{Samples: uint64(m.samples), Kind: order.Shuffled, Seed: seed}, 0, 16}
}

// announce says that the job is at a position of an epoch.
func (j *training) announce(ctx context.Context, epoch, from uint64) error {
	used, err := j.s.Announce(ctx, client.Plan{Order: j.order, Epoch: epoch, Shard: order.Shard{From: from}, Batch: j.batch})
	if err == nil && !used {
		err = errors.New("the cache does not use plans")
	}
	return err
}

// read reads positions of an epoch, batch by batch, and checks each sample. It returns the position at
// which it ended.
func (j *training) read(ctx context.Context, epoch, from, to uint64) (uint64, error) {
	e, err := j.order.Epoch(epoch)
	if err != nil {
		return from, err
	}
	indices, dst, rows := make([]int, j.batch), make([]byte, j.batch*j.m.bytes), make([][]byte, j.batch)
	for from < to {
		n := e.Fill(indices[:min(to-from, uint64(j.batch))], from, 1)
		var err error
		if j.m.variable {
			rows, err = j.s.FetchSamples(ctx, indices[:n])
		} else if err = j.s.Fetch(ctx, indices[:n], dst, j.m.bytes); err == nil {
			for k := range n {
				rows[k] = dst[k*j.m.bytes:][:j.m.bytes]
			}
		}
		if err != nil {
			return from, err
		}
		for k, i := range indices[:n] {
			if !bytes.Equal(rows[k], sourcetest.Content(i, j.m.size(i))) {
				return from, fmt.Errorf("sample %d has other bytes", i)
			}
		}
		from += uint64(n)
		time.Sleep(j.rest)
	}
	return from, nil
}

func (j *training) epoch(number uint64) error {
	if err := j.announce(context.Background(), number, 0); err != nil {
		return err
	}
	_, err := j.read(context.Background(), number, 0, j.order.Samples)
	return err
}

// side runs functions at the same time, and fails with their errors.
func side(t *testing.T, n int, run func(k int) error) {
	t.Helper()
	var all sync.WaitGroup
	for k := range n {
		all.Go(func() {
			if err := run(k); err != nil {
				t.Errorf("job %d: %v", k, err)
			}
		})
	}
	all.Wait()
}

// Ensure that jobs that announced their orders hit as often as docs/guides/server.md says, and that the
// source is read as rarely: half of the dataset is cached, and each job has its own order.
func TestPlannedJobs(t *testing.T) {
	samples := 4000
	if testing.Short() {
		samples = 2000
	}
	for _, want := range []struct {
		jobs        int
		hits, reads float64
		variable    bool
	}{{2, 0.70, 0.6, false}, {4, 0.74, 1.04, false}, {2, 0.68, 0.64, true}} {
		jobs := want.jobs
		if testing.Short() && jobs == 4 {
			continue
		}
		t.Run(fmt.Sprint(jobs, map[bool]string{true: " variable"}[want.variable]), func(t *testing.T) {
			m := newMemoryOf(samples, 1024, want.variable)
			m.latency = 20 * time.Microsecond
			s := evicting(t, m, shm.PolicyPlanned, samples/2, 4)
			all := make([]*training, jobs)
			for k := range all {
				all[k] = newTraining(t, m, s.Dir(), uint64(k)+1)
				all[k].rest = time.Millisecond
			}
			const first, last = 2, 6 // the first two epochs fill the cache
			before := 0
			for number := range uint64(last) {
				if number == first {
					before = m.total()
				}
				side(t, jobs, func(k int) error { return all[k].epoch(number) })
			}
			reads := float64(m.total()-before) / (last - first) / float64(samples)
			hits := 1 - reads/float64(jobs)
			t.Logf("%.3f of all reads hit; %.3f of the dataset is read from the source in an epoch of all jobs", hits, reads)
			if hits < want.hits || reads > want.reads {
				t.Errorf("%.3f of all reads hit, at least %g should; %.3f of the dataset is read in an epoch of all jobs, at most "+
					"%g should be", hits, want.hits, reads, want.reads)
			}
		})
	}
}

// about returns what the server says of the cache.
func about(t *testing.T, s *server.Server) (a map[string]any) {
	t.Helper()
	if code, text := ask(t, s, "/v1/caches/pets"); code != 200 {
		t.Error(code, text)
	} else if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Error(err)
	}
	return a
}

// jobsOf returns the jobs that the server knows.
func jobsOf(t *testing.T, s *server.Server) []any {
	t.Helper()
	all, _ := about(t, s)["jobs"].([]any)
	return all
}

// Ensure that each job gets every sample of its order once, though jobs end and start again at any moment
// and so does the server.
func TestPlannedRestarts(t *testing.T) {
	const samples, epochs, trainings = 1000, 4, 3
	m := newMemory(samples, 1024)
	m.latency = 50 * time.Microsecond
	o := options(t, m, server.CacheOptions{Size: sizeFor(t, m, samples/2), Policy: shm.PolicyPlanned})
	_, stop := run(t, o)
	ended := make(chan struct{})
	var restarter sync.WaitGroup
	var restarts, moved atomic.Int64 // moved has a bit for each job that has moved since the last restart
	restarter.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Duration(20+rand.N(100)) * time.Millisecond):
			}
			// Jobs give up after four servers that end before an answer. Some jobs may wait for a restart.
			for began := time.Now(); moved.Load() != 1<<trainings-1 && time.Since(began) < time.Second/2; {
				time.Sleep(time.Millisecond)
			}
			moved.Store(0)
			stop()
			_, stop = run(t, o)
			restarts.Add(1)
		}
	})
	side(t, trainings, func(k int) error {
		j := newTraining(t, m, o.SocketsDir, uint64(k))
		j.batch = 1 + rand.N(40)
		for number := range uint64(epochs) {
			seen := make([]bool, samples)
			ends := rand.Perm(samples)[:2] // the job ends at these positions and starts again
			slices.Sort(ends)
			for at := uint64(0); at < samples; {
				if len(ends) > 0 && at >= uint64(ends[0]) {
					ends = ends[1:]
					j.s.Close()
					var err error
					for try := range 5 { // the server may be away
						j.s, err = client.Dial(context.Background(), "pets", client.DialOptions{SocketsDir: o.SocketsDir})
						if err == nil || try == 4 {
							break
						}
					}
					if err != nil {
						return err
					}
				}
				if err := j.announce(context.Background(), number, at); err != nil {
					return err
				}
				end := min(at+rand.N(uint64(100)), samples)
				next, err := j.read(context.Background(), number, at, end)
				if err != nil {
					return err
				}
				e, err := j.order.Epoch(number)
				if err != nil {
					return err
				}
				for ; at < next; at++ {
					if i := e.At(at); seen[i] {
						return fmt.Errorf("sample %d came twice", i)
					} else {
						seen[i] = true
					}
				}
				moved.Or(1 << k)
				time.Sleep(time.Millisecond)
			}
			for restarts.Load() <= int64(number) { // each epoch begins with a server that has restarted since
				time.Sleep(time.Millisecond)
			}
		}
		return j.s.Close()
	})
	close(ended)
	restarter.Wait()
	stop()
	t.Logf("%d restarts of the server, %d reads", restarts.Load(), m.total())
}

// Ensure that the next server hears of the plan with the first request of a client, without another
// announcement, and at the position where the job is by then.
func TestPlannedServerRestarts(t *testing.T) {
	const samples = 400
	m := newMemory(samples, 1024)
	o := options(t, m, server.CacheOptions{Size: sizeFor(t, m, samples/2), Policy: shm.PolicyPlanned})
	s, stop := start(t, o)
	j := newTraining(t, m, s.Dir(), 3)
	fatal.If(t, j.announce(t.Context(), 5, 100))
	fatal.Value(j.read(t.Context(), 5, 100, 200))(t)
	stop()
	s, _ = start(t, o)
	fatal.Equal(t, len(jobsOf(t, s)), 0, "")
	fatal.Value(j.read(t.Context(), 5, 200, 400))(t)
	fatal.Value(j.read(t.Context(), 6, 0, 30))(t)
	all := jobsOf(t, s)
	fatal.Equal(t, len(all), 1, "%v", all)
	if job := all[0].(map[string]any); job["epoch"] != 6.0 || job["read"] != 30.0 || job["total"] != 400.0 {
		t.Error(job)
	}
}

// Ensure that a sample that two clients fetch at the same time is read once and counted as shared, also
// if it gets no slot.
func TestSharedReads(t *testing.T) {
	m := newMemory(100, 1024)
	s := evicting(t, m, shm.PolicyPlanned, 10, 2)
	p, q := dial(t, s.Dir()), dial(t, s.Dir())
	number, _ := p.attach("pets")
	q.attach("pets")
	p.fetch(number, 0, upTo(20)...) // it is full
	release := m.hold(t, 50)
	one := p.startFetch(number, 50, 50)
	fatal.Until(t, "it is being read", func() bool { return m.begun(50) == 1 })
	two := q.startFetch(number, 50)
	q.fetch(number, 0, 1) // then the request before is in, too
	release()
	if a, b := p.answer(one, 2), q.answer(two, 1); len(a.samples) != 2 || len(b.samples) != 1 || m.begun(50) != 1 {
		t.Errorf("%d and %d samples after %d reads", len(a.samples), len(b.samples), m.begun(50))
	}
	expect.Equal(t, about(t, s)["shared_reads"], 1.0, "shared reads")
	wantMetrics(t, s, `stocached_shared_reads_total{cache="pets"} 1`, `stocached_jobs{cache="pets"} 0`)
}

// Ensure that one read of the source is enough for two jobs of the same order, one 500 reads before the
// other, though the cache has slots for 40 samples only; that the side buffer stays in its limit, and is
// empty when the jobs have ended and after a clear.
func TestSideBuffer(t *testing.T) {
	const samples, slots, between, step, epochs = 4000, 40, 500, 100, 2
	for _, c := range []struct {
		bytes     uint64
		variable  bool
		least, up float64 // parts of the dataset in an epoch of both jobs; a busy server hears of a read later
	}{{1 << 20, false, 1, 1.25}, {1 << 20, true, 1, 1.25}, {100 << 10, false, 1.5, 1.95}, {0, false, 1.8, 2.01}} {
		if testing.Short() && !c.variable && c.bytes != 100<<10 {
			continue // a buffer that has room, and one that is too small
		}
		t.Run(fmt.Sprint(c.bytes, c.variable), func(t *testing.T) {
			m := newMemoryOf(samples, 1024, c.variable)
			o := options(t, m, server.CacheOptions{Size: sizeFor(t, m, slots), Policy: shm.PolicyPlanned, SideBuffer: &c.bytes})
			s, _ := start(t, o)
			all := []*training{newTraining(t, m, s.Dir(), 1), newTraining(t, m, s.Dir(), 1)}
			at := [2]uint64{}
			read := func(job int) {
				t.Helper()
				epoch, from := at[job]/samples, at[job]%samples
				if from == 0 {
					fatal.If(t, all[job].announce(t.Context(), epoch, 0))
				}
				next := fatal.Value(all[job].read(t.Context(), epoch, from, from+step))(t)
				at[job] += next - from
			}
			for at[0] < between {
				read(0)
			}
			read(1)
			most := uint64(0)
			for at[0] < epochs*samples {
				read(0)
				read(1)
				most = max(most, uint64(about(t, s)["side_buffer_bytes"].(float64)))
			}
			reads := float64(m.total()) / epochs / samples
			shared := about(t, s)["shared_reads"].(float64) / epochs / samples
			t.Logf("%.3f of the dataset is read and %.3f shared in an epoch of both jobs; at most %d bytes are kept", reads,
				shared, most)
			if reads < c.least-0.1 || reads > c.up || most > c.bytes || shared > 2-reads || c.bytes > 500<<10 && shared < 0.6 {
				t.Errorf("%.3f of the dataset is read, and %.3f shared; want %g to %g; %d bytes are kept", reads, shared, c.least,
					c.up, most)
			}
			before := m.total() // the count before the clear: the server reads ahead again at once
			fatal.Value(all[0].s.Clear(t.Context()))(t)
			read(1)
			// A few reads have begun before, and end after the clear.
			if n := m.total() - before; n < step*9/10 {
				t.Errorf("after a clear, %d samples are read from the source for %d", n, step)
			}
			for _, j := range all {
				j.s.Close()
			}
			fatal.Until(t, "the server keeps nothing for jobs that have ended", func() bool {
				return about(t, s)["side_buffer_bytes"] == 0.0
			})
		})
	}
}

// Ensure that announcements which make no sense are refused and change nothing, and that other
// policies say that they do not need them.
func TestAnnounce(t *testing.T) {
	m := newMemory(30, 1000)
	m.fails[29] = unix.EIO
	s := evicting(t, m, shm.PolicyPlanned, 10, 2)
	p, number, _ := join(t, s)
	ask := func(p *peer, m control.AnnounceBody) (used bool, refused *control.RemoteError) {
		t.Helper()
		p.send(control.AppendAnnounce(nil, p.id(), m))
		h, body := p.receive()
		var err error
		if h.Type == control.Error {
			refused, err = control.ParseError(body)
		} else {
			used, err = control.ParseAnnounced(body)
		}
		fatal.If(t, err)
		return used, refused
	}
	good := control.AnnounceBody{Cache: number, Owner: 2, Kind: 1, Ranks: 1, Samples: 30}
	if used, refused := ask(p, good); !used || refused != nil || len(jobsOf(t, s)) != 1 {
		t.Error(used, refused)
	}
	for _, c := range []struct {
		change func(m *control.AnnounceBody)
		code   control.Code
	}{
		{func(m *control.AnnounceBody) { m.Samples = 31 }, control.CodeInvalid},
		{func(m *control.AnnounceBody) { m.Cache = 5 }, control.CodeNotFound},
	} {
		bad := good
		c.change(&bad)
		if _, refused := ask(p, bad); refused == nil || refused.Code != c.code || len(jobsOf(t, s)) != 1 {
			t.Errorf("%+v: %v", bad, refused)
		}
	}
	if used, refused := ask(p, control.AnnounceBody{Cache: number, Owner: 2, Flags: control.Withdraw}); used || refused != nil ||
		len(jobsOf(t, s)) != 0 {
		t.Error(used, refused)
	}
	other := dial(t, evicting(t, newMemory(30, 1000), shm.PolicyLRU, 10, 2).Dir())
	good.Cache, _ = other.attach("pets")
	if used, refused := ask(other, good); used || refused != nil {
		t.Error(used, refused)
	}
}
