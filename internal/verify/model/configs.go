package model

import (
	"time"

	"github.com/stocached/stocached/policy"
)

// Short names for operations and programs.
func set(sample, v uint8) Op       { return Op{Kind: Set, Sample: sample, Value: v} }
func overwrite(sample, v uint8) Op { return Op{Kind: Set, Sample: sample, Value: v, Overwrite: true} }
func abort(sample, v uint8) Op     { return Op{Kind: Set, Sample: sample, Value: v, GiveUp: true} }
func remove(sample, v uint8) Op {
	return Op{Kind: Set, Sample: sample, Value: v, Overwrite: true, GiveUp: true}
}
func get(sample uint8) Op      { return Op{Kind: Get, Sample: sample} }
func (o Op) of(units uint8) Op { o.Units = units; return o }
func (o Op) took(d time.Duration) Op {
	o.Took = d
	return o
}
func one(program ...Op) Client { return Client{Threads: [][]Op{program}} }
func late(program ...Op) Client {
	return Client{Late: true, Threads: [][]Op{append([]Op{{Kind: Register}}, program...)}}
}
func reader(program ...Op) Client     { return Client{ReadOnly: true, Threads: [][]Op{program}} }
func threads(programs ...[]Op) Client { return Client{Threads: programs} }
func ops(program ...Op) []Op          { return program }

var (
	clearAll   = Op{Kind: Clear}
	recoverAll = Op{Kind: Recover}
)

