package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/tier"
)

// Scripts that touch a lease only if this tier has it.
const (
	deleteOwn = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0`
	renewOwn  = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0`
)

func (t *Tier) releases(i int) redis.Cmder {
	return redis.NewCmd(t.ctx, "eval", deleteOwn, 1, t.keys.lease(i), t.owner)
}

// forget ends the renewals of a lease. false: the tier has no such lease.
func (t *Tier) forget(i int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	had := t.leases[i]
	delete(t.leases, i)
	return had
}

// Claim is part of tier.Shared.
func (t *Tier) Claim(ctx context.Context, i, size int, dst []byte) (int, tier.Result) {
	key := t.keys.sample(i)
	n := t.node(key)
	if n == nil || !n.writable() {
		return 0, tier.Out
	}
	set := redis.NewBoolCmd(ctx, "set", t.keys.lease(i), t.owner, "px", t.s.Lease.Milliseconds(), "nx")
	get := redis.NewZeroCopyStringCmd(ctx, dst, "get", key)
	if !n.do(&request{commands: []redis.Cmder{set, get}, bytes: size, once: true}) || isTooLong(set.Err()) {
		n.send(&request{commands: []redis.Cmder{t.releases(i)}}) // it may have got the lease
		return 0, tier.Out
	}
	mine := set.Err() == nil && set.Val()
	if mine {
		t.mu.Lock()
		t.leases[i] = true
		t.mu.Unlock()
	}
	length, result := t.check(n, get, key, i, size, dst)
	switch {
	case result == tier.Miss && mine:
		return 0, tier.Claimed
	case mine:
		t.Release(i)
	case result == tier.Miss && set.Err() == nil:
		return 0, tier.Busy
	case result == tier.Miss: // the node takes no lease
		return 0, tier.Out
	}
	return length, result
}

// Release is part of tier.Shared.
func (t *Tier) Release(i int) {
	if !t.forget(i) {
		return
	}
	if n := t.node(t.keys.sample(i)); n != nil {
		n.send(&request{commands: []redis.Cmder{t.releases(i)}})
	}
}

// releaseAll gives all leases back, before the tier is closed.
func (t *Tier) releaseAll() {
	var sent []*request
	for _, i := range t.held() {
		if n := t.node(t.keys.sample(i)); n != nil && t.forget(i) {
			r := &request{commands: []redis.Cmder{t.releases(i)}}
			n.send(r)
			sent = append(sent, r)
		}
	}
	for _, r := range sent {
		<-r.done
	}
}

// held lists the leases.
func (t *Tier) held() (all []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.leases {
		all = append(all, i)
	}
	return all
}

// LongestWait is part of tier.Shared.
func (t *Tier) LongestWait() time.Duration {
	most := 3 * t.s.Lease
	if within := t.about.Within; within != 0 {
		most = min(most, within/3) // the load itself takes time too
	}
	return most
}

// Waited is part of tier.Shared.
func (t *Tier) Waited() { t.counts.Waited.Add(1) }

// GaveUp is part of tier.Shared.
func (t *Tier) GaveUp() { t.counts.GaveUp.Add(1) }

// renew renews all leases.
func (t *Tier) renew() {
	tick := time.NewTicker(t.s.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			return
		}
		for _, i := range t.held() {
			if n := t.node(t.keys.sample(i)); n != nil {
				n.send(&request{commands: []redis.Cmder{redis.NewCmd(t.ctx, "eval", renewOwn, 1, t.keys.lease(i), t.owner,
					t.s.Lease.Milliseconds())}})
			}
		}
	}
}

// How often nodes tell each other their fingerprints, and for how long one counts.
var (
	compareEvery     = 30 * time.Second
	fingerprintLasts = 2 * time.Minute
)

// watch compares the fingerprint of the cache with those of other machines, and the memory of nodes with a sample.
func (t *Tier) watch() {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var next time.Time
	for {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			return
		}
		if time.Now().Before(next) || t.engine.Load() == nil {
			continue
		}
		next = time.Now().Add(compareEvery)
		t.compare() // the answer may say that the engine is another one
		for _, n := range t.engine.Load().all() {
			n.measure()
		}
	}
}

// compare tells the fingerprint of the cache, and looks for other ones.
func (t *Tier) compare() {
	key := cacheKey(t.about.Cache)
	text := t.otherFingerprints(redis.NewIntCmd(t.ctx, "hset", key, t.about.Info.Fingerprint, time.Now().Unix()),
		redis.NewIntCmd(t.ctx, "expire", key, 3600))
	t.mu.Lock()
	changed := text != "" && text != t.others
	t.others = text
	t.mu.Unlock()
	if changed {
		t.about.Log.Warn("a tier is of no use between nodes", "tier", kindName, "because", text)
	}
}

// otherFingerprints sends commands, and says which other fingerprints the cache has; "": none.
func (t *Tier) otherFingerprints(before ...redis.Cmder) string {
	key := cacheKey(t.about.Cache)
	all := redis.NewMapStringStringCmd(t.ctx, "hgetall", key)
	n := t.node(key)
	if n == nil || !n.do(&request{commands: append(before, all)}) {
		return ""
	}
	var others []string
	for fingerprint, seen := range all.Val() {
		at, err := strconv.ParseInt(seen, 10, 64)
		if fingerprint != t.about.Info.Fingerprint && err == nil && time.Since(time.Unix(at, 0)) < fingerprintLasts {
			others = append(others, fingerprint)
		}
	}
	if len(others) == 0 {
		return ""
	}
	slices.Sort(others)
	return fmt.Sprintf("other nodes have the cache %s with the fingerprint %s, this one has %s: they share no "+
		"samples; make source and decode alike, and the names, sizes and times of files",
		t.about.Cache, strings.Join(others, ", "), t.about.Info.Fingerprint)
}

// measure compares the memory of a node with a sample.
func (n *node) measure() {
	info, answer := text(n.tier.ctx, "info", "memory")
	if !n.do(&request{commands: []redis.Cmder{info}}) || info.Err() != nil {
		return
	}
	small := tooSmall(n.address, number(field(answer(), "maxmemory")), n.tier.about.Info.Schema.SampleBytes)
	n.mu.Lock()
	n.small = small
	n.mu.Unlock()
}

// tooSmall says whether a node has memory for a sample; "": it has. 0: it has no limit.
func tooSmall(address string, most, sample uint64) string {
	if most == 0 || most > sample+trailer {
		return ""
	}
	return fmt.Sprintf("%s: maxmemory is %s, and a sample takes %s: the tier can hold none; raise maxmemory", address,
		size.Text(most), size.Text(sample))
}

// field returns a field of an answer to INFO.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

var _ tier.Shared = (*Tier)(nil)
