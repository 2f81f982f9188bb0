package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Schedule is an interleaving that tests can impose on real code. Between two of its moves every
// thread is at a fault point, between two operations, or before its first.
type Schedule struct {
	World string   // name in Worlds
	Moves []string // see Move
}

// Move is one line of a schedule:
//
//	"2 slot.taken"            thread 2 runs until it passes that fault point, and stops there
//	"2 publish.entry STORED"  the same, and the operation then ends with this result, without passing another point
//	"2 = BUSY"                thread 2 runs until its operation ends, with this result
//	"2 = HIT 3"               the same of a get, with the value
//	"1 dies"                  client 1 dies where its threads are
type Move struct {
	Thread int // or client
	Dies   bool
	Point  string // "": no point before the operation's end
	Result Result // none: the operation goes on
	Value  uint8  // value of a hit
}

// String formats the move.
func (m Move) String() string {
	switch {
	case m.Dies:
		return fmt.Sprintf("%d dies", m.Thread)
	case m.Point == "" && m.Result == Hit:
		return fmt.Sprintf("%d = HIT %d", m.Thread, m.Value)
	case m.Point == "":
		return fmt.Sprintf("%d = %s", m.Thread, m.Result)
	case m.Result != none:
		return fmt.Sprintf("%d %s %s", m.Thread, m.Point, m.Result)
	}
	return fmt.Sprintf("%d %s", m.Thread, m.Point)
}

// ParseMove reads the output of String.
func ParseMove(text string) (Move, error) {
	f := strings.Fields(text)
	if len(f) < 2 {
		return Move{}, fmt.Errorf("model: move %q: want a number and what it does", text)
	}
	n, err := strconv.Atoi(f[0])
	m := Move{Thread: n, Dies: f[1] == "dies"}
	if err != nil || m.Dies {
		return m, err
	}
	if f[1] != "=" {
		m.Point = f[1]
	}
	if len(f) > 2 {
		for r := none; r <= Miss; r++ {
			if r.String() == f[2] {
				m.Result = r
			}
		}
		if m.Result == none {
			return m, fmt.Errorf("model: move %q: no result %q", text, f[2])
		}
	}
	if len(f) > 3 {
		v, err := strconv.ParseUint(f[3], 10, 8)
		m.Value = uint8(v)
		return m, err
	}
	return m, nil
}

// Run is a schedule in execution on the model.
type Run struct {
	y *system
	s State
}

// NewRun starts a world, after its Setup. The seed is that of its policy: the first 8 bytes of a cache's uuid.
func NewRun(world string, seed uint64) (*Run, error) {
	for _, c := range Worlds() {
		if c.Name == world {
			y := c.system(seed)
			return &Run{y, y.start()}, nil
		}
	}
	return nil, fmt.Errorf("model: no world %q", world)
}

// try runs a thread to its next fault point or its operation's end. false: the thread would wait
// for another, and the state has not changed.
func (r *Run) try(thread int) (Move, bool) {
	s := r.s
	m := Move{Thread: thread}
	for range 1000 {
		if !s.enabled(r.y, thread) {
			return m, false
		}
		gets := s.threads[thread].expect
		op := r.y.threads[thread].program[s.threads[thread].op]
		x := r.y.apply(&s, stepAction+action(thread))
		if th := &s.threads[thread]; x.waits && th.pc == drainEntry &&
			(op.Kind == Clear && (op.GiveUp || th.over) || op.Kind == Set) {
			x = r.y.apply(&s, timeoutAction+action(thread)) // a deadline that is over
		}
		if x.violation != "" {
			panic("model: " + r.y.Name + ": " + x.violation)
		}
		if x.waits {
			return m, false
		}
		m.Point, m.Result = x.point, x.result
		if x.result == Hit {
			m.Value = gets
		}
		if x.point != "" || x.ended {
			r.s = s
			return m, true
		}
	}
	panic("model: " + r.y.Name + ": a thread runs for ever")
}

