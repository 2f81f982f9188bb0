package cache

import (
	"time"

	"github.com/stocached/stocached/shm"
)

// Stats is what the counters of all clients, past ones included, add up to, and what a pass over the index finds. The counters are added up one by
// one while others count, so the sums belong to no single instant. Read-only clients are not counted.
type Stats struct {
	Hits        uint64 `json:"hits"`         // samples found READY by get, view or gather
	Misses      uint64 `json:"misses"`       // samples asked for and not READY, out-of-cache ones too
	Stored      uint64 `json:"stored"`       // samples published, overwrites too
	Exists      uint64 `json:"exists"`       // sets of a sample that was READY already
	Busy        uint64 `json:"busy"`         // races lost
	Full        uint64 `json:"full"`         // sets refused for lack of a slot, of arena space or of memory
	Out         uint64 `json:"out"`          // sets of a sample that has no slot (first-indices)
	StoredBytes uint64 `json:"stored_bytes"` // payload bytes published
	Recovered   uint64 `json:"recovered"`    // claims of dead owners taken back
	Aborted     uint64 `json:"aborted"`      // claims given up by their own client
	Lost        uint64 `json:"lost"`         // publishes refused: always a bug or a foreign hand
	Retried     uint64 `json:"retried"`      // copies thrown away because the sample changed underneath
	Corrupt     uint64 `json:"corrupt"`      // words, lengths or checksums that cannot be
	Passed      uint64 `json:"passed"`       // samples outside the schema that went uncached

	Ready          uint64 `json:"ready"`            // samples READY now
	ReadyBytes     uint64 `json:"ready_bytes"`      // their bytes
	ArenaNextBytes uint64 `json:"arena_next_bytes"` // of the arena ever allocated since the last clear; 0 with slots
	ArenaLostBytes uint64 `json:"arena_lost_bytes"` // of these, what no index word names; regained by a clear
	ClientsLive    uint64 `json:"clients_live"`
	ClientsDead    uint64 `json:"clients_dead"` // records of past clients, claims left or not
	AllocatedBytes uint64 `json:"allocated_bytes"`
	Clears         uint64 `json:"clears"`
}

// Stats adds up. It takes about 6 ms for a million samples. ErrClosed, ErrSystem.
func (c *Cache) Stats() (Stats, error) {
	l, err := c.enter()
	if err != nil {
		return Stats{}, err
	}
	defer l.leave()
	var s Stats
	sums := [shm.CounterCount]*uint64{
		shm.Hits: &s.Hits, shm.Misses: &s.Misses, shm.Stored: &s.Stored, shm.Exists: &s.Exists, shm.Busy: &s.Busy, shm.Full: &s.Full, shm.Out: &s.Out,
		shm.StoredBytes: &s.StoredBytes, shm.Recovered: &s.Recovered, shm.Aborted: &s.Aborted, shm.Lost: &s.Lost, shm.Retried: &s.Retried,
		shm.Corrupt: &s.Corrupt, shm.Passed: &s.Passed,
	}
	records := c.recordsUsed()
	for r := range records {
		for stripe := range shm.CounterStripes {
			for k, sum := range sums {
				*sum += c.seg.Counter(r, stripe, shm.Counter(k)).Load()
			}
		}
	}
	var named uint64 // units of the arena
	for i := range c.samples {
		w, m := shm.Word(c.seg.Word(i).Load()), shm.Meta(c.seg.Meta(i).Load())
		if w.State() == shm.Ready {
			s.Ready++
			s.ReadyBytes += c.seg.Length(m)
		}
		if c.variable && c.layout.Place(w) != 0 {
			named += shm.UnitsFor(c.seg.Length(m))
		}
	}
	if c.variable {
		next := shm.ArenaNext(c.seg.ArenaNext().Load()).Unit()
		s.ArenaNextBytes = next * shm.UnitBytes
		s.ArenaLostBytes = (next - min(named, next)) * shm.UnitBytes // named may be ahead: it was counted earlier
	}
	s.Clears = shm.Phase(c.seg.Phase().Load()).Epoch()
	probe, err := c.seg.ProbeLocks()
	if err != nil {
		return s, err
	}
	s.ClientsLive = uint64(len(probe.Records))
	s.ClientsDead = uint64(records) - min(s.ClientsLive, uint64(records))
	s.AllocatedBytes, err = c.seg.AllocatedBytes()
	return s, err
}

// ClientInfo is what a client record says about its client, or its last one. For people.
type ClientInfo struct {
	Record        uint32    `json:"record"`
	Live          bool      `json:"live"`
	PID           uint32    `json:"pid"` // as its own pid namespace shows it; 0 after a clean close
	Kind          uint32    `json:"kind"`
	Label         string    `json:"label"`
	PIDNamespace  uint64    `json:"pid_namespace"`
	StartTicks    uint64    `json:"start_ticks"`
	Registered    time.Time `json:"registered"`
	Registrations uint64    `json:"registrations"` // clients that have had this record so far
	Claims        int       `json:"claims"`        // entries in use
}

// Clients lists the client records that were ever used. ErrClosed, ErrSystem.
func (c *Cache) Clients() ([]ClientInfo, error) {
	l, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer l.leave()
	probe, err := c.seg.ProbeLocks()
	if err != nil {
		return nil, err
	}
	clients := make([]ClientInfo, c.recordsUsed())
	for r := range clients {
		get := func(offset uint64) uint64 { return c.seg.ClientWord(uint32(r), offset).Load() }
		pid := get(shm.ClientPID)
		clients[r] = ClientInfo{
			Record: uint32(r), PID: uint32(pid), Kind: uint32(pid >> 32), PIDNamespace: get(shm.ClientPIDNamespace), StartTicks: get(shm.ClientStartTicks),
			Registered: time.Unix(0, int64(get(shm.ClientRegistered))), Registrations: get(shm.ClientRegistrations), Claims: c.claimsListed(uint32(r)),
		}
		var label []byte
		for k := uint64(0); k < shm.ClientLabelBytes; k++ {
			b := byte(get(shm.ClientLabel+k&^7) >> (8 * (k & 7)))
			if b == 0 {
				break
			}
			label = append(label, b)
		}
		clients[r].Label = string(label)
	}
	for _, r := range probe.Records {
		if int(r) < len(clients) {
			clients[r].Live = true
		}
	}
	return clients, nil
}
