package shm

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"
)

// Assign says how the samples of a fixed-size cache get their slots. Same numbers as enum stoc_assign.
type Assign int

const (
	AssignFirstCome    Assign = iota // any sample that is set while there is room
	AssignFirstIndices               // sample i < slots has slot i, the others never get one
)

// String returns the name that the command line takes.
func (a Assign) String() string {
	if a == AssignFirstIndices {
		return "first-indices"
	}
	return "first-come"
}

// Options say what to create. The zero value of each but Samples means something useful; a fixed-size cache needs Fields or SampleBytes.
type Options struct {
	Name        string  // 1 to 100 of [A-Za-z0-9._-], the first alphanumeric. "": a sealed memfd, gone with its last process
	Dir         string  // an existing directory on a tmpfs. "": /dev/shm/stocached-<uid>, made when it is missing. Excludes an empty Name
	Samples     uint64  // of the dataset; required
	Limit       uint64  // bytes; the file never exceeds it. 0: room for every sample. Required with Variable
	Slots       uint64  // exactly so many. 0: as many as Limit holds, at most Samples. Excludes Variable
	SampleBytes uint64  // without Fields: bytes of a sample (one field "data" of uint8). With Variable: the largest accepted, 0: 4 GiB - 1
	Fields      []Field // see SampleBytes; Offset and Bytes are computed
	Assign      Assign  // excludes Variable
	Variable    bool    // samples differ in size and lie in an arena
	Reserve     bool    // take all pages now, so that no fill is ever refused for lack of memory
	UnlinkLast  bool    // the named cache goes with its last user. Excludes an empty Name, which does so anyway

	ClientRecords uint32                   // clients at a time, at most 4,095. 0: 1,024
	Fingerprint   string                   // of dataset + transform, at most 64 bytes of UTF-8. "": none
	Progress      func(done, total uint64) // called in this goroutine while reserving, in bytes. nil: not called
}

// validate holds every complaint about options; each names the option. Whether it fits is plan's business.
func (o *Options) validate() error {
	var complaints []string
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	if o.Name != "" {
		if fault := nameFault(o.Name); fault != "" {
			complain("name: %s", fault)
		}
	} else {
		if o.Dir != "" {
			complain("dir %q: a cache without a name has no directory; give it a name", o.Dir)
		}
		if o.UnlinkLast {
			complain("unlink-last: a cache without a name always goes with its last process; leave it out or give a name")
		}
	}
	if o.Samples < 1 || o.Samples > MaxSamples {
		complain("samples: %d is not in 1..%d", o.Samples, uint64(MaxSamples))
	}
	if o.ClientRecords > MaxClientRecords {
		complain("client records: %d is more than %d", o.ClientRecords, MaxClientRecords)
	}
	if len(o.Fingerprint) > FingerprintBytes || !utf8.ValidString(o.Fingerprint) || strings.ContainsRune(o.Fingerprint, 0) {
		complain("fingerprint: %q is not UTF-8 of at most %d bytes; hash it", o.Fingerprint, FingerprintBytes)
	}
	if o.Assign != AssignFirstCome && o.Assign != AssignFirstIndices {
		complain("assign: %d is neither first-come (%d) nor first-indices (%d)", o.Assign, AssignFirstCome, AssignFirstIndices)
	}
	if o.SampleBytes > MaxSampleBytes {
		complain("sample bytes: %d is more than %d", o.SampleBytes, uint64(MaxSampleBytes))
	}
	if o.Slots > MaxSlots || o.Slots > o.Samples {
		complain("slots: %d is more than min(samples %d, %d)", o.Slots, o.Samples, uint64(MaxSlots))
	}
	var fieldBytes uint64
	if o.Fields != nil {
		var err error
		if fieldBytes, _, err = layOut(slices.Clone(o.Fields), o.Variable); err != nil {
			complain("fields: %v", err)
			fieldBytes = 0
		}
	}
	if o.Variable {
		if o.Limit == 0 {
			complain("limit: a variable-size cache needs one, such as 8 GiB")
		}
		if o.Slots != 0 {
			complain("slots: %d: a variable-size cache has none; give a limit", o.Slots)
		}
		if o.Assign != AssignFirstCome {
			complain("assign: %s needs samples of one size", o.Assign)
		}
		if o.SampleBytes != 0 && o.SampleBytes < fieldBytes {
			complain("sample bytes: %d, but the smallest sample of these fields has %d; leave it out, or raise it", o.SampleBytes, fieldBytes)
		}
	} else {
		switch {
		case o.Fields == nil && o.SampleBytes == 0:
			complain("sample bytes: give them, or fields, or make the cache variable-size")
		case fieldBytes != 0 && o.SampleBytes != 0 && o.SampleBytes != fieldBytes:
			complain("sample bytes: %d, but the fields make %d; leave it out", o.SampleBytes, fieldBytes)
		}
	}
	if len(complaints) > 0 {
		return fail(ErrInvalid, "%s", strings.Join(complaints, "; "))
	}
	return nil
}