// Do performs a move. It returns an error if the model does something else.
func (r *Run) Do(m Move) error {
	if m.Dies {
		if !r.s.mayDie(r.y, uint8(m.Thread)) {
			return fmt.Errorf("model: client %d cannot die here", m.Thread)
		}
		r.s.crashes++
		r.s.die(r.y, uint8(m.Thread))
		return nil
	}
	if m.Thread < 0 || m.Thread >= r.y.janitor() {
		return fmt.Errorf("model: no thread %d", m.Thread)
	}
	got, ok := r.try(m.Thread)
	if !ok {
		return fmt.Errorf("model: thread %d has to wait, the schedule says %q", m.Thread, m)
	}
	if got != m {
		return fmt.Errorf("model: thread %d does %q, the schedule says %q", m.Thread, got, m)
	}
	return nil
}

// Word is a word of the segment with its fields.
type Word struct {
	State, Owner uint8
	Generation   uint16
	Place        uint8 // + 1; 0: none
}

// Snapshot is the shared memory of a run, with its fields unpacked for comparison with a real
// segment.
type Snapshot struct {
	Phase               Word // Generation is the epoch
	Seq, From           uint64
	NextUnit, NextOwner uint64
	ClientsHigh         uint64
	Hand                uint64  // 0 without eviction; modulo the number of slots if there are no reference bytes
	References          []uint8 // references of slots, with clock, lru and lfu
	Costs               []uint8 // costs of samples, with the policy cost
	Spread              uint64  // likewise
	Words               []Word
	Lengths             []uint8   // units of a sample; only of an arena
	Sums, Fills         []uint8   // the value whose checksum a sample has, 0: none; number of publishes
	Table               []uint64  // first-come; with chains sample + 1, and eight times next + 1
	Entries             [][]Claim // claim entries of each record
	Payload             []uint8   // two values a slot or unit: its halves
}

// Claim is a claim entry: sample + 1; the intent, which is slot + 1, or an extent, or with chains slot + 1
// and in Unit the rest + 1; the victim + 1.
type Claim struct{ Sample, Slot, Unit, Units, Victim uint64 }

// Snapshot returns the present shared memory.
func (r *Run) Snapshot() Snapshot {
	y, m := r.y, &r.s.mem
	word := func(w value) Word { return Word{stateOf(w), ownerOf(w), generationOf(w), placeOf(w)} }
	p := m[phaseAddr]
	n := Snapshot{
		Phase: Word{State: stateOf(p), Owner: ownerOf(p), Generation: epochOf(p)},
		Seq:   uint64(seqOf(m[freeFromAddr])), From: uint64(fromOf(m[freeFromAddr])),
		NextUnit: uint64(nextUnit(m[arenaNextAddr])), NextOwner: uint64(nextOwner(m[arenaNextAddr])),
		ClientsHigh: uint64(m[clientsHighAddr]), Hand: uint64(m[handAddr]),
	}
	for i := range y.Samples {
		n.Words = append(n.Words, word(m[wordOf(i)]))
		meta := m[metaOf(i)]
		if y.Variable {
			n.Lengths = append(n.Lengths, contentOf(meta))
		}
		n.Sums, n.Fills = append(n.Sums, r.s.sum(y, i)), append(n.Fills, fillsOf(meta))
	}
	if y.table() {
		for s := range y.Places {
			n.Table = append(n.Table, uint64(m[tableOf(s)]))
		}
	}
	for k := range y.Records {
		var claims []Claim
		for e := range y.Entries {
			c := Claim{Sample: uint64(m[entryOf(k, e)]), Victim: uint64(m[victimOf(k, e)])}
			if intent := m[intentOf(k, e)]; y.Chains {
				slot, rest := pairOf(intent)
				c.Slot, c.Unit = uint64(slot), uint64(rest)
			} else if y.Variable {
				unit, units := extentOf(intent)
				c.Unit, c.Units = uint64(unit), uint64(units)
			} else {
				c.Slot = uint64(intent)
			}
			claims = append(claims, c)
		}
		n.Entries = append(n.Entries, claims)
	}
	for s := range y.Places {
		if y.refers {
			n.References = append(n.References, uint8(m[referenceOf(s)]))
		}
	}
	if y.Policy.NeedsCosts() {
		n.Costs, n.Spread = slices.Clone(r.s.costs[:y.Samples]), r.s.spread
	}
	for k := range 2 * y.Places {
		n.Payload = append(n.Payload, uint8(m[cellAddr+addr(k)]))
	}
	return n
}

