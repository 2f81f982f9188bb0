package cache_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

var modelSeed = flag.Uint64("model.seed", 0, "repeat the random operations of this seed; 0: a new one")

// model is the expected content of a cache, in the simplest correct form. It runs one operation at
// a time; internal/verify/model covers concurrent ones.
type model struct {
	o       shm.Options
	units   uint64
	ready   map[int][]byte
	claimed map[int]*modelClient // samples that a client fills, or died filling
	slots   int                  // in use: READY or claimed
	extents map[int]uint64       // arena: units of a sample, READY or not
	next    uint64               // arena: units allocated
}

// modelClient is a client and its open claims.
type modelClient struct {
	c      *cache.Cache
	locks  shm.Locks
	claims map[int]*modelClaim
	dead   bool
}

type modelClaim struct {
	k    *cache.Claim
	data []byte
}

// claim makes a claim and returns its expected result.
func (m *model) claim(i, n int, overwrite bool, by *modelClient) cache.Result {
	if m.o.Policy == shm.PolicyFirstIndices && i >= int(m.o.Slots) {
		return cache.Out
	}
	if _, there := m.ready[i]; there && !overwrite {
		return cache.Exists
	}
	if owner := m.claimed[i]; owner != nil {
		if !owner.dead {
			return cache.Busy
		}
		m.reclaim(owner)
	}
	_, there := m.ready[i]
	switch {
	case m.o.Variable:
		need := shm.UnitsFor(uint64(n))
		if m.extents[i] < need {
			if m.next+need > m.units {
				return cache.Full
			}
			m.next += need
			m.extents[i] = need
		}
	case !there:
		if m.slots == int(m.o.Slots) {
			return cache.Full
		}
		m.slots++
	}
	if len(by.claims) == shm.ClaimsPerClient {
		panic("the test opens too many claims")
	}
	delete(m.ready, i)
	m.claimed[i] = by
	return cache.Stored
}

func (m *model) publish(i int, data []byte) {
	delete(m.claimed, i)
	m.ready[i] = data
	if m.o.Variable {
		m.extents[i] = shm.UnitsFor(uint64(len(data))) // the rest of the extent is forgotten
	}
}

func (m *model) abort(i int) {
	delete(m.claimed, i)
	if !m.o.Variable {
		m.slots--
	}
}

// reclaim aborts all claims of a dead client.
func (m *model) reclaim(by *modelClient) {
	for i := range by.claims {
		m.abort(i)
	}
	clear(by.claims)
}

// Random operations of several clients, some of which die, have the results of a plain model, and
// the cache stays sound.
func TestRandomOperationsAgainstAModel(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seed := *modelSeed
		if seed == 0 {
			seed = uint64(time.Now().UnixNano())
		}
		o.ClientRecords = 4
		if o.Variable {
			o.Limit = 4<<20 + 4096 + 16<<10 // an arena that fills up
		}
		for round := range uint64(20) {
			if err := randomOperations(t, create(t, o), o, seed+round, 600); err != nil {
				t.Fatalf("%v\nrepeat with -model.seed=%d", err, seed+round)
			}
			if *modelSeed != 0 {
				return
			}
		}
	})
}

