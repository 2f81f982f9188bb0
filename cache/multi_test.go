package cache_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/stress"
	"github.com/stocached/stocached/shm"
)

// Eight processes read 10,000 samples through 64 slots. Every copy is right, no slot is lost, and no
// process waits for ever. STOCACHED_TEST_SECONDS sets how long, for `make soak`.
func TestManySamplesAndFewSlots(t *testing.T) {
	lasts := time.Second / 4
	if seconds, err := strconv.Atoi(os.Getenv("STOCACHED_TEST_SECONDS")); err == nil {
		lasts = time.Duration(seconds) * time.Second
	}
	const samples, slots = 10_000, 64
	for _, policy := range shm.EvictingPolicies() {
		t.Run(policy.String(), func(t *testing.T) {
			seg := named(t, shm.Options{Samples: samples, Slots: slots, SampleBytes: churnBytes, Policy: policy})
			c := attach(t, seg)
			var children []*child
			for range 8 {
				children = append(children, start(t, seg.Path(), ""))
			}
			for k, p := range children {
				p.tell("churn %d %d %d", k, samples, lasts.Milliseconds())
			}
			for k, p := range children {
				var hits, stored int
				answer := p.hear()
				if _, err := fmt.Sscanf(answer, "%d %d <nil>", &hits, &stored); err != nil || hits == 0 {
					t.Errorf("child %d answered %q", k, answer)
				}
			}
			if s := stats(t, c); s.Ready != slots || s.Evicted == 0 {
				t.Errorf("%+v", s)
			}
			checkSound(t, seg)
		})
	}
}

// A new client gets the number of a client that died in a fill, and reclaims its claim at once.
func TestKilledWhileFilling(t *testing.T) {
	for _, o := range []shm.Options{{Samples: 8, SampleBytes: 5000},
		{Samples: 8, SampleBytes: 5000, Variable: true, Limit: 8 << 20}} {
		seg := named(t, o)
		c := attach(t, seg)
		set(t, c, 1, payload(1, 0, 5000), 0, cache.Stored)
		p := start(t, seg.Path(), "")
		p.ask("STORED <nil>", "claim 3 1 5000")
		set(t, c, 3, payload(3, 2, 5000), 0, cache.Busy)
		p.kill()
		q := start(t, seg.Path(), "")
		fatal.Equal(t, q.owner, p.owner, "the number of the new client, which the dead one had")
		q.ask("STORED <nil>", "set 3 3 5000")
		wantSample(t, c, 3, payload(3, 3, 5000))
		wantSample(t, c, 1, payload(1, 0, 5000))
		if s := stats(t, c); s.Recovered != 1 || s.ArenaLostBytes != 0 {
			t.Errorf("%+v", s)
		}
		q.kill()
		checkSound(t, seg)
	}
}

// Children of a dead client with its data descriptor do not keep its lock.
func TestChildInheritsDescriptors(t *testing.T) {
	seg := named(t, shm.Options{Samples: 8, SampleBytes: 5000})
	c := attach(t, seg)
	p := start(t, seg.Path(), "")
	p.ask("STORED <nil>", "claim 3 1 5000")
	p.tell("spawn")
	var pid int
	fatal.Value(fmt.Sscanf(p.hear(), "<nil> %d", &pid))(t)
	defer syscall.Kill(pid, syscall.SIGKILL)
	links, err := exec.Command("ls", "-l", fmt.Sprintf("/proc/%d/fd", pid)).Output()
	if err != nil || strings.Count(string(links), seg.Path()) != 1 {
		t.Errorf("the grandchild should have the data descriptor and no other of the cache, has %v\n%s", err, links)
	}
	expect.Gives(c.Recover())(t, 0)
	p.kill()
	fatal.If(t, syscall.Kill(pid, 0))
	expect.Gives(c.Recover())(t, 1)
	checkSound(t, seg)
}

// A clear during writes and reads of other processes causes no torn read: the workers verify all
// bytes. A machine that is short of processors takes more rounds until they have stored enough.
func TestClearUnderLiveWriters(t *testing.T) {
	for _, o := range []shm.Options{{Samples: 32, Slots: 20, SampleBytes: 20000},
		{Samples: 32, SampleBytes: 20000, Variable: true, Limit: 16 << 20}} {
		seg := named(t, o)
		c := attach(t, seg)
		cleared, reads, rounds := 0, 0, 0
		s := stats(t, c)
		for begun := time.Now(); rounds == 0 || cleared < 5 || s.Stored < 100; s = stats(t, c) {
			if time.Since(begun) > time.Minute {
				t.Fatalf("in %d rounds of a minute: %d clears, %+v", rounds, cleared, s)
			}
			n, hits := clearUnderWriters(t, seg, c)
			cleared, reads, rounds = cleared+n, reads+hits, rounds+1
		}
		t.Logf("%d clears, %d stored, %d hits, %d of the clearer's own, %d copies retried, %d rounds", cleared, s.Stored,
			s.Hits, reads, s.Retried, rounds)
		if s.Clears != uint64(cleared) || s.Lost != 0 || s.Corrupt != 0 {
			t.Errorf("%+v", s)
		}
		checkSound(t, seg)
	}
}

