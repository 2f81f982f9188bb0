package shm

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// setOption sets an option as JSON has it.
func setOption(t *testing.T, o *Options, name string, value json.RawMessage) {
	t.Helper()
	k := slices.IndexFunc(OptionTable, func(p Option) bool { return p.Name == name })
	var err error
	switch {
	case name == "name":
		err = json.Unmarshal(value, &o.Name)
	case name == "fields": // the lengths of arrays of bytes
		var lengths []uint64
		err = json.Unmarshal(value, &lengths)
		o.Fields = []Field{}
		for k, n := range lengths {
			o.Fields = append(o.Fields, Field{Name: string(rune('a' + k)), DType: Uint8, Dims: []uint64{n}})
		}
	case name == "policy" && value[0] == '"':
		o.Policy, err = ParsePolicy(strings.Trim(string(value), `"`))
	default:
		err = json.Unmarshal(value, OptionTable[k].In(o).Addr().Interface())
	}
	if err != nil {
		t.Fatal(name, err)
	}
}

// Ensure that Create refuses options with the texts that C and Python have too, and that each option with a range has a
// case. python/tests/cache/test_options.py runs the same cases.
func TestOptionCases(t *testing.T) {
	var cases []struct {
		Given  map[string]json.RawMessage
		Not    []string
		Memory bool
		Error  string
	}
	text, err := os.ReadFile("testdata/options.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	fatal.If(t, err)
	missing := map[string]bool{}
	for _, p := range OptionTable {
		missing[p.Name] = p.Most > 0 && p.C != ""
	}
	for _, c := range cases {
		name, _, _ := strings.Cut(c.Error, ":")
		missing[name] = false
		if slices.Contains(c.Not, "go") {
			continue
		}
		var o Options
		for name, value := range c.Given {
			setOption(t, &o, name, value)
		}
		kind := ErrInvalid
		if c.Memory {
			kind = ErrMemory
		}
		if _, err := Create(o); !errors.Is(err, kind) || err.Error() != kind.Error()+": "+c.Error {
			t.Errorf("%s: got %v, want %s", c.Given, err, c.Error)
		}
	}
	for name, none := range missing {
		if none {
			t.Errorf("testdata/options.json has no case for %s", name)
		}
	}
}

// Ensure that each bad option is refused with its name in the message, and that all complaints come
// at once.
func TestOptionsRefused(t *testing.T) {
	ok := Options{Samples: 10, SampleBytes: 100}
	if _, _, err := ok.Plan(); err != nil {
		t.Fatal(err)
	}
	field := func(change func(f *Field)) []Field {
		f := Field{Name: "x", DType: Float32, Dims: []uint64{2}}
		change(&f)
		return []Field{{Name: "other", DType: Uint8}, f}
	}
	variable := func(dims ...[]uint64) func(o *Options) {
		return func(o *Options) {
			o.Variable, o.Limit, o.SampleBytes = true, 1<<30, 0
			for k, d := range dims {
				o.Fields = append(o.Fields, Field{Name: string(rune('a' + k)), DType: Uint8, Dims: d})
			}
		}
	}
	for _, c := range []struct {
		change func(o *Options)
		parts  []string
	}{
		{func(o *Options) { o.Fingerprint = strings.Repeat("x", 65) }, []string{"fingerprint", "64"}},
		{func(o *Options) { o.Fingerprint = "\xff" }, []string{"fingerprint", "UTF-8"}},
		{func(o *Options) { o.Fingerprint = "a\x00b" }, []string{"fingerprint"}},
		{func(o *Options) { o.Decode = strings.Repeat("x", 129) }, []string{"decode", "128"}},
		{func(o *Options) { o.Name = ".x" }, []string{"name"}},
		{func(o *Options) { o.Name = strings.Repeat("n", 101) }, []string{"name"}},
		{func(o *Options) { o.Name = "ä" }, []string{"name"}},
		{func(o *Options) { o.Fields = []Field{} }, []string{"fields: 0 fields"}},
		{func(o *Options) { o.Fields = make([]Field, 25) }, []string{"fields: 25 fields"}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.Name = "" }) }, []string{"fields", "no name"}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.Name = "other" }) }, []string{"fields", `"other"`}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.Name = strings.Repeat("x", 40) }) }, []string{"39 bytes"}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.DType = 16 }) }, []string{"dtype 16"}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.Dims = make([]uint64, 9) }) }, []string{"9 dimensions"}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.Dims = []uint64{3, 0} }) }, []string{"dimension 1", "is 0"}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.Dims = []uint64{VariableDim} }) },
			[]string{"dimension 0", "variable-size"}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.Dims = []uint64{1 << 32} }) }, []string{"4294967296"}},
		{func(o *Options) { o.Fields = field(func(f *Field) { f.Dims = []uint64{1 << 31, 1 << 31, 1 << 31} }) },
			[]string{"larger than"}},
		{variable([]uint64{1 << 16, 1 << 16, 1 << 16, 1 << 16}),
			[]string{"[65536 65536 65536 65536] uint8 is larger than 4294967295 bytes"}},
		{variable([]uint64{VariableDim, 1 << 16, 1 << 16}), []string{"[* 65536 65536] uint8 is larger than"}},
		{variable([]uint64{1 << 31}, []uint64{1 << 31}), []string{`up to "b" take 4294967424 bytes`}},
		{func(o *Options) { variable([]uint64{1000, 1000})(o); o.SampleBytes = 1_000_063 },
			[]string{"sample_bytes: 1000063", "1000064"}},
		{func(o *Options) { o.Samples, o.ClientRecords, o.Fingerprint = 0, 5000, "\xff" },
			[]string{"samples: 0 ", "; clients: 5000", "; fingerprint"}},
	} {
		o := ok
		c.change(&o)
		_, _, err := o.Plan()
		expect.Error(t, err, ErrInvalid, c.parts...)
		if _, err := Create(o); err == nil {
			t.Errorf("%+v: created", o)
		} else {
			expect.Error(t, err, ErrInvalid)
		}
	}
}