// moves lists the possible next moves.
func (r *Run) moves() []Move {
	var all []Move
	for t := range r.y.janitor() {
		before := r.s
		if m, ok := r.try(t); ok {
			all = append(all, m)
		}
		r.s = before
	}
	for c := range r.y.Clients {
		if r.s.mayDie(r.y, uint8(c)) {
			all = append(all, Move{Thread: c, Dies: true})
		}
	}
	return all
}

// walk makes a random schedule, and lists what it covers: points passed, points at which a client
// died, and points passed while another thread was at some point.
func walk(world string, rng *rand.Rand) (Schedule, []string) {
	r, err := NewRun(world, 0)
	if err != nil {
		panic(err)
	}
	var covered []string
	at := make([]string, len(r.y.threads))
	sch := Schedule{World: world}
	for {
		moves := r.moves()
		live := 0 // deaths come last in the list, and are rarer
		for _, m := range moves {
			if !m.Dies {
				live++
			}
		}
		if live == 0 && (len(moves) == 0 || rng.IntN(2) == 0) {
			return sch, covered
		}
		k := rng.IntN(len(moves))
		if moves[k].Dies && live > 0 && rng.IntN(3) > 0 {
			k = rng.IntN(live)
		}
		m := moves[k]
		if err := r.Do(m); err != nil {
			panic(err)
		}
		sch.Moves = append(sch.Moves, m.String())
		if m.Dies {
			for t, ref := range r.y.threads {
				if int(ref.client) == m.Thread && at[t] != "" {
					covered = append(covered, "death at "+at[t])
					at[t] = ""
				}
			}
			continue
		}
		what := m.Point
		if what == "" {
			what = m.Result.String()
		}
		covered = append(covered, what, m.Result.String())
		for t := range at {
			if t != m.Thread && at[t] != "" {
				covered = append(covered, what+" under "+at[t])
			}
		}
		at[m.Thread] = m.Point
	}
}

// Schedules are the schedules that tests replay: the same in every run of the tests.
var Schedules = sync.OnceValue(sample)

// sample chooses schedules of every world. From many random ones with a fixed seed it takes those
// that together cover what all of them cover, up to each world's share.
func sample() []Schedule {
	const walks, share = 1000, 14
	var chosen []Schedule
	for n, c := range Worlds() {
		rng := rand.New(rand.NewPCG(uint64(n), 20))
		type candidate struct {
			Schedule
			covers []string
		}
		var all []candidate
		weight := map[string]int{}
		for range walks {
			s, covers := walk(c.Name, rng)
			all = append(all, candidate{s, covers})
			for _, f := range covers {
				weight[f] = 1
				if strings.HasPrefix(f, "death at ") {
					weight[f] = 5 // cover deaths first
				}
			}
		}
		for range share {
			best, most := -1, 0
			for k := range all {
				gain, seen := 0, map[string]bool{}
				for _, f := range all[k].covers {
					if !seen[f] {
						gain += weight[f]
						seen[f] = true
					}
				}
				if gain > most {
					best, most = k, gain
				}
			}
			if best < 0 {
				break
			}
			for _, f := range all[best].covers {
				weight[f] = 0
			}
			chosen = append(chosen, all[best].Schedule)
		}
	}
	return chosen
}
