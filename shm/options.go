package shm

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
)

// Policy says which samples a cache keeps. Its numbers are those of enum stoc_policy;
// docs/spec/policies.md has the rules.
type Policy int

const (
	PolicyFirstCome    Policy = iota // each sample that is set, while slots are free
	PolicyFirstIndices               // sample i < slots has slot i; other samples have no slot

	// In a full cache these give the space of one sample to another. Such a cache gives out no views.
	PolicyCost   // keeps the samples whose loads take longest
	PolicyRandom // any sample goes
	PolicyClock  // a sample without a recent hit goes
	PolicyFIFO   // the oldest sample goes
	PolicyLRU    // among some samples, the one whose last hit is longest ago goes
	PolicyLFU    // among some samples, the one with the fewest hits goes
	// Of some samples, the one goes that jobs read last. Only a server knows; other clients evict nothing.
	PolicyPlanned
)

var policyNames = []string{"first-come", "first-indices", "cost", "random", "clock", "fifo", "lru", "lfu", "planned"}

// PolicyNames returns the names that ParsePolicy takes.
func PolicyNames() []string { return slices.Clone(policyNames) }

// ParsePolicy returns the policy of a name. An unknown name is ErrInvalid, with the names that exist.
func ParsePolicy(name string) (Policy, error) {
	if p := slices.Index(policyNames, name); p >= 0 {
		return Policy(p), nil
	}
	return 0, fmt.Errorf("%w: policy: %q is not one of %s", ErrInvalid, name, strings.Join(policyNames, ", "))
}

// Evicts says whether a set into a full cache may give the slot of another sample to its own.
func (p Policy) Evicts() bool { return p >= PolicyCost && p <= PolicyPlanned }

// EvictingPolicies returns all policies that evict.
func EvictingPolicies() (all []Policy) {
	for p := range Policy(len(policyNames)) {
		if p.Evicts() {
			all = append(all, p)
		}
	}
	return all
}

// References says whether the policy keeps a byte for each slot, which hits change.
func (p Policy) References() bool { return p == PolicyClock || p == PolicyLRU || p == PolicyLFU }

// String returns the name that ParsePolicy takes.
func (p Policy) String() string {
	if p < 0 || int(p) >= len(policyNames) {
		return fmt.Sprintf("policy %d", int(p))
	}
	return policyNames[p]
}

// Options describe a new cache. OptionTable says what each option means, and what leaving it out does.
type Options struct {
	// Name has 1 to 100 characters of [A-Za-z0-9._-], the first alphanumeric. "": a sealed memfd,
	// which ends with its last process.
	Name        string
	Dir         string // an existing directory. "": Create makes the default
	Samples     uint64
	Limit       uint64 // option size
	Slots       uint64
	SampleBytes uint64
	Fields      []Field // Offset and Bytes are computed. nil: one field "data" of uint8
	Policy      Policy
	// SlotBytes 0: the rule of docs/spec/arena-eviction.md, which loses at most an eighth of the arena.
	SlotBytes  uint64
	Variable   bool
	Reserve    bool
	UnlinkLast bool // option unlink

	ClientRecords uint32 // option clients
	Fingerprint   string
	Decode        string // what Header.Decode is
	// Programs says that programs fill the cache, and ask its server first which samples others have.
	Programs bool
	// Lengths says that samples are lists, and that the cache remembers how many items each has. Only with Variable.
	Lengths bool
	// Progress is called in this goroutine while Create reserves, with bytes. nil: not called.
	Progress func(done, total uint64)
	// Others is for a program that creates many caches. nil: Create looks at all caches of this user.
	Others *Others
}

