//go:build faultpoints

package model_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/model"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// moveTimeout bounds the wait for the real code's next fault point. A move takes microseconds,
// unless a clear has to give up.
const moveTimeout = 20 * time.Second

// Ensure that the Go code does what the model does: every sampled schedule is imposed on goroutines
// that stop at fault points. After each move all words of the segment must be those of the model.
func TestReplayGo(t *testing.T) {
	for n, s := range model.Schedules() {
		t.Run(fmt.Sprintf("%s-%d", s.World, n), func(t *testing.T) {
			replayGo(t, s)
		})
	}
}

func worldNamed(t *testing.T, name string) model.Config {
	t.Helper()
	for _, c := range model.Worlds() {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no world %q", name)
	return model.Config{}
}

// actor is a thread of the model as a goroutine: it runs on request, and reports where it has
// stopped.
type actor struct {
	client  int
	program []model.Op
	started bool
	pending model.Result // the result of an operation at its last fault point
	resume  chan struct{}
	event   chan model.Move
}

// stage is a segment with its clients.
type stage struct {
	t      *testing.T
	world  model.Config
	scale  scale
	seg    *shm.Segment
	locks  []shm.Locks
	caches []*cache.Cache
	actors []*actor
	trace  []string
}

// running is the one actor that runs; the hook runs in its goroutine.
var running atomic.Pointer[actor]

func replayGo(t *testing.T, s model.Schedule) {
	st := newStage(t, worldNamed(t, s.World))
	run := fatal.Value(model.NewRun(s.World, seedOf(st.seg.Header.UUID[:])))(t)
	st.compare(run, "the setup")
	defer fault.SetHook(nil)
	fault.SetHook(func(point string) {
		if point == "find.word" || strings.HasPrefix(point, "copy.") {
			return // a read is one step of the model
		}
		a := running.Load()
		a.event <- model.Move{Point: point}
		<-a.resume // a client that died waits forever
	})
	for _, text := range s.Moves {
		m, err := model.ParseMove(text)
		if err == nil {
			err = run.Do(m)
		}
		fatal.If(t, err)
		st.trace = append(st.trace, text)
		st.move(m)
		st.compare(run, text)
	}
	for _, a := range st.actors { // operations at their last point must still report their end
		if a.pending != 0 && st.locks[a.client] != nil {
			st.settle(a)
		}
	}
}

// seedOf is the seed of a cache's policy.
func seedOf(uuid []byte) uint64 { return binary.LittleEndian.Uint64(uuid) }

func newStage(t *testing.T, w model.Config) *stage {
	st := &stage{t: t, world: w, scale: scaleOf(w)}
	o := shm.Options{Samples: uint64(w.Samples), ClientRecords: uint32(w.Records)}
	if w.Variable {
		o.Variable, o.Limit = true, st.scale.limit(t, w)
		if w.Chains {
			o.Policy, o.SlotBytes = shm.PolicyFIFO, st.scale.place
		}
	} else {
		o.Slots, o.SampleBytes = uint64(w.Places), st.scale.place
		if w.Indices {
			o.Policy = shm.PolicyFirstIndices
		} else if w.Policy != policy.None {
			o.Policy = shm.Policy(w.Policy - 1)
		} else if w.Evicts {
			o.Policy = shm.PolicyFIFO
		}
	}
	var err error
	if st.seg, err = shm.Create(o); err != nil {
		t.Fatal(err)
	}
	for c, cl := range w.Clients {
		st.locks, st.caches = append(st.locks, nil), append(st.caches, nil)
		if !cl.ReadOnly && cl.Threads[0][0].Kind != model.Register {
			st.attach(c)
		}
		for _, program := range cl.Threads {
			st.actors = append(st.actors,
				&actor{client: c, program: program, resume: make(chan struct{}), event: make(chan model.Move)})
		}
	}
	for _, op := range w.Setup {
		if r, _ := st.do(0, op); r != model.Stored && r != model.Done && r != model.Hit {
			t.Fatalf("setup %v: %v", op, r)
		}
	}
	return st
}

// attach registers a client with its own locks; closing them is its death.
func (st *stage) attach(c int) model.Result {
	var err error
	if st.locks[c], err = st.seg.NewLocks(); err != nil {
		st.t.Errorf("locks of client %d: %v", c, err)
		return model.Miss
	}
	o := cache.Options{Locks: st.locks[c]}
	if next := st.world.Next; st.world.KnowsPlans() {
		o.Next = func(sample, _ uint64) uint64 { return next[sample] }
	}
	switch st.caches[c], err = cache.Attach(st.seg, o); {
	case errors.Is(err, shm.ErrClients):
		return model.NoRecord
	case err != nil:
		st.t.Errorf("attach client %d: %v", c, err)
		return model.Miss
	}
	return model.Done
}

// do performs one operation of the model on the real cache. The value is that of a hit.
func (st *stage) do(client int, op model.Op) (model.Result, uint8) {
	if op.Kind == model.Register {
		return st.attach(client), 0
	}
	c := st.caches[client]
	if c == nil { // a read-only client shares no handle
		c = st.caches[0]
	}
	var r cache.Result
	var err error
	switch op.Kind {
	case model.Set:
		var flags cache.Flags
		if op.Overwrite {
			flags = cache.Overwrite
		}
		data := st.scale.sample(op.Value, max(1, op.Units))
		if op.GiveUp {
			var k *cache.Claim
			if k, r, err = c.Claim(int(op.Sample), len(data), flags); k != nil {
				expect.NoError(st.t, k.Abort())
				return model.Aborted, 0
			}
		} else {
			r, err = c.SetLoaded(int(op.Sample), [][]byte{data}, flags, op.Took)
		}
	case model.Get:
		dst := make([]byte, int(st.world.Places)*int(st.scale.place))
		n, hit, err := c.Get(int(op.Sample), dst)
		if err != nil {
			st.t.Error("get:", err)
		}
		if !hit {
			return model.Miss, 0
		}
		if n == 0 || !bytes.Equal(dst[:n], bytes.Repeat(dst[:1], n)) {
			st.t.Errorf("get of sample %d: torn: %x", op.Sample, dst[:n])
		}
		return model.Hit, dst[0]
	case model.Clear:
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if op.GiveUp {
			cancel()
		}
		if r, err = c.Clear(ctx); errors.Is(err, shm.ErrTimeout) {
			return model.Timeout, 0
		}
		if r == cache.Stored && err == nil {
			return model.Done, 0
		}
	case model.Recover:
		_, err = c.Recover()
		if err == nil {
			return model.Done, 0
		}
	}
	if err != nil {
		st.t.Errorf("%v by client %d: %v", op, client, err)
	}
	return [...]model.Result{model.Stored, model.Exists, model.Busy, model.Full}[r], 0
}

func (a *actor) run(st *stage) {
	<-a.resume
	for _, op := range a.program {
		r, v := st.do(a.client, op)
		a.event <- model.Move{Result: r, Value: v}
		if <-a.resume; r == model.NoRecord {
			return
		}
	}
}

// next lets an actor run until it stops again.
func (st *stage) next(a *actor) model.Move {
	running.Store(a)
	if !a.started {
		a.started = true
		go a.run(st)
	}
	a.resume <- struct{}{}
	select {
	case e := <-a.event:
		return e
	case <-time.After(moveTimeout):
		buffer := make([]byte, 1<<16)
		st.t.Fatalf("after %s\nno fault point and no end within %v:\n%s", st.told(), moveTimeout,
			buffer[:runtime.Stack(buffer, true)])
		return model.Move{}
	}
}

// settle ends an operation that is at its last fault point.
func (st *stage) settle(a *actor) {
	if e := st.next(a); e.Point != "" || e.Result != a.pending {
		st.t.Fatalf("after %s\nthe operation of client %d ends with %v %s, in the model with %v", st.told(), a.client,
			e.Result, e.Point, a.pending)
	}
	a.pending = 0
}

func (st *stage) move(m model.Move) {
	if m.Dies {
		fatal.If(st.t, st.locks[m.Thread].Close())
		st.locks[m.Thread] = nil
		return
	}
	a := st.actors[m.Thread]
	if a.pending != 0 {
		st.settle(a)
	}
	e := st.next(a)
	if m.Point != "" {
		a.pending, m.Result = m.Result, 0
	}
	if m.Thread = 0; e != m {
		st.t.Fatalf("after %s\nthe real code does %q", st.told(), e)
	}
}

func (st *stage) told() string { return strings.Join(st.trace, "\n") }

// compare reads the segment's words and payload as a Snapshot, and compares.
func (st *stage) compare(run *model.Run, after string) {
	st.t.Helper()
	got, err := st.snapshot()
	if err != nil {
		st.t.Fatalf("after %s\n%v", st.told(), err)
	}
	if want := run.Snapshot(); fmt.Sprint(got) != fmt.Sprint(want) {
		st.t.Fatalf("%s\nafter %s, the segment has\n%s\nand the model\n%s", st.told(), after, pretty(got), pretty(want))
	}
}

func pretty(s model.Snapshot) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// snapshot reads the segment. It returns an error if the model has no value for a word.
func (st *stage) snapshot() (model.Snapshot, error) {
	var raw rawSegment
	seg, w := st.seg, st.world
	raw.phase, raw.freeFrom, raw.arenaNext, raw.high = seg.Phase().Load(), seg.FreeFrom().Load(),
		seg.ArenaNext().Load(), seg.ClientsHigh().Load()
	raw.hand, raw.spread = seg.Hand().Load(), seg.Spread().Load()
	for i := range uint64(w.Samples) {
		raw.words = append(raw.words, seg.Word(i).Load())
		raw.metas = append(raw.metas, seg.Meta(i).Load())
		if w.Variable {
			raw.sums = append(raw.sums, seg.Sum(i).Load())
		}
	}
	if w.Chains {
		raw.freeFrom = seg.Group(0).Load()
		for s := range uint64(w.Places) {
			l := shm.Link(seg.SlotSample(s).Load())
			raw.table = append(raw.table, l.Sample()|l.Next()<<3)
		}
	} else if !w.Variable && !w.Indices {
		for s := range uint64(w.Places) {
			raw.table = append(raw.table, seg.SlotSample(s).Load())
		}
	}
	for s := range uint64(w.Places) {
		if w.Policy.NeedsHits() {
			raw.references = append(raw.references, seg.Reference(s))
		}
	}
	for r := range uint32(w.Records) {
		for e := range shm.ClaimsPerClient {
			entry, intent := seg.Claim(r, e)
			raw.claims = append(raw.claims, entry.Load(), intent.Load(), seg.Victim(r, e).Load())
		}
	}
	raw.payload = make([]byte, uint64(w.Places)*st.scale.place)
	if err := seg.ReadPayload(raw.payload, 0); err != nil {
		return model.Snapshot{}, err
	}
	return raw.snapshot(w, st.scale)
}

// scale is the size of things of the model in bytes. A unit of the model is many units of the
// arena, because an arena is a multiple of 4,096 bytes.
type scale struct {
	place uint64 // bytes of a slot, or of a unit of the model
	units uint64 // units of the arena in it; 0 with slots
}

func scaleOf(w model.Config) scale {
	if w.Variable {
		place := uint64(shm.RegionAlign / uint64(w.Places))
		if w.Chains {
			return scale{place, 0}
		}
		return scale{place, place / shm.UnitBytes}
	}
	return scale{128, 0}
}

// limit is the size of the cache of a world with samples of different sizes.
func (s scale) limit(t *testing.T, w model.Config) uint64 {
	t.Helper()
	g, err := shm.NewGeometry(shm.FlagVariable, shm.PolicyFirstCome, uint64(w.Samples), 0, shm.UnitBytes, uint32(w.Records),
		uint64(w.Places)*s.place)
	if w.Chains {
		g, err = shm.NewGeometry(shm.FlagVariable, shm.PolicyFIFO, uint64(w.Samples), uint64(w.Places), s.place,
			uint32(w.Records), 0)
	}
	fatal.If(t, err)
	return g.SegmentBytes
}

// sample is the bytes of a value.
func (s scale) sample(v, units uint8) []byte { return bytes.Repeat([]byte{v}, int(units)*int(s.place)) }

// rawSegment has the words of a segment.
type rawSegment struct {
	phase, freeFrom, arenaNext, high  uint64
	hand, spread, seed                uint64
	words, metas, sums, table, claims []uint64 // sums: of an arena; claims: entry, intent and victim, 32 times a record
	references, payload               []byte
}

// snapshot unpacks the words and divides them by the scale.
func (raw *rawSegment) snapshot(w model.Config, sc scale) (model.Snapshot, error) {
	var wrong []string
	divide := func(what string, v, by uint64) uint64 {
		if v%by != 0 {
			wrong = append(wrong, fmt.Sprintf("%s is %d, no multiple of %d", what, v, by))
		}
		return v / by
	}
	units := max(1, sc.units)
	p, f, a := shm.Phase(raw.phase), shm.FreeFrom(raw.freeFrom), shm.ArenaNext(raw.arenaNext)
	n := model.Snapshot{
		Phase: model.Word{State: uint8(raw.phase & 7), Owner: uint8(p.Owner()), Generation: uint16(p.Epoch())},
		Seq:   uint64(f.Seq()), From: uint64(f.From()),
		NextUnit: divide("arena_next", a.Unit(), units), NextOwner: uint64(a.Owner()),
		ClientsHigh: raw.high, Hand: raw.hand % uint64(max(1, w.Places)), References: raw.references,
	}
	if w.Policy.NeedsHits() {
		n.Hand = raw.hand
	}
	if w.Policy.NeedsCosts() {
		n.Spread = raw.spread
	}
	flags := uint32(0) // irrelevant for slots
	if w.Variable && !w.Chains {
		flags = shm.FlagVariable
	}
	layout := (&shm.Geometry{Flags: flags}).WordLayout()
	for i, x := range raw.words {
		word, meta := shm.Word(x), shm.Meta(raw.metas[i])
		if w.Policy.NeedsCosts() {
			n.Costs = append(n.Costs, meta.Cost())
		} else if meta.Cost() != 0 {
			wrong = append(wrong, fmt.Sprintf("sample %d has the cost %d", i, meta.Cost()))
		}
		place := layout.Place(word)
		if place != 0 {
			place = divide(fmt.Sprintf("place of sample %d", i), place-1, units) + 1
		}
		n.Words = append(n.Words,
			model.Word{State: uint8(word.State()), Owner: uint8(word.Owner()),
				Generation: uint16(layout.Generation(word)), Place: uint8(place)})
		crc := uint64(meta.Content())
		if w.Variable {
			n.Lengths = append(n.Lengths, uint8(divide(fmt.Sprintf("length of sample %d", i), crc, sc.place)))
			crc = raw.sums[i]
		}
		sum := uint8(0)
		for v := uint8(1); v < 32 && crc != 0; v++ {
			// a checksum stays until the next publish, but a length may change before
			for length := uint8(1); length <= w.Places; length++ {
				if crc == uint64(crc32.Checksum(sc.sample(v, length), shm.Castagnoli)) {
					sum = v
				}
			}
		}
		if crc != 0 && sum == 0 {
			wrong = append(wrong, fmt.Sprintf("sample %d has the checksum %#x of no value", i, crc))
		}
		n.Sums, n.Fills = append(n.Sums, sum), append(n.Fills, uint8(meta.Fills()))
	}
	n.Table = raw.table
	for r := range int(w.Records) {
		var claims []model.Claim
		for e := range shm.ClaimsPerClient {
			at := 3 * (r*shm.ClaimsPerClient + e)
			c := model.Claim{Sample: raw.claims[at], Victim: raw.claims[at+2]}
			if intent := raw.claims[at+1]; w.Chains {
				c.Slot, c.Unit = shm.Intent(intent).Chain()
			} else if w.Variable {
				c.Unit, c.Units = shm.Intent(intent).Extent()
				c.Unit, c.Units = divide("intent's unit", c.Unit, units), divide("intent's units", c.Units, units)
			} else {
				c.Slot = intent
			}
			if e < int(w.Entries) {
				claims = append(claims, c)
			} else if c != (model.Claim{}) {
				wrong = append(wrong, fmt.Sprintf("entry %d of record %d is %+v", e, r, c))
			}
		}
		n.Entries = append(n.Entries, claims)
	}
	half := int(sc.place / 2)
	for k := range 2 * int(w.Places) {
		part := raw.payload[k*half : (k+1)*half]
		if !bytes.Equal(part, bytes.Repeat(part[:1], half)) {
			wrong = append(wrong, fmt.Sprintf("half %d of the payload is mixed: %x", k, part))
		}
		n.Payload = append(n.Payload, part[0])
	}
	if wrong != nil {
		return n, errors.New(strings.Join(wrong, "; "))
	}
	return n, nil
}