// Configs are the worlds that are searched, each for a part of the protocol. Together they pass
// every step and every fault point.
func Configs() []Config {
	return complete([]Config{
		// Two clients fill the same sample; a third gets the number of the first that dies.
		{Name: "fill", Crashes: 2,
			Clients: []Client{one(set(0, 1)), one(set(0, 2)), late(set(0, 3))}},
		{Name: "read", Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2)), one(set(0, 3)), reader(get(0), get(0))}},
		{Name: "overwrite", Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2)), one(overwrite(0, 3)), reader(get(0))}},
		// Two samples compete for one slot or two: allocation, freeing, and a search that passes a
		// slot just freed.
		{Name: "slots", Samples: 2, Places: 2, Crashes: 2,
			Clients: []Client{one(set(0, 1)), one(set(1, 2)), late(set(1, 3))}},
		{Name: "one-slot", Samples: 2, Crashes: 2,
			Clients: []Client{one(abort(0, 1)), one(set(1, 2)), late(set(0, 3))}},
		{Name: "two-each", Samples: 2, Places: 2, Crashes: 1,
			Clients: []Client{one(abort(0, 1), set(1, 2)), one(set(0, 3), set(1, 4)), late(set(0, 5))}},
		// The client that reclaims dies too, and its claims are reclaimed.
		{Name: "recover", Records: 3, Crashes: 3,
			Clients: []Client{one(set(0, 1)), one(recoverAll), late(set(0, 3))}},
		// Two threads of one client: they list the same sample, and reclaim at the same time.
		{Name: "threads", Places: 2, Entries: 2, Crashes: 1,
			Clients: []Client{threads(ops(set(0, 1)), ops(set(0, 2))), one(set(0, 3))}},
		{Name: "threads-abort", Places: 2, Entries: 2, Crashes: 1,
			Clients: []Client{threads(ops(abort(0, 1)), ops(set(0, 2))), one(recoverAll)}},
		{Name: "threads-take", Samples: 2, Places: 2, Crashes: 1,
			Clients: []Client{one(set(0, 1)), threads(ops(set(0, 2)), ops(recoverAll)), late(set(1, 3))}},
		// Clear: with a writer and a reader, by a client that dies, by two, with a late client,
		// half done and given up.
		{Name: "clear", Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(set(0, 2)), reader(get(0))}},
		{Name: "clear-overwrite", Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(overwrite(0, 2), set(0, 3)), reader(get(0))}},
		{Name: "clear-late", Crashes: 2, Timeouts: true, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(set(0, 2)), late(set(0, 3))}},
		{Name: "clear-over", Records: 3, Crashes: 2, Timeouts: true, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(overwrite(0, 2)), one(set(0, 3))}},
		{Name: "clear-clear", Samples: 2, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(clearAll), late(set(1, 3))}},
		{Name: "clear-register", Records: 3, Crashes: 1,
			Clients: []Client{one(clearAll), one(Op{Kind: Register}, set(0, 2)), one(Op{Kind: Register}, set(0, 3))}},
		{Name: "clear-threads", Entries: 2, Crashes: 1, Timeouts: true,
			Clients: []Client{threads(ops(clearAll), ops(set(0, 1))), one(set(0, 2))}},
		// Arena: growing in place and by a new extent, stale lengths, extents of dead clients, two
		// threads that allocate.
		{Name: "arena", Variable: true, Samples: 2, Places: 4, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2).of(2)), one(set(1, 3)), late(set(0, 4).of(2))}},
		{Name: "arena-stale", Variable: true, Samples: 2, Places: 4, Crashes: 2,
			Setup:   ops(set(0, 1).of(2), clearAll),
			Clients: []Client{one(set(0, 2)), one(set(1, 3)), late(set(0, 4).of(2))}},
		{Name: "arena-threads", Variable: true, Samples: 2, Places: 4, Entries: 2, Crashes: 1,
			Clients: []Client{threads(ops(set(0, 1)), ops(set(1, 2))), one(set(0, 3))}},
		{Name: "arena-full", Variable: true, Samples: 2, Places: 2, Crashes: 2,
			Clients: []Client{one(set(0, 1)), one(set(1, 2).of(2)), late(set(1, 3))}},
		{Name: "arena-read", Variable: true, Places: 4, Crashes: 1, Setup: ops(set(0, 1).of(2)),
			Clients: []Client{one(overwrite(0, 2)), one(clearAll, set(0, 3).of(2)), reader(get(0))}},
		// First-indices: slots that need no search.
		{Name: "indices", Indices: true, Samples: 2, Places: 2, Crashes: 2, Setup: ops(set(1, 1)),
			Clients: []Client{one(set(0, 2), get(0)), one(overwrite(1, 3), abort(0, 4)), late(set(0, 5))}},
		{Name: "indices-clear", Indices: true, Crashes: 1, Timeouts: true, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(overwrite(0, 2), set(0, 3)), reader(get(0))}},
		// Eviction: of the same victim by two, back and forth, under a reader and a clear, by threads of
		// one client, by clients that die and whose number another gets.
		{Name: "evict", Evicts: true, Samples: 2, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2)), one(set(0, 3)), late(set(0, 4))}},
		{Name: "evict-three", Evicts: true, Samples: 3, Places: 2, Crashes: 1, Setup: ops(set(0, 1), set(1, 2)),
			Clients: []Client{one(set(2, 3)), one(overwrite(0, 4)), late(set(1, 5))}},
		{Name: "evict-read", Evicts: true, Samples: 2, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2)), one(set(0, 3)), reader(get(0), get(1))}},
		{Name: "evict-abort", Evicts: true, Samples: 2, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(abort(1, 2)), one(abort(0, 3), set(1, 4)), late(set(1, 5))}},
		{Name: "evict-threads", Evicts: true, Samples: 3, Places: 2, Entries: 2, Crashes: 1,
			Setup:   ops(set(0, 1), set(1, 2)),
			Clients: []Client{threads(ops(set(2, 3)), ops(set(0, 4))), one(recoverAll)}},
		// A victim that goes and comes back in another slot.
		{Name: "evict-moved", Evicts: true, Samples: 3, Places: 2, Crashes: 1,
			Setup:   ops(set(0, 1), set(1, 2), set(2, 3)),
			Clients: []Client{one(set(0, 4)), one(remove(2, 5), remove(1, 6), set(1, 7))}},
		{Name: "evict-clear", Evicts: true, Samples: 2, Crashes: 1, Timeouts: true, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(set(1, 2)), reader(get(0))}},
		{Name: "evict-wrap", Evicts: true, Wrap: true, Samples: 2, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2), set(0, 3), set(1, 4)), one(recoverAll), reader(get(0))}},
		{Name: "evict-tso", Evicts: true, TSO: true, Samples: 2, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2)), one(set(0, 3)), reader(get(0))}},
		// Policies with reference bytes: a set looks at a slot several times, or at several slots, and then chooses.
		{Name: "evict-clock", Policy: policy.KindClock, Samples: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2)), one(set(0, 3)), reader(get(0))}},
		{Name: "evict-lru", Policy: policy.KindLRU, Samples: 2, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2)), one(set(0, 3)), late(set(0, 4))}},
		{Name: "evict-choice", Policy: policy.KindClock, Samples: 3, Places: 2,
			Setup:   ops(set(0, 1), set(1, 2), set(2, 3), get(1), get(2)),
			Clients: []Client{one(set(0, 4)), one(remove(2, 5), remove(1, 6), set(1, 7))}},
		{Name: "evict-lfu", Policy: policy.KindLFU, Samples: 2, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2)), one(get(0), get(0), set(0, 3)), late(set(0, 4))}},
		// Policies that may let no sample go.
		{Name: "evict-cost", Policy: policy.KindCost, Samples: 3, Crashes: 1, Setup: ops(set(0, 1).took(cheap)),
			Clients: []Client{one(set(1, 2).took(dear)), one(set(2, 3).took(cheap), set(0, 4)), late(set(1, 5))}},
		{Name: "evict-planned", Policy: policy.KindPlanned, Next: [maxSamples]uint64{policy.Unread, 5, 3}, Samples: 3,
			Setup:   ops(set(0, 1)),
			Clients: []Client{one(set(1, 2)), one(set(2, 3), set(0, 4))}},
		// Chains of slots: eviction by a sample that needs two slots and by one that leaves a slot over,
		// overwrites that need another number, readers, clears, threads, and deaths everywhere.
		{Name: "chains", Chains: true, Samples: 2, Places: 2, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2).of(2)), one(set(0, 3)), late(set(0, 4).of(2))}},
		{Name: "chains-grow", Chains: true, Samples: 2, Places: 3, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2).of(2)), one(set(1, 3).of(2)), late(set(1, 4))}},
		{Name: "chains-shrink", Chains: true, Samples: 2, Places: 2, Crashes: 1, Setup: ops(set(0, 1).of(2)),
			Clients: []Client{one(overwrite(0, 2)), one(set(1, 3)), late(set(0, 4).of(2))}},
		{Name: "chains-read", Chains: true, Samples: 2, Places: 2, Crashes: 1, Setup: ops(set(0, 1).of(2)),
			Clients: []Client{one(set(1, 2)), one(overwrite(0, 3).of(2)), reader(get(0))}},
		{Name: "chains-abort", Chains: true, Samples: 2, Places: 2, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(abort(1, 2).of(2)), one(remove(0, 3)), late(set(1, 4).of(2))}},
		{Name: "chains-clear", Chains: true, Samples: 2, Places: 2, Crashes: 1, Timeouts: true,
			Setup:   ops(set(0, 1).of(2)),
			Clients: []Client{one(clearAll), one(set(1, 2)), reader(get(0))}},
		{Name: "chains-same", Chains: true, Samples: 2, Places: 2, Entries: 3, Crashes: 1,
			Setup:   ops(set(0, 1).of(2)),
			Clients: []Client{threads(ops(set(1, 2)), ops(set(1, 3).of(2))), one(recoverAll)}},
		// A clear has passed the entry of the victim before it is used: the entry of the newcomer comes after
		// it.
		{Name: "chains-last", Chains: true, Last: true, Samples: 2, Records: 3, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(set(1, 2)), one(clearAll, set(0, 3)), one(recoverAll)}},
		{Name: "chains-wrap", Chains: true, Wrap: true, Samples: 2, Places: 2, Records: 1,
			Setup:   ops(set(0, 1).of(2)),
			Clients: []Client{one(set(1, 2), set(0, 3).of(2), set(1, 2), set(0, 1).of(2)), reader(get(0))}},
		{Name: "chains-tso", Chains: true, TSO: true, Samples: 2, Places: 2, Records: 1, Crashes: 1,
			Setup:   ops(set(0, 1).of(2)),
			Clients: []Client{one(set(1, 2)), reader(get(0))}},
		// Generations that wrap around while a reader copies. Two contents alternate, so that word
		// and checksum, or length, come back: by overwrites, deaths and clears.
		{Name: "wrap", Wrap: true, Records: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2), overwrite(0, 1), overwrite(0, 2)), reader(get(0))}},
		{Name: "wrap-die", Wrap: true, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2), overwrite(0, 1)), one(set(0, 1), overwrite(0, 2)),
				reader(get(0))}},
		{Name: "wrap-arena", Wrap: true, Variable: true, Places: 4, Crashes: 1, Setup: ops(set(0, 1).of(2)),
			Clients: []Client{one(overwrite(0, 2), overwrite(0, 1).of(2)), one(set(0, 2), overwrite(0, 1)),
				reader(get(0))}},
		{Name: "wrap-clear", Wrap: true, Variable: true, Places: 4, Records: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll, set(0, 2), clearAll, set(0, 1)), reader(get(0))}},
		{Name: "wrap-keep", Wrap: true, Variable: true, Samples: 2, Places: 4, Setup: ops(set(0, 1).of(2)),
			Clients: []Client{one(overwrite(0, 5).of(2)), one(clearAll, set(0, 2), set(1, 3), overwrite(0, 4))}},
		{Name: "tso-wrap", TSO: true, Wrap: true, Records: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2), overwrite(0, 1), overwrite(0, 2)), reader(get(0))}},
		// Stores that others see late, as on x86.
		{Name: "tso-clear", TSO: true, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(overwrite(0, 2)), reader(get(0))}},
		{Name: "tso-fill", TSO: true, Crashes: 1,
			Clients: []Client{one(set(0, 1)), one(set(0, 2)), late(set(0, 3))}},
		{Name: "tso-arena", TSO: true, Variable: true, Samples: 2, Places: 4, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2).of(2)), one(set(1, 3)), reader(get(0))}},
	})
}

