package model

import "fmt"

// Bounds of a configuration. Every state has memory for these numbers, also if the configuration
// uses less, so a larger bound makes every state larger.
const (
	maxSamples = 3
	maxPlaces  = 4 // slots, or units of an arena
	maxRecords = 3
	maxEntries = 3
	maxClients = 5 // the last one is the janitor of the recovery check
	maxThreads = 5 // likewise
	maxUnits   = 2 // units of one sample
)

// addr names a shared word. The payload is two words a slot or unit, its halves, so that torn
// copies show.
type addr uint8

const (
	phaseAddr    addr = iota
	freeFromAddr      // the first group, if slots have groups
	_                 // the second group
	arenaNextAddr
	clientsHighAddr
	handAddr
	referenceAddr // the first slot
	_             // the second slot
	indexAddr
	sumAddr    = indexAddr + 2*maxSamples
	tableAddr  = sumAddr + maxSamples
	claimAddr  = tableAddr + maxPlaces
	victimAddr = claimAddr + 2*maxRecords*maxEntries
	cellAddr   = victimAddr + maxRecords*maxEntries
	words      = cellAddr + 2*maxPlaces
)

func wordOf(sample uint8) addr          { return indexAddr + addr(2*sample) }
func referenceOf(slot uint8) addr       { return referenceAddr + addr(slot) }
func metaOf(sample uint8) addr          { return indexAddr + addr(2*sample+1) }
func checksumOf(sample uint8) addr      { return sumAddr + addr(sample) }
func tableOf(slot uint8) addr           { return tableAddr + addr(slot) }
func entryOf(record, entry uint8) addr  { return claimAddr + addr(2*(record*maxEntries+entry)) }
func intentOf(record, entry uint8) addr { return entryOf(record, entry) + 1 }
func victimOf(record, entry uint8) addr { return victimAddr + addr(record*maxEntries+entry) }

// value is the content of a shared word: the fields of docs/spec/segment.md in fewer bits.
type value = uint16

// States of an index word, as in docs/spec/segment.md.
const (
	empty    = 0
	writing  = 1
	ready    = 2
	retiring = 3
)

// An index word: state 2 bits, owner 3, generation 6, place 4. A generation must not overflow,
// except in a world with Config.Wrap.
func packWord(state, owner uint8, generation uint16, place uint8) value {
	if generation > 63 {
		panic("model: generation overflows its 6 bits: make the configuration smaller")
	}
	return value(state) | value(owner)<<2 | generation<<5 | value(place)<<11
}
func stateOf(w value) uint8       { return uint8(w & 3) }
func ownerOf(w value) uint8       { return uint8(w >> 2 & 7) }
func generationOf(w value) uint16 { return w >> 5 & 63 }
func placeOf(w value) uint8       { return uint8(w >> 11) }

// Meta: fills and content. Content is the length in units in an arena, else the checksum. The
// checksum of a sample is the value written.
func packMeta(content, fills uint8) value { return value(content) | value(fills)<<8 }
func contentOf(m value) uint8             { return uint8(m) }
func fillsOf(m value) uint8               { return uint8(m >> 8) }

// The phase: state 2 bits, owner 3, epoch. Owner 0 while CLEARING: a client took over a clear and
// gave it up.
const clearing = 1

func packPhase(state, owner uint8, epoch uint16) value {
	return value(state) | value(owner)<<2 | epoch<<5
}
func epochOf(p value) uint16 { return p >> 5 }

func packFree(seq uint16, from uint8) value { return value(from) | seq<<4 }
func fromOf(f value) uint8                  { return uint8(f & 15) }
func seqOf(f value) uint16                  { return f >> 4 }

func packNext(owner, unit uint8) value   { return value(unit) | value(owner)<<5 }
func nextUnit(a value) uint8             { return uint8(a & 31) }
func nextOwner(a value) uint8            { return uint8(a >> 5) }
func packExtent(unit, units uint8) value { return value(unit) | value(units)<<5 }
func extentOf(t value) (unit, units uint8) {
	return uint8(t & 31), uint8(t >> 5)
}