// Ensure that the file never exceeds a limit, that one more slot would, and that the error for a
// small limit names one that is large enough.
func TestLimit(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	refused := 0
	for range 2000 {
		o := Options{Samples: 1 + random.Uint64N(1<<random.IntN(24)), ClientRecords: 1 + random.Uint32N(MaxClientRecords),
			Limit: 1 + random.Uint64N(1<<(20+random.IntN(20)))}
		switch random.IntN(4) {
		case 3:
			o.Variable, o.Policy = true, PolicyCost+Policy(random.IntN(7))
			o.SlotBytes = [...]uint64{0, 64, 4096}[random.IntN(3)]
		case 0:
			o.SampleBytes, o.Policy = 1+random.Uint64N(1<<random.IntN(24)), Policy(random.IntN(8))
		case 1:
			o.Fields = []Field{{Name: "a", DType: Uint8, Dims: []uint64{1 + random.Uint64N(1000)}}, {Name: "b", DType: Float64}}
		case 2:
			o.Variable = true
		}
		h, g, err := o.Plan()
		if err != nil {
			refused++
			expect.Error(t, err, ErrMemory, "more than the size of ")
			m := regexp.MustCompile(`needs? (\d+)\.(\d\d) MiB`).FindStringSubmatch(err.Error())
			if m == nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			hundredths, _ := strconv.ParseUint(m[1]+m[2], 10, 64)
			o.Limit = hundredths << 20 / 100
			if _, _, err := o.Plan(); err != nil {
				t.Fatalf("seed %d: %v, but %v", seed, m[0], err)
			}
			o.Limit -= mebiHundredth
			_, _, err := o.Plan()
			expect.Error(t, err, ErrMemory)
			continue
		}
		if g.SegmentBytes > o.Limit {
			t.Fatalf("seed %d: %+v makes %d bytes", seed, o, g.SegmentBytes)
		}
		if g.Chains() {
			more, err := NewGeometry(h.Flags, g.Policy, g.Samples, g.Slots+1, g.SlotStride, g.ClientRecords, 0)
			if err == nil && more.SegmentBytes <= o.Limit || err != nil && g.Slots < MaxSlots {
				t.Fatalf("seed %d: %+v gets %d slots, %d would fit (%v)", seed, o, g.Slots, g.Slots+1, err)
			}
		} else if g.Variable() {
			if o.Limit-g.SegmentBytes >= RegionAlign {
				t.Fatalf("seed %d: %+v leaves %d bytes", seed, o, o.Limit-g.SegmentBytes)
			}
		} else if g.Slots < o.Samples {
			more, err := NewGeometry(h.Flags, g.Policy, g.Samples, g.Slots+1, g.SlotStride, g.ClientRecords, 0)
			if err != nil || more.SegmentBytes <= o.Limit {
				t.Fatalf("seed %d: %+v gets %d slots, %d would fit (%v)", seed, o, g.Slots, g.Slots+1, err)
			}
		}
	}
	if refused == 0 {
		t.Error("no limit was too small: the test proves nothing")
	}
}