// validate returns all complaints about options: those of OptionTable, then those over several options. Each names
// its option. C has the same texts, and testdata/options.json tests them. Plan checks whether the cache fits.
func (o *Options) validate() error {
	var complaints []string
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	if o.Name != "" {
		if fault := nameFault(o.Name); fault != "" {
			complain("name: %s", fault)
		}
	} else {
		if o.Dir != "" {
			complain("dir: a cache without a name has none; give it a name")
		}
		if o.UnlinkLast {
			complain("unlink: a cache without a name always goes with its last process; leave it out or give a name")
		}
	}
	for _, option := range OptionTable {
		if fault := option.fault(o); fault != "" {
			complain("%s", fault)
		}
	}
	if o.Slots > o.Samples && o.Slots <= MaxSlots {
		complain("slots: %d is more than the %d samples; leave it out for as many as size holds", o.Slots, o.Samples)
	}
	var fieldBytes uint64
	if o.Fields != nil {
		var err error
		if fieldBytes, _, err = layOut(slices.Clone(o.Fields), o.Variable); err != nil {
			complain("fields: %v", err)
			fieldBytes = 0
		}
	}
	if o.SlotBytes != 0 && !(o.Variable && o.Policy.Evicts()) {
		complain("slot_bytes: %d: only a variable-size cache that evicts has slots of a given size; leave it out",
			o.SlotBytes)
	}
	if n := o.SlotBytes; n&(n-1) != 0 && n >= UnitBytes && n <= MaxChainStride {
		complain("slot_bytes: %d is not a power of two; leave it out for a size that follows from size and samples", n)
	}
	if o.Lengths && !o.Variable {
		complain("lengths: only a variable-size cache has lengths of lists; leave it out")
	}
	if o.Variable {
		if o.Limit == 0 {
			complain("size: a variable-size cache needs one, such as 8GiB")
		}
		if o.Slots != 0 {
			complain("slots: %d: a variable-size cache has no number of slots; leave it out", o.Slots)
		}
		if o.Policy == PolicyFirstIndices {
			complain("policy: %s needs samples of one size, so that sample i has slot i; take another policy", o.Policy)
		}
		if o.Policy.Evicts() && o.Samples > MaxChainSamples && o.Samples <= MaxSamples {
			complain("samples: %d is more than %d, the most of a variable-size cache that evicts; take the policy %s",
				o.Samples, uint64(MaxChainSamples), PolicyFirstCome)
		}
		if o.SampleBytes != 0 && o.SampleBytes < fieldBytes {
			complain("sample_bytes: %d, but the smallest sample of these fields has %d; leave it out, or raise it",
				o.SampleBytes, fieldBytes)
		}
	} else {
		switch {
		case o.Fields == nil && o.SampleBytes == 0:
			complain("sample_bytes: give them, or fields, or make the cache variable-size")
		case fieldBytes != 0 && o.SampleBytes != 0 && o.SampleBytes != fieldBytes:
			complain("sample_bytes: %d, but the fields make %d; leave it out", o.SampleBytes, fieldBytes)
		}
	}
	if len(complaints) > 0 {
		return fail(ErrInvalid, "%s", strings.Join(complaints, "; "))
	}
	return nil
}

// CheckName returns ErrInvalid, with the reason, for an invalid name of a cache.
func CheckName(name string) error {
	if fault := nameFault(name); fault != "" {
		return fail(ErrInvalid, "%s", fault)
	}
	return nil
}