// isWord says whether a is the first word of an index record.
func (a addr) isWord() bool { return a >= indexAddr && a < sumAddr && (a-indexAddr)%2 == 0 }

// name returns the name of the word in docs/spec/segment.md.
func (a addr) name() string {
	switch {
	case a == phaseAddr:
		return "phase"
	case a == freeFromAddr:
		return "free_from"
	case a == freeFromAddr+1:
		return "free_from[1]"
	case a == arenaNextAddr:
		return "arena_next"
	case a == clientsHighAddr:
		return "clients_high"
	case a == handAddr:
		return "hand"
	case a == referenceAddr || a == referenceAddr+1:
		return fmt.Sprintf("reference[%d]", a-referenceAddr)
	case a.isWord():
		return fmt.Sprintf("word[%d]", (a-indexAddr)/2)
	case a < sumAddr:
		return fmt.Sprintf("meta[%d]", (a-indexAddr)/2)
	case a < tableAddr:
		return fmt.Sprintf("checksum[%d]", a-sumAddr)
	case a < claimAddr:
		return fmt.Sprintf("slot_table[%d]", a-tableAddr)
	case a >= victimAddr && a < cellAddr:
		k := a - victimAddr
		return fmt.Sprintf("record %d victim[%d]", k/maxEntries, k%maxEntries)
	case a < victimAddr:
		k := (a - claimAddr) / 2
		return fmt.Sprintf("record %d %s[%d]", k/maxEntries, [2]string{"entry", "intent"}[(a-claimAddr)%2],
			k%maxEntries)
	}
	return fmt.Sprintf("payload[%d].%d", (a-cellAddr)/2, (a-cellAddr)%2)
}

// show formats a value of the word.
func (a addr) show(v value, c *Config) string {
	switch {
	case a == phaseAddr && v&3 == 0:
		return fmt.Sprintf("OPEN(%d)", epochOf(v))
	case a == phaseAddr:
		return fmt.Sprintf("CLEARING(%d, o%d)", epochOf(v), ownerOf(v))
	case a == freeFromAddr || a == freeFromAddr+1:
		return fmt.Sprintf("(seq %d, from %d)", seqOf(v), fromOf(v))
	case a == arenaNextAddr:
		return fmt.Sprintf("(unit %d, o%d)", nextUnit(v), nextOwner(v))
	case a.isWord():
		place := ""
		if p := placeOf(v); p != 0 {
			place = fmt.Sprintf(" at %d", p-1)
		}
		name := [4]string{"EMPTY", "WRITING", "READY", "RETIRING"}[stateOf(v)]
		if ownerOf(v) != 0 {
			return fmt.Sprintf("%s(%d, o%d)%s", name, generationOf(v), ownerOf(v), place)
		}
		return fmt.Sprintf("%s(%d)%s", name, generationOf(v), place)
	case a >= indexAddr && a < sumAddr && c.Variable:
		return fmt.Sprintf("(length %d, %d fills)", contentOf(v), fillsOf(v))
	case a >= indexAddr && a < sumAddr:
		return fmt.Sprintf("(sum v%d, %d fills)", contentOf(v), fillsOf(v))
	case a >= cellAddr || a >= sumAddr && a < tableAddr:
		return fmt.Sprintf("v%d", v)
	case a >= claimAddr && a < victimAddr && (a-claimAddr)%2 == 1 && c.Chains && v != 0:
		candidate, rest := pairOf(v)
		return fmt.Sprintf("(slot %d, rest %d)", int(candidate)-1, int(rest)-1)
	case a >= tableAddr && a < claimAddr && c.Chains && v != 0:
		return fmt.Sprintf("(sample %d, next %d)", holderOf(v)-1, int(nextOf(v))-1)
	case a >= claimAddr && a < victimAddr && (a-claimAddr)%2 == 1 && c.Variable && v != 0:
		unit, n := extentOf(v)
		return fmt.Sprintf("(unit %d, %d units)", unit, n)
	}
	return fmt.Sprint(v)
}