// Ensure that slots have the size that docs/spec/arena-eviction.md gives for the payload and the number of
// samples: samples lose at most an eighth of the payload, and slots of twice the size would lose more.
func TestSlotBytes(t *testing.T) {
	for _, c := range []struct{ samples, limit, want uint64 }{
		{50_000, 8 << 30, 16384}, {1_281_167, 64 << 30, 4096}, {1_281_167, 8 << 30, 512}, {10, 8 << 20, 32768},
		{1 << 30, 64 << 30, 64}, {1, 1 << 40, MaxChainStride},
	} {
		o := Options{Samples: c.samples, Variable: true, Policy: PolicyCost, Limit: c.limit}
		_, g, err := o.Plan()
		fatal.If(t, err)
		part := g.PayloadBytes / (8 * g.Samples)
		if g.SlotStride != c.want || g.SlotStride > max(part, UnitBytes) ||
			part >= 2*g.SlotStride+g.SlotStride/64 && g.SlotStride < MaxChainStride {
			t.Errorf("%d samples in %d bytes lie in slots of %d, want %d", c.samples, c.limit, g.SlotStride, c.want)
		}
		if o.SlotBytes = 1024; true {
			if _, g, err := o.Plan(); err != nil || g.SlotStride != 1024 {
				t.Errorf("slots of %d bytes, %v", g.SlotStride, err)
			}
		}
	}
}

// Ensure that a variable-size cache with the limit for samples of known lengths holds just these.
func TestArenaLimit(t *testing.T) {
	lengths := []uint64{0, 1, 64, 65, 100_000, 3000, 5000, 12_345}
	for _, policy := range []Policy{PolicyFirstCome, PolicyCost, PolicyLRU} {
		limit, slotBytes, err := ArenaLimit(policy, 0, lengths)
		fatal.If(t, err)
		o := Options{Samples: uint64(len(lengths)), Variable: true, Policy: policy, Limit: limit, SlotBytes: slotBytes}
		_, g, err := o.Plan()
		fatal.If(t, err)
		room := g.PayloadBytes
		for _, n := range lengths {
			room -= max(1, (n+g.SlotStride-1)/g.SlotStride) * g.SlotStride
		}
		if room >= RegionAlign || policy.Evicts() && g.SlotStride != 512 { // the sum / (8 * 16), rounded down
			t.Errorf("%v: %d bytes are left, slots of %d", policy, int64(room), g.SlotStride)
		}
	}
	for typical, want := range map[uint64]uint64{0: 64, 2047: 64, 2048: 128, 100_000: 4096, 1 << 40: MaxChainStride} {
		expect.Equal(t, SlotBytesFor(typical), want, "bytes of slots for samples of %d", typical)
	}
	if _, _, err := ArenaLimit(PolicyCost, 0, nil); err == nil {
		t.Error("no samples")
	}
}

// Ensure that ParseDType reverses String for each dtype, and refuses other names with the list.
func TestDTypes(t *testing.T) {
	for d := range dtypeCount {
		if back, err := ParseDType(d.String()); err != nil || back != d || d.ItemSize() == 0 {
			t.Errorf("%d %q: %d, %v, item of %d", d, d, back, err, d.ItemSize())
		}
	}
	_, err := ParseDType("float128")
	expect.Error(t, err, ErrInvalid, "float128", "bfloat16")
	if dtypeCount.ItemSize() != 0 || dtypeCount.String() != "unknown" {
		t.Error("one past the last is a dtype")
	}
}
