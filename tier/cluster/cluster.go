// Package cluster is the tier `cluster`: samples in Redis or Valkey, a single server or a cluster,
// which all machines of a job share. docs/spec/tiers.md specifies it.
//
// A node (node.go) gathers the requests of concurrent reads into pipelines, and has the circuit
// breaker. An engine (engine.go) knows which node has which key. value.go has keys and values,
// lease.go the leases, examine.go what operators should change.
package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stocached/stocached/internal/breaker"
	"github.com/stocached/stocached/internal/clock"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
)

// Kind is the kind of this tier.
var Kind = tier.Kind{Name: kindName, Defaults: defaults, Shared: true, Check: check, Open: Open, Examine: Examine}

const kindName = "cluster"

// poisonPause is the time between two lines of the log about poisoned values.
const poisonPause = 6 * time.Second

// mostBytes is the largest value that the engine takes, without its settings changed.
const mostBytes = 512<<20 - trailer

// Tier is part of package tier.
type Tier struct {
	s      *settings
	about  tier.About
	keys   keys
	owner  string // name of this owner of leases
	counts tier.Counts

	ctx     context.Context // ended by Close
	stop    context.CancelFunc
	running sync.WaitGroup
	engine  atomic.Pointer[engine] // nil: not known yet
	lost    breaker.Breaker        // open until the engine is known
	tell    atomic.Int64           // from when on the log may have another line about a poisoned value, by package clock

	mu     sync.Mutex // protects the fields below
	leases map[int]bool
	others string // about other fingerprints of the cache; "": there are none
}

// quiet keeps go-redis from writing to standard error: the tier logs what fails.
type quiet struct{}

// Printf is part of the interface of go-redis.
func (quiet) Printf(context.Context, string, ...any) {}

var quieten = sync.OnceFunc(func() { redis.SetLogger(quiet{}) })

// Open is part of tier.Kind.
func Open(from source.Settings, about tier.About) (tier.Tier, error) {
	t, err := open(from, about)
	if err != nil {
		return nil, err
	}
	t.lost.Open("the tier has not asked its addresses yet")
	t.running.Go(t.keep)
	t.running.Go(t.renew)
	t.running.Go(t.watch)
	return t, nil
}

// open makes a tier that does nothing yet.
func open(from source.Settings, about tier.About) (*Tier, error) {
	quieten()
	s, err := read(from)
	if err != nil {
		return nil, err
	}
	// What a connection reads into its buffer is copied once more. It pays off for small samples only.
	if s.buffer = 32 << 10; about.Info.Schema.SampleBytes >= 16<<10 {
		s.buffer = 1 << 10
	}
	s.most = mostOf(about.Info.Schema.SampleBytes)
	t := &Tier{s: s, about: about, keys: keysOf(about.Info.Fingerprint), owner: rand.Text(), leases: map[int]bool{}}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t, nil
}

// keep finds the engine, and asks nodes that are left out whether they are back.
func (t *Tier) keep() {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for first := true; ; first = false {
		e := t.engine.Load()
		switch {
		case e != nil:
			for _, n := range e.all() {
				if n.breaker.Due() {
					t.running.Go(n.probe)
				}
			}
		case first || t.lost.Due():
			found, err := t.connect(t.ctx)
			if err == nil {
				t.engine.Store(found)
				out := t.lost.Close()
				t.about.Log.Info("a tier has found its servers", "tier", kindName, "after", out)
				break
			}
			if first {
				t.about.Log.Warn("a tier does not reach its servers", "tier", kindName, "because", err)
			}
			t.lost.Again(source.OneLine(err.Error()))
		}
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			return
		}
	}
}

// moved notes that the engine has its keys elsewhere than the tier knows.
func (t *Tier) moved() {
	e := t.engine.Load()
	if e == nil {
		return
	}
	if e.cluster != nil {
		e.cluster.ReloadState(t.ctx) // it does not wait
		return
	}
	if t.engine.CompareAndSwap(e, nil) { // a single server has become one of a cluster
		t.lost.Open("the server is in a cluster now")
		_ = e.close()
	}
}

// node returns the node that has a key; nil: none is known.
func (t *Tier) node(key string) *node { return t.engine.Load().route(key) }