// nameFault says what is wrong with a name; "" means nothing.
func nameFault(name string) string {
	alphanumeric := func(c byte) bool { return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' }
	ok := len(name) >= 1 && len(name) <= 100 && alphanumeric(name[0])
	for k := 0; ok && k < len(name); k++ {
		ok = alphanumeric(name[k]) || strings.IndexByte("._-", name[k]) >= 0
	}
	if !ok {
		return fmt.Sprintf("%q is not 1 to 100 of [A-Za-z0-9._-] with an alphanumeric first", name)
	}
	return ""
}

// Plan computes the header, without uuid and time, and the geometry of valid options. Errors:
// ErrInvalid; ErrMemory when one slot, or the given number of slots, does not fit into Limit.
func (o *Options) Plan() (Header, Geometry, error) {
	if err := o.validate(); err != nil {
		return Header{}, Geometry{}, err
	}
	h := Header{Version: LayoutVersion, Name: o.Name, Fingerprint: o.Fingerprint, Decode: o.Decode,
		UID: uint32(os.Geteuid()), Limit: o.Limit, SampleBytes: o.SampleBytes}
	h.Fields = slices.Clone(o.Fields)
	for k := range h.Fields {
		h.Fields[k].Dims = slices.Clone(h.Fields[k].Dims)
	}
	if h.Fields == nil {
		data := Field{Name: "data", DType: Uint8, Dims: []uint64{o.SampleBytes}}
		if o.Variable {
			data.Dims[0] = VariableDim
		}
		h.Fields = []Field{data}
	}
	for _, f := range []struct {
		on   bool
		flag uint32
	}{{o.Variable, FlagVariable}, {o.UnlinkLast, FlagUnlinkLast}, {o.Reserve, FlagReserved}, {o.Name != "", FlagNamed},
		{o.Programs, FlagPrograms}, {o.Lengths, FlagLengths}} {
		if f.on {
			h.Flags |= f.flag
		}
	}
	records := cmp.Or(o.ClientRecords, DefaultClientRecords)
	sampleBytes, stride, err := layOut(h.Fields, o.Variable)
	if err != nil {
		return h, Geometry{}, fail(ErrInvalid, "fields: %v", err)
	}
	if o.Variable {
		h.SampleBytes = cmp.Or(h.SampleBytes, MaxSampleBytes)
		if o.Policy.Evicts() {
			g, err := planChains(h.Flags, o.Policy, o.Samples, o.SlotBytes, records, o.Limit)
			return h, g, err
		}
		g, err := planArena(h.Flags, o.Samples, records, o.Limit, sampleBytes)
		return h, g, err
	}
	h.SampleBytes = sampleBytes
	g, err := planSlots(h.Flags, o.Policy, o.Samples, o.Slots, stride, records, o.Limit)
	return h, g, err
}

// planSlots finds the largest number of slots within limit, or checks the given number.
func planSlots(flags uint32, policy Policy, samples, slots, stride uint64, records uint32,
	limit uint64) (Geometry, error) {
	size := func(slots uint64) uint64 {
		g, err := NewGeometry(flags, policy, samples, slots, stride, records, 0)
		if err != nil {
			return VariableDim // outside the limits of the format: larger than any limit
		}
		return g.SegmentBytes
	}
	given := slots != 0
	if !given {
		slots = min(samples, MaxSlots)
		if limit != 0 {
			slots = uint64(sort.Search(int(slots), func(n int) bool { return size(uint64(n)+1) > limit }))
		}
	}
	g, err := NewGeometry(flags, policy, samples, max(slots, 1), stride, records, 0)
	switch {
	case err != nil:
		return g, fail(ErrInvalid, "%v", err)
	case limit == 0 || g.SegmentBytes <= limit:
		return g, nil
	case given:
		return g, tooSmall(limit, g.SegmentBytes, "give that much, or fewer slots", "%d slots of %d bytes for %d samples need",
			slots, stride, samples)
	}
	all := min(samples, MaxSlots)
	return g, tooSmall(limit, g.SegmentBytes, sizeAdvice(all, size), "one slot of %d bytes for %d samples needs", stride, samples)
}

// tooSmall is the error of a size that is less than what is needed. next is the next step.
func tooSmall(limit, need uint64, next, needs string, a ...any) error {
	shown, unit := fmt.Sprintf("%d bytes", limit), ". A size without a unit is bytes"
	if limit >= 1<<20 {
		shown, unit = mebibytes(limit), ""
	}
	return fail(ErrMemory, "%s %s, more than the size of %s; %s%s", fmt.Sprintf(needs, a...), mebibytes(need+mebiHundredth-1), shown,
		next, unit)
}

// sizeAdvice says which sizes hold all samples, half of them and one. size gives the bytes for a number of slots.
func sizeAdvice(all uint64, size func(uint64) uint64) string {
	var texts []string
	for _, one := range []struct {
		slots uint64
		what  string
	}{{all, " hold all samples"}, {(all + 1) / 2, " half of them"}, {1, " one"}} {
		if bytes := size(one.slots); bytes != VariableDim {
			texts = append(texts, mebibytes(bytes+mebiHundredth-1)+one.what)
		}
	}
	return strings.Join(texts, ", ")
}

const mebiHundredth = (1<<20 + 99) / 100

// mebibytes writes bytes as MiB, rounded down.
func mebibytes(bytes uint64) string {
	hundredths := bytes/(1<<20)*100 + bytes%(1<<20)*100>>20
	return fmt.Sprintf("%d.%02d MiB", hundredths/100, hundredths%100)
}

// moreForSamples is the next step for a cache whose samples have their own sizes each.
const moreForSamples = "give that much, and as many bytes more as the samples have that it is to hold"

// chainPart is how many slots each sample has at least, if the creator gives no size of slots.
const chainPart = 8

// planChains finds the largest number of slots within limit, of an arena that evicts. stride is the size
// of a slot; 0: the largest with chainPart slots for each sample.
func planChains(flags uint32, policy Policy, samples, stride uint64, records uint32, limit uint64) (Geometry, error) {
	if stride == 0 {
		for stride = MaxChainStride; stride > UnitBytes; stride /= 2 {
			g, err := planChains(flags, policy, samples, stride, records, limit)
			if err == nil && g.Slots >= chainPart*samples {
				return g, nil
			}
		}
	}
	least, err := NewGeometry(flags, policy, samples, 1, stride, records, 0)
	if err != nil {
		return least, fail(ErrInvalid, "%v", err)
	}
	slots := sort.Search(int(min(limit/stride, MaxSlots)), func(n int) bool {
		g, err := NewGeometry(flags, policy, samples, uint64(n)+1, stride, records, 0)
		return err != nil || g.SegmentBytes > limit
	})
	if slots == 0 {
		return least, tooSmall(limit, least.SegmentBytes, moreForSamples, "one slot of %d bytes for %d samples needs", stride,
			samples)
	}
	return NewGeometry(flags, policy, samples, uint64(slots), stride, records, 0)
}

// planArena gives the arena all bytes that the limit leaves, at least those of the smallest sample.
func planArena(flags uint32, samples uint64, records uint32, limit, smallest uint64) (Geometry, error) {
	units := UnitsFor(smallest)
	least, err := NewGeometry(flags, PolicyFirstCome, samples, 0, UnitBytes, records, units*UnitBytes)
	if err != nil {
		return least, fail(ErrInvalid, "%v", err)
	}
	if limit < least.SegmentBytes {
		return least, tooSmall(limit, least.SegmentBytes, moreForSamples,
			"a cache for the smallest of %d samples (at least %d bytes) needs", samples, units*UnitBytes)
	}
	payload := min((limit-least.PayloadOffset)&^(RegionAlign-1), MaxArenaBytes-UnitBytes)
	g, err := NewGeometry(flags, PolicyFirstCome, samples, 0, UnitBytes, records, payload)
	if err != nil {
		return g, fail(ErrInvalid, "%v", err)
	}
	return g, nil
}

// SlotBytesFor returns the SlotBytes for a typical sample of this length: the largest size that is not above
// a sixteenth of it.
func SlotBytesFor(typical uint64) uint64 {
	stride := uint64(UnitBytes)
	for stride*2 <= min(typical/16, MaxChainStride) {
		stride *= 2
	}
	return stride
}

// ArenaLimit returns the Limit of a variable-size cache whose arena holds samples of these lengths, all at
// once, and the SlotBytes to give with it; 0 if the policy does not evict. It returns ErrInvalid when the
// format has no arena of that size.
func ArenaLimit(policy Policy, clientRecords uint32, lengths []uint64) (limit, slotBytes uint64, err error) {
	clientRecords = cmp.Or(clientRecords, DefaultClientRecords)
	samples, units, total := uint64(len(lengths)), uint64(0), uint64(0)
	for _, n := range lengths {
		units += UnitsFor(n)
		total += n
	}
	slots, stride := uint64(0), uint64(UnitBytes)
	if policy.Evicts() {
		slotBytes = SlotBytesFor(total / max(samples, 1))
		stride = slotBytes
		for _, n := range lengths {
			slots += max(1, (n+stride-1)/stride)
		}
	}
	g, err := NewGeometry(FlagVariable, policy, samples, slots, stride, clientRecords, max(units, 1)*UnitBytes)
	if err != nil {
		return 0, 0, fail(ErrInvalid, "%v", err)
	}
	return g.SegmentBytes, slotBytes, nil
}