// LargeConfigs are only for the protocol as documented: more clients, threads and deaths.
func LargeConfigs() []Config {
	return complete([]Config{
		{Name: "large-slots", Samples: 2, Places: 2, Records: 3, Crashes: 2,
			Clients: []Client{one(set(0, 1)), one(abort(1, 2), set(1, 3)), late(set(0, 4))}},
		{Name: "large-clear", Samples: 2, Records: 3, Crashes: 2, Timeouts: true, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(overwrite(0, 2), clearAll), late(set(1, 3))}},
		{Name: "large-read", Records: 3, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll, set(0, 2)), one(overwrite(0, 3)), reader(get(0), get(0))}},
		{Name: "large-threads", Samples: 2, Places: 2, Entries: 2, Crashes: 1,
			Clients: []Client{threads(ops(set(0, 1)), ops(abort(0, 2))), one(set(1, 3)), late(set(0, 4))}},
		{Name: "large-chains-three", Chains: true, Samples: 3, Places: 3, Setup: ops(set(0, 1), set(1, 2).of(2)),
			Clients: []Client{one(set(2, 3).of(2)), one(overwrite(0, 4).of(2))}},
		{Name: "large-tso", TSO: true, Samples: 2, Places: 2, Crashes: 1,
			Clients: []Client{one(clearAll), one(set(0, 1)), late(set(1, 2))}},
	})
}