// clearUnderWriters clears and reads for as long as three workers run. Every other clear waits until they have
// stored a sample. It returns the clears and the hits.
func clearUnderWriters(t *testing.T, seg *shm.Segment, c *cache.Cache) (cleared, reads int) {
	t.Helper()
	exe := fatal.Value(os.Executable())(t)
	var workers []*exec.Cmd
	for k := range 3 {
		w := exec.Command(exe, "work", seg.Path(), "32", "1", fmt.Sprint(k))
		w.Stderr = os.Stderr
		fatal.If(t, w.Start())
		defer w.Process.Kill()
		workers = append(workers, w)
	}
	buffer := make([]byte, 20000)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		stored := stats(t, c).Stored
		for cleared%2 == 1 && stats(t, c).Stored == stored && time.Now().Before(end) {
			time.Sleep(100 * time.Microsecond)
		}
		r, err := c.Clear(t.Context())
		if err != nil || r != cache.Stored {
			t.Fatal(r, err)
		}
		cleared++
		for k := range 200 {
			n, hit, err := c.Get(k%32, buffer)
			if err == nil && hit {
				reads++
				err = stress.Verify(buffer[:n], uint64(k%32))
			}
			fatal.If(t, err)
		}
	}
	for _, w := range workers {
		expect.NoError(t, w.Wait())
	}
	return cleared, reads
}

// A clear waits for claims of live clients. After its deadline it returns their number, and nothing
// has changed.
func TestClearTimeout(t *testing.T) {
	seg := named(t, shm.Options{Samples: 8, SampleBytes: 5000})
	c := attach(t, seg)
	set(t, c, 1, payload(1, 0, 5000), 0, cache.Stored)
	p := start(t, seg.Path(), "")
	p.ask("STORED <nil>", "claim 3 1 5000")
	mine, r, err := c.Claim(4, 5000, 0)
	if r != cache.Stored {
		t.Fatal(r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := c.Clear(ctx); !errors.Is(err, shm.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "2 claims") {
		t.Errorf("clear: %v", err)
	}
	wantSample(t, c, 1, payload(1, 0, 5000))
	set(t, c, 2, payload(2, 0, 5000), 0, cache.Stored)
	expect.Works(mine.WriteAt(payload(4, 0, 5000), 0))(t)
	expect.NoError(t, mine.Publish())
	p.ask("<nil>", "publish")
	for i, version := range map[int]int{1: 0, 2: 0, 3: 1, 4: 0} {
		wantSample(t, c, i, payload(i, version, 5000))
	}
	expect.Gives(c.Clear(t.Context()))(t, cache.Stored)
	for i := range 8 {
		wantMiss(t, c, i)
	}
	checkSound(t, seg)
}

// During a clear, claims are BUSY, and so is another clear.
func TestBusyWhileClearing(t *testing.T) {
	seg := named(t, shm.Options{Samples: 8, SampleBytes: 5000})
	a, b := attach(t, seg), attach(t, seg)
	claim, r, err := a.Claim(3, 5000, 0)
	if r != cache.Stored {
		t.Fatal(r, err)
	}
	var wait sync.WaitGroup
	wait.Go(func() { expect.Gives(b.Clear(t.Context()))(t, cache.Stored) })
	for !shm.Phase(seg.Phase().Load()).Clearing() {
		time.Sleep(time.Millisecond)
	}
	for _, c := range []*cache.Cache{a, b} {
		set(t, c, 4, payload(4, 0, 5000), 0, cache.Busy)
		expect.Gives(c.Clear(t.Context()))(t, cache.Busy)
	}
	expect.NoError(t, claim.Publish())
	wait.Wait()
	wantMiss(t, a, 3)
	set(t, a, 4, payload(4, 0, 5000), 0, cache.Stored)
	checkSound(t, seg)
}

// With unlink-last the cache stays while it has users, and goes with the last one, even if that one
// dies.
func TestUnlinkLast(t *testing.T) {
	seg := named(t, shm.Options{Samples: 8, SampleBytes: 5000, UnlinkLast: true})
	c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
	p := start(t, seg.Path(), "")
	fatal.If(t, c.Close())
	expect.Works(os.Stat(seg.Path()))(t)
	seg2 := fatal.Value(shm.Open(seg.Path(), shm.OpenOptions{}))(t)
	defer seg2.Close()
	c2 := fatal.Value(cache.Attach(seg2, cache.Options{}))(t)
	p.kill()
	fatal.If(t, c2.Close())
	expect.Fails(os.Stat(seg.Path()))(t, os.ErrNotExist)
}

// Clients in another pid namespace, with the same small pids, are probed by the kernel's locks like
// all others.
func TestPIDNamespaces(t *testing.T) {
	seg := named(t, shm.Options{Samples: 8, SampleBytes: 500})
	c := attach(t, seg)
	var children []*child
	for range 2 {
		children = append(children, startIn(t, seg.Path(), "", syscall.CLONE_NEWPID))
	}
	clients, err := c.Clients()
	if err != nil || len(clients) != 3 || clients[1].PID != 1 || clients[2].PID != 1 ||
		clients[1].PIDNamespace == clients[0].PIDNamespace {
		t.Fatalf("%+v, %v", clients, err)
	}
	for k, p := range children {
		p.ask("STORED <nil>", "claim %d 0 500", k)
	}
	children[0].ask("BUSY <nil>", "set 1 1 500")
	expect.Gives(c.Recover())(t, 0)
	children[1].kill()
	children[0].ask("STORED <nil>", "set 1 1 500")
	set(t, c, 0, payload(0, 1, 500), 0, cache.Busy)
	children[0].ask("<nil>", "publish")
	wantSample(t, c, 0, payload(0, 0, 500))
	wantSample(t, c, 1, payload(1, 1, 500))
	checkSound(t, seg)
}