func randomOperations(t *testing.T, seg *shm.Segment, o shm.Options, seed uint64, steps int) (err error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	m := &model{o: o, units: seg.Units(), ready: map[int][]byte{}, claimed: map[int]*modelClient{},
		extents: map[int]uint64{}}
	var clients []*modelClient
	var log []string
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nafter %v", err, log[max(0, len(log)-30):])
		}
		for _, by := range clients {
			if !by.dead {
				by.c.Close()
			}
		}
	}()
	var version int
	next := func(i int) []byte {
		version++
		n := int(o.SampleBytes)
		if o.Variable {
			n = rng.IntN(n + 1)
		}
		return payload(i, version, n)
	}
	for step := range steps {
		if len(clients) < 3 {
			locks, err := seg.NewLocks()
			if err != nil {
				return err
			}
			c, err := cache.Attach(seg, cache.Options{Locks: locks})
			if err != nil {
				return err
			}
			for _, claim := range m.claimed { // the claims of the number's last owner, if dead, are gone now
				if claim.dead && claim.c.Owner() == c.Owner() {
					m.reclaim(claim)
					break
				}
			}
			clients = append(clients, &modelClient{c: c, locks: locks, claims: map[int]*modelClaim{}})
			log = append(log, fmt.Sprintf("attach %d", c.Owner()))
			continue
		}
		by := clients[rng.IntN(len(clients))]
		i := rng.IntN(int(o.Samples))
		op := func(format string, args ...any) {
			log = append(log, fmt.Sprintf("%d: client %d "+format, append([]any{step, by.c.Owner()}, args...)...))
		}
		var claim *modelClaim
		for k := range by.claims { // any claim
			if i, claim = k, by.claims[k]; true {
				break
			}
		}
		switch k := rng.IntN(40); {
		case k < 12 || k < 20 && claim == nil: // set, sometimes over a READY sample
			i = rng.IntN(int(o.Samples))
			data, flags := next(i), cache.Flags(rng.IntN(3)/2)
			op("sets %d with %d bytes, flags %d", i, len(data), flags)
			want := m.claim(i, len(data), flags&cache.Overwrite != 0, by)
			got, err := by.c.Set(i, data, flags)
			if got != want || err != nil {
				return fmt.Errorf("set %d: %v, %v; the model says %v", i, got, err, want)
			}
			if want == cache.Stored {
				m.publish(i, data)
			}
		case k < 16: // publish
			op("publishes %d", i)
			if _, err := claim.k.WriteAt(claim.data, 0); err != nil {
				return err
			}
			if err := claim.k.Publish(); err != nil {
				return err
			}
			m.publish(i, claim.data)
			delete(by.claims, i)
		case k < 20: // abort
			op("aborts %d", i)
			if err := claim.k.Abort(); err != nil {
				return err
			}
			m.abort(i)
			delete(by.claims, i)
		case k < 26: // claim
			i = rng.IntN(int(o.Samples))
			data, flags := next(i), cache.Flags(rng.IntN(2))
			op("claims %d with %d bytes, flags %d", i, len(data), flags)
			want := m.claim(i, len(data), flags&cache.Overwrite != 0, by)
			c, got, err := by.c.Claim(i, len(data), flags)
			if got != want || err != nil {
				return fmt.Errorf("claim %d: %v, %v; the model says %v", i, got, err, want)
			}
			if want == cache.Stored {
				by.claims[i] = &modelClaim{c, data}
			}
		case k < 27: // die
			op("dies")
			by.locks.Close()
			by.dead = true
			clients = remove(clients, by)
		case k < 28: // end
			op("closes")
			if err := by.c.Close(); err != nil {
				return err
			}
			by.dead = true
			m.reclaim(by)
			clients = remove(clients, by)
		case k < 29:
			op("recovers")
			want := 0
			for range m.claimed {
				for _, owner := range m.claimed {
					if owner.dead {
						want += len(owner.claims)
						m.reclaim(owner)
						break
					}
				}
			}
			if got, err := by.c.Recover(); got != want || err != nil {
				return fmt.Errorf("recover: %d, %v; the model says %d", got, err, want)
			}
		case k < 30 && rng.IntN(4) == 0:
			for _, other := range clients { // else the clear would wait for them
				for i, claim := range other.claims {
					claim.k.Abort()
					m.abort(i)
				}
				clear(other.claims)
			}
			op("clears")
			if r, err := by.c.Clear(t.Context()); r != cache.Stored || err != nil {
				return fmt.Errorf("clear: %v, %v", r, err)
			}
			for _, owner := range m.claimed {
				m.reclaim(owner)
			}
			m.ready, m.extents, m.slots, m.next = map[int][]byte{}, map[int]uint64{}, 0, 0
			clear(m.claimed)
		default: // read
			i = rng.IntN(int(o.Samples))
			want, there := m.ready[i]
			if view, hit, err := by.c.View(i); hit != there || err != nil || string(view) != string(want) {
				return fmt.Errorf("view %d: hit %v, %v, same bytes %v; the model says %v", i, hit, err,
					string(view) == string(want), there)
			}
			state, err := by.c.State(i)
			says := cache.StateEmpty
			switch {
			case there:
				says = cache.StateReady
			case m.claimed[i] != nil:
				says = cache.StateWriting
			case o.Policy == shm.PolicyFirstIndices && i >= int(o.Slots):
				says = cache.StateOut
			}
			if state != says || err != nil {
				return fmt.Errorf("state %d: %v, %v; the model says %v", i, state, err, says)
			}
		}
	}
	by := clients
	if len(by) == 0 {
		return nil
	}
	if _, err := by[0].c.Recover(); err != nil {
		return err
	}
	for _, b := range by {
		for i, claim := range b.claims {
			claim.k.Abort()
			m.abort(i)
		}
	}
	for _, owner := range m.claimed {
		m.reclaim(owner)
	}
	checkSound(t, seg)
	s, err := by[0].c.Stats()
	if err != nil {
		return err
	}
	named := uint64(0)
	for _, n := range m.extents {
		named += n
	}
	if s.Ready != uint64(len(m.ready)) || s.ArenaNextBytes != 64*m.next || s.ArenaLostBytes != 64*(m.next-named) ||
		s.Lost+s.Corrupt != 0 {
		return fmt.Errorf("stats %+v; the model says %d ready, %d units allocated, %d named", s, len(m.ready), m.next, named)
	}
	if !o.Variable && s.Ready != uint64(m.slots) {
		return fmt.Errorf("%d samples ready, %d slots in use", s.Ready, m.slots)
	}
	for i, want := range m.ready {
		if view, hit, err := by[0].c.View(i); !hit || err != nil || string(view) != string(want) {
			return fmt.Errorf("at the end, view %d: %v, %v", i, hit, err)
		}
	}
	return nil
}

func remove(clients []*modelClient, by *modelClient) []*modelClient {
	for k, c := range clients {
		if c == by {
			return append(clients[:k:k], clients[k+1:]...)
		}
	}
	return clients
}