// DeepConfigs take minutes together, and a gigabyte; they are searched when MODEL_DEEP is set.
func DeepConfigs() []Config {
	return complete([]Config{
		{Name: "deep-slots", Samples: 2, Places: 2, Records: 3, Crashes: 2,
			Clients: []Client{one(set(0, 1), overwrite(0, 2)), one(abort(1, 3), set(1, 4)),
				late(set(1, 5), set(0, 6))}},
		{Name: "deep-clear", Samples: 2, Places: 2, Records: 3, Crashes: 2, Timeouts: true, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll, set(0, 2)), one(overwrite(0, 3), set(1, 4)), late(set(1, 5), clearAll)}},
		{Name: "deep-threads", Samples: 2, Places: 2, Entries: 2, Crashes: 2,
			Clients: []Client{threads(ops(set(0, 1), overwrite(0, 2)), ops(abort(0, 3))), one(set(1, 4)),
				late(set(0, 5))}},
		{Name: "deep-arena", Variable: true, Samples: 2, Places: 4, Entries: 2, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{threads(ops(overwrite(0, 2).of(2)), ops(set(1, 3))), one(clearAll, set(1, 4).of(2)),
				late(set(0, 5).of(2))}},
		{Name: "deep-chains", Chains: true, Samples: 3, Places: 3, Crashes: 1, Setup: ops(set(0, 1), set(1, 2).of(2)),
			Clients: []Client{one(set(2, 3).of(2)), one(overwrite(0, 4).of(2)), late(set(1, 5))}},
		{Name: "deep-chains-grow", Chains: true, Samples: 2, Places: 3, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(overwrite(0, 2).of(2)), one(set(1, 3).of(2)), late(set(1, 4))}},
		{Name: "deep-chains-threads", Chains: true, Samples: 3, Places: 2, Entries: 3, Crashes: 1,
			Setup:   ops(set(0, 1).of(2)),
			Clients: []Client{threads(ops(set(1, 2)), ops(set(2, 3))), one(recoverAll)}},
		{Name: "deep-chains-clear", Chains: true, Samples: 2, Places: 2, Records: 3, Crashes: 2, Timeouts: true,
			Setup:   ops(set(0, 1).of(2)),
			Clients: []Client{one(clearAll, set(0, 2)), one(set(1, 3)), late(set(0, 4))}},
		{Name: "deep-tso", TSO: true, Samples: 2, Places: 2, Records: 3, Crashes: 1, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll), one(overwrite(0, 2), set(1, 3)), late(set(1, 4))}},
		{Name: "deep-read", Records: 3, Crashes: 2, Setup: ops(set(0, 1)),
			Clients: []Client{one(clearAll, set(0, 2)), one(overwrite(0, 3), clearAll), late(set(0, 4)),
				reader(get(0))}},
	})
}