// Get is part of tier.Tier. It counts misses. A Claim follows a miss, as often as it waits, so it counts none.
func (t *Tier) Get(ctx context.Context, i, size int, dst []byte) (length int, result tier.Result) {
	key := t.keys.sample(i)
	result = tier.Out
	if n := t.node(key); n != nil {
		get := redis.NewZeroCopyStringCmd(ctx, dst, "get", key)
		if n.do(&request{commands: []redis.Cmder{get}, bytes: size}) {
			length, result = t.check(n, get, key, i, size, dst)
		}
	}
	switch result {
	case tier.Miss:
		t.counts.Misses.Add(1)
	case tier.Out:
		t.counts.LeftOut.Add(1)
	}
	return length, result
}

// check says what a node has answered: Hit, Miss or Out. It counts hits.
func (t *Tier) check(n *node, get *redis.ZeroCopyStringCmd, key string, i, size int, dst []byte) (int, tier.Result) {
	err := get.Err()
	if length := get.Val() - trailer; t.about.AnySize() && length >= 0 && length < size {
		size = length
	}
	switch {
	case errors.Is(err, redis.Nil):
		return 0, tier.Miss
	case err == nil && t.keys.intact(i, size, dst[:get.Val()]):
		t.counts.Hit(size)
		return size, tier.Hit
	case err != nil && !isTooLong(err) && !isWrongType(err):
		return 0, tier.Out
	}
	t.counts.Poisoned.Add(1)
	now := int64(clock.Now())
	if next := t.tell.Load(); now >= next && t.tell.CompareAndSwap(next, now+int64(poisonPause)) {
		t.about.Log.Warn("a tier has a value that is not the sample; it is removed", "tier", kindName, "node", n.address,
			"sample", i, "so_far", t.counts.Poisoned.Load())
	}
	n.do(&request{commands: []redis.Cmder{redis.NewIntCmd(t.ctx, "del", key)}}) // before the next value is written
	return 0, tier.Miss
}

// Accepts is part of tier.Tier.
func (t *Tier) Accepts(i, size int) bool {
	n := t.node(t.keys.sample(i))
	if n == nil || !n.writable() || size > mostBytes {
		t.counts.Dropped.Add(1)
		return false
	}
	return true
}

// Put is part of tier.Tier.
func (t *Tier) Put(ctx context.Context, i int, sample []byte) {
	key := t.keys.sample(i)
	n := t.node(key)
	if n == nil {
		t.counts.Dropped.Add(1)
		t.forget(i)
		return
	}
	size := len(sample)
	set := redis.NewStatusCmd(ctx, "set", key, t.keys.seal(i, sample), "px", t.s.Expire.Milliseconds())
	r := &request{commands: []redis.Cmder{set}, bytes: size}
	if t.forget(i) {
		r.commands = append(r.commands, t.releases(i))
	}
	if !n.do(r) || set.Err() != nil {
		t.counts.Dropped.Add(1)
		return
	}
	t.counts.Written(size)
}

// Status is part of tier.Tier.
func (t *Tier) Status() tier.Status {
	s := t.counts.Status(kindName)
	s.Nodes = []tier.NodeStatus{}      // not null in JSON
	s.Openings = t.lost.Openings() - 1 // the tier begins open
	e := t.engine.Load()
	if because, out := t.lost.State(); e == nil {
		s.Nodes = append(s.Nodes, tier.NodeStatus{Address: strings.Join(t.s.Addresses, ", "), LeftOut: true,
			Because: because, Seconds: out.Seconds()})
	} else {
		for _, n := range e.all() {
			s.Nodes = append(s.Nodes, n.status())
			s.Openings += n.breaker.Openings()
			n.mu.Lock()
			if n.small != "" {
				s.Notes = append(s.Notes, n.small)
			}
			n.mu.Unlock()
		}
	}
	slices.SortFunc(s.Nodes, func(a, b tier.NodeStatus) int { return strings.Compare(a.Address, b.Address) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.others != "" {
		s.Notes = append(s.Notes, t.others)
	}
	slices.Sort(s.Notes)
	return s
}

// Close is part of tier.Tier.
func (t *Tier) Close() error {
	t.releaseAll()
	t.stop()
	t.running.Wait()
	if err := t.engine.Swap(nil).close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("close the tier %s: %w", kindName, err)
	}
	return nil
}