// CheckName says what is wrong with the name of a cache.
func CheckName(name string) error {
	if fault := nameFault(name); fault != "" {
		return fail(ErrInvalid, "%s", fault)
	}
	return nil
}

// nameFault says what is wrong with a name; "": nothing.
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

// plan computes what valid options ask for: the header, but for uuid and time, and the geometry. ErrInvalid; ErrMemory when not even
// one slot, or not all the slots asked for, fit into Limit.
func (o *Options) plan() (Header, Geometry, error) {
	if err := o.validate(); err != nil {
		return Header{}, Geometry{}, err
	}
	h := Header{Major: LayoutMajor, Minor: LayoutMinor, Name: o.Name, Fingerprint: o.Fingerprint, UID: uint32(os.Geteuid()), Limit: o.Limit, SampleBytes: o.SampleBytes}
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
	}{{o.Variable, FlagVariable}, {o.UnlinkLast, FlagUnlinkLast}, {o.Reserve, FlagReserved}, {o.Name != "", FlagNamed}} {
		if f.on {
			h.Flags |= f.flag
		}
	}
	records := o.ClientRecords
	if records == 0 {
		records = DefaultClientRecords
	}
	sampleBytes, stride, err := layOut(h.Fields, o.Variable)
	if err != nil {
		return h, Geometry{}, fail(ErrInvalid, "fields: %v", err)
	}
	if o.Variable {
		if h.SampleBytes == 0 {
			h.SampleBytes = MaxSampleBytes
		}
		g, err := planArena(h.Flags, o.Samples, records, o.Limit, sampleBytes)
		return h, g, err
	}
	h.SampleBytes = sampleBytes
	g, err := planSlots(h.Flags, o.Assign, o.Samples, o.Slots, stride, records, o.Limit)
	return h, g, err
}

// planSlots finds the most slots whose segment stays within limit, or checks that the slots asked for do.
func planSlots(flags uint32, policy Assign, samples, slots, stride uint64, records uint32, limit uint64) (Geometry, error) {
	size := func(slots uint64) uint64 {
		g, err := NewGeometry(flags, policy, samples, slots, stride, records, 0)
		if err != nil {
			return VariableDim // over the limits of the format: larger than any limit
		}
		return g.SegmentBytes
	}
	wanted := slots
	if slots == 0 {
		slots = min(samples, MaxSlots)
		if limit != 0 {
			slots = uint64(sort.Search(int(slots), func(n int) bool { return size(uint64(n)+1) > limit }))
			wanted = 1
		}
	}
	if limit != 0 && (slots == 0 || size(slots) > limit) {
		return Geometry{}, fail(ErrMemory, "%d slots of %d bytes for %d samples make a segment of %d bytes, over the limit of %d; raise the limit to that at least",
			wanted, stride, samples, size(wanted), limit)
	}
	g, err := NewGeometry(flags, policy, samples, slots, stride, records, 0)
	if err != nil {
		return g, fail(ErrInvalid, "%v", err)
	}
	return g, nil
}

// planArena gives the arena all that the limit leaves, which is room for the smallest sample at least.
func planArena(flags uint32, samples uint64, records uint32, limit, smallest uint64) (Geometry, error) {
	units := UnitsFor(smallest)
	least, err := NewGeometry(flags, AssignFirstCome, samples, 0, UnitBytes, records, units*UnitBytes)
	if err != nil {
		return least, fail(ErrInvalid, "%v", err)
	}
	if limit < least.SegmentBytes {
		return least, fail(ErrMemory, "an arena for the smallest of %d samples (%d bytes) makes a segment of %d bytes, over the limit of %d; raise the limit to that at least",
			samples, units*UnitBytes, least.SegmentBytes, limit)
	}
	payload := min((limit-least.PayloadOffset)&^(RegionAlign-1), MaxArenaBytes-UnitBytes)
	g, err := NewGeometry(flags, AssignFirstCome, samples, 0, UnitBytes, records, payload)
	if err != nil {
		return g, fail(ErrInvalid, "%v", err)
	}
	return g, nil
}

// ArenaLimit returns the Limit of a variable-size cache with room for samples of these sizes in all, each rounded up to UnitsFor it. ErrInvalid when the format has none so large.
func ArenaLimit(samples uint64, clientRecords uint32, units uint64) (uint64, error) {
	if clientRecords == 0 {
		clientRecords = DefaultClientRecords
	}
	g, err := NewGeometry(FlagVariable, AssignFirstCome, samples, 0, UnitBytes, clientRecords, max(units, 1)*UnitBytes)
	if err != nil {
		return 0, fail(ErrInvalid, "%v", err)
	}
	return g.SegmentBytes, nil
}
