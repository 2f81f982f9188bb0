package model

import (
	"cmp"
	"time"

	"github.com/stocached/stocached/policy"
)

// Config is one small world: a cache, the programs that run on it, and the allowed failures.
type Config struct {
	Name     string
	Variable bool // an arena of Places units; else a cache of Places slots,
	// which belong to the samples of the same number (first-indices); else to the first sample that
	// takes them
	Indices bool
	Evicts  bool // a set that finds no free slot evicts a sample, in the order of the slots (fifo)
	// Policy is what Evicts then has instead of fifo: clock, with at most 2 places, or lru, lfu, cost or planned,
	// with one. (At which slots these look depends on a cache's uuid, but of one slot.)
	Policy   policy.Kind
	Next     [maxSamples]uint64 // with planned: in how many reads a sample is read; all 0: no client knows plans
	Chains   bool               // also Variable and Evicts: slots, of which a sample takes as many as it has units
	Samples  uint8              // at most 3
	Places   uint8              // at most 4
	Records  uint8              // at most 3
	Entries  uint8              // claim entries of a record, at most 3
	Clients  []Client           // at most 4, with at most 4 threads together
	OneGroup bool               // one group of slots, with Chains; else a group has 2 slots
	Last     bool               // a set takes the last free claim entry, and not the first; its victim takes the first
	Setup    []Op               // run by thread 0, alone, before anything else
	Crashes  uint8              // deaths at most
	Timeouts bool               // a drain that waits may give up
	Wrap     bool               // generations have one bit
	TSO      bool               // stores that are not read-modify-writes wait in a buffer of 2 for each thread
	Broken   Mutation           // the zero value is the protocol as documented
}

// complete fills in what most configurations have: one sample and one place, two records, and one claim entry, or two with
// chains.
func complete(all []Config) []Config {
	for k := range all {
		c := &all[k]
		c.Variable, c.Evicts = c.Variable || c.Chains, c.Evicts || c.Chains || c.Policy != policy.None
		entries := uint8(1)
		if c.Chains {
			entries = 2
		}
		c.Samples, c.Places, c.Records, c.Entries = cmp.Or(c.Samples, 1), cmp.Or(c.Places, 1), cmp.Or(c.Records, 2),
			cmp.Or(c.Entries, entries)
	}
	return all
}

// Client is a process with a program for each thread. It holds the record of its position from the
// start, unless it is read-only or its first operation is Register. Then its other threads wait for
// that.
type Client struct {
	Late     bool   // starts only after the first death
	ReadOnly bool   // never registered: it only gets
	Threads  [][]Op // one program a thread
}

// OpKind is what an operation does.
type OpKind uint8

// The operations of the protocol.
const (
	Register OpKind = iota + 1
	Set
	Get
	Clear
	Recover
)

// Op is one operation of a program.
type Op struct {
	Kind      OpKind
	Sample    uint8
	Value     uint8 // what a set writes, 1..31: unique in the configuration, except where generations wrap
	Units     uint8 // its size; 0 counts as 1
	Overwrite bool
	GiveUp    bool          // a set aborts when it has its place; a clear does not wait
	Took      time.Duration // load time of a set, with the policy cost; 0: not told
}

func (o Op) units() uint8 { return max(1, o.Units) }

// threadRef is the program of a thread, and its client.
type threadRef struct {
	client  uint8
	program []Op
}

// system is a configuration ready to run: its threads in a row, the janitor last.
type system struct {
	*Config
	rule    policy.Rule // rule of Policy; nil: fifo, without reference bytes
	hits    policy.Hits
	refers  bool   // hits, looks and sets store reference bytes
	seed    uint64 // seed of the policy
	threads []threadRef
	asked   [256]bool // for Report.Asked
}

const (
	janitorClient = maxClients - 1
	firstAgain    = 29 // values from here on are those that the janitor writes after its clear
)

// system makes a configuration ready. The seed is that of the policy, in a real cache of its uuid.
func (c *Config) system(seed uint64) *system {
	y := &system{Config: c, rule: c.Policy.New(uint64(c.Places), seed).Rule(), hits: c.Policy.Hits(uint64(c.Places)),
		refers: c.Policy.NeedsHits(), seed: seed}
	for i, cl := range c.Clients {
		for _, program := range cl.Threads {
			y.threads = append(y.threads, threadRef{uint8(i), program})
		}
	}
	if len(c.Clients) > janitorClient || len(y.threads) >= maxThreads || c.Samples > maxSamples ||
		c.Places > maxPlaces || c.Records > maxRecords || c.Entries > maxEntries {
		panic("model: configuration " + c.Name + " exceeds the bounds of a state")
	}
	janitor := []Op{{Kind: Register}, {Kind: Recover}}
	for i := range c.Samples {
		janitor = append(janitor, Op{Kind: Set, Sample: i, Value: 26 + i})
	}
	janitor = append(janitor, Op{Kind: Clear})
	for i := range c.Samples {
		janitor = append(janitor, Op{Kind: Set, Sample: i, Value: firstAgain + i})
	}
	y.threads = append(y.threads, threadRef{janitorClient, janitor})
	return y
}

// units returns the size of a sample with this meta.
func (y *system) units(meta value) uint8 {
	if y.Variable {
		return contentOf(meta)
	}
	return 1
}

// packWord packs an index word of this world.
func (y *system) packWord(state, owner uint8, generation uint16, place uint8) value {
	if y.Wrap {
		generation &= 1
	}
	return packWord(state, owner, generation, place)
}

// table says whether the cache has a slot table.
func (y *system) table() bool { return !y.arena() && !y.Indices }

// arena says whether samples have extents, which end with the last unit ever allocated.
func (y *system) arena() bool { return y.Variable && !y.Chains }

// chain returns the slots + 1 of a chain, as far as it goes, and whether all of them belong to the
// sample.
func (s *State) chain(head, sample uint8) (slots []uint8, own bool) {
	for own = true; head != 0 && own && len(slots) < maxPlaces; {
		e := s.mem[tableOf(head-1)]
		own = holderOf(e) == sample+1
		slots, head = append(slots, head), nextOf(e)
	}
	return slots, own && head == 0
}

// KnowsPlans says whether clients know in how many reads a sample is read.
func (c *Config) KnowsPlans() bool { return c.Next != [maxSamples]uint64{} }

// refuses says whether the policy may let no sample go.
func (y *system) refuses() bool { return y.Policy.NeedsCosts() || y.Policy.NeedsPlans() }

func (y *system) janitor() int { return len(y.threads) - 1 }

// start returns the state before the first step.
func (y *system) start() State {
	var s State
	for i := range y.Clients {
		if !y.Clients[i].ReadOnly && y.Clients[i].Threads[0][0].Kind != Register {
			s.clients[i] = client{record: uint8(i) + 1, registered: true}
			s.lock[i] = uint8(i) + 1
			s.mem[clientsHighAddr] = value(i) + 1
		}
	}
	for t, ref := range y.threads {
		if t != y.janitor() {
			s.threads[t].pc = firstStep(ref.program)
		}
	}
	if len(y.Setup) > 0 {
		program := y.threads[0].program
		y.threads[0].program = y.Setup
		s.threads[0].pc = firstStep(y.Setup)
		for s.threads[0].pc != finished {
			x := execution{y: y, s: &s, me: 0}
			x.step()
			x.drain()
			if x.violation != "" {
				panic("model: " + y.Name + ": setup: " + x.violation)
			}
		}
		y.threads[0].program = program
		s.threads[0] = thread{pc: firstStep(program)}
	}
	return s
}
