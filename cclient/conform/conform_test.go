//go:build cgo

package conform

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/arena"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

func TestMain(m *testing.M) {
	library := os.Getenv("STOCACHED_LIB_PATH")
	if library == "" {
		library = "../../build/libstocached.so.1"
	}
	f, err := os.Open(library) // read, so that go test runs again when the library has changed
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v; build it first: make build\n", err)
		os.Exit(1)
	}
	f.Close()
	library, _ = filepath.Abs(library)
	if err := Load(library); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(diskChild) != "" {
		useDisk()
		return
	}
	os.Exit(m.Run())
}

// directory makes a directory on a tmpfs, which the test removes at its end.
func directory(t *testing.T) string {
	t.Helper()
	dir := fatal.Value(os.MkdirTemp("/dev/shm", "stocconform-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var languages = []struct {
	name string
	open func(path string, readOnly bool) (client, int, string)
}{
	{"Go", func(path string, readOnly bool) (client, int, string) {
		c, code, message := openGo(path, readOnly)
		if code != 0 {
			return nil, code, message
		}
		return c, 0, ""
	}},
	{"C", func(path string, readOnly bool) (client, int, string) {
		c, code, message := openC(path, readOnly)
		if code != 0 {
			return nil, code, message
		}
		return c, 0, ""
	}},
}

func open(t *testing.T, language int, path string, readOnly bool) client {
	t.Helper()
	c, code, message := languages[language].open(path, readOnly)
	if code != 0 {
		t.Fatalf("%s: attach: %d %s", languages[language].name, code, message)
	}
	t.Cleanup(c.close)
	return c
}

var kinds = map[string]shm.Options{
	"first-come":    {Samples: 20, Slots: 6, SampleBytes: 300},
	"first-indices": {Samples: 20, Slots: 6, SampleBytes: 300, Policy: shm.PolicyFirstIndices},
	"fifo":          {Samples: 20, Slots: 6, SampleBytes: 300, Policy: shm.PolicyFIFO},
	"clock":         {Samples: 20, Slots: 6, SampleBytes: 300, Policy: shm.PolicyClock},
	"fields": {Samples: 20, Limit: 2<<20 + 8192, Fields: []shm.Field{{Name: "flag", DType: shm.Bool},
		{Name: "image", DType: shm.Float32, Dims: []uint64{3, 5, 7}},
		{Name: "label", DType: shm.Int64}}},
	"arena": {Samples: 20, Variable: true, Limit: 2<<20 + 8192, SampleBytes: 3000},
	"chains of fifo": {Samples: 20, Variable: true, Limit: 2<<20 + 4096, SampleBytes: 3000, Policy: shm.PolicyFIFO,
		SlotBytes: 64},
	"chains of clock": {Samples: 20, Variable: true, Limit: 2<<20 + 8192, SampleBytes: 3000, Policy: shm.PolicyClock,
		SlotBytes: 256, Lengths: true},
}

// operation is one call with its arguments. The test compares its results.
type operation struct {
	name string
	do   func(c client) []any
}

// randomOperation makes a call, mostly one with valid arguments.
func randomOperation(rng *rand.Rand, o shm.Options, sampleBytes int, claimed bool) (op operation, opens, ends bool) {
	i := rng.IntN(int(o.Samples))
	if rng.IntN(30) == 0 {
		i = []int{-1, int(o.Samples), int(o.Samples) + 1, -1 << 62, 1<<62 + 5}[rng.IntN(5)]
	}
	length := sampleBytes
	if o.Variable {
		length = rng.IntN(1200)
	}
	if rng.IntN(25) == 0 {
		length = []int{0, sampleBytes - 1, sampleBytes + 1}[rng.IntN(3)]
	}
	data := make([]byte, length)
	for k := range data {
		data[k] = byte(rng.Uint32())
	}
	flags := cache.Flags(rng.IntN(2))
	if rng.IntN(40) == 0 {
		flags = 4
	}
	room := sampleBytes
	if rng.IntN(10) == 0 {
		room = rng.IntN(sampleBytes)
	}
	indices := make([]int, rng.IntN(12))
	for k := range indices {
		indices[k] = rng.IntN(int(o.Samples))
	}
	if rng.IntN(20) == 0 && len(indices) > 0 {
		indices[len(indices)-1] = int(o.Samples)
	}
	switch rng.IntN(15) {
	case 0, 1:
		return operation{fmt.Sprintf("get %d into %d", i, room), func(c client) []any {
			dst := make([]byte, room)
			code, n := c.get(i, dst)
			if code != 1 {
				dst = nil
			}
			return []any{code, n, dst}
		}}, false, false
	case 2:
		return operation{fmt.Sprintf("view %d", i), func(c client) []any {
			code, v := c.view(i)
			return []any{code, slices.Clone(v)}
		}}, false, false
	case 3:
		field, stride := rng.IntN(4)-1, sampleBytes+rng.IntN(3)
		if rng.IntN(10) == 0 {
			stride = 3
		}
		threads := rng.IntN(3)
		return operation{fmt.Sprintf("gather %v, field %d, stride %d", indices, field, stride), func(c client) []any {
			dst := bytes.Repeat([]byte{0xee}, len(indices)*stride+sampleBytes)
			n, hit := c.gather(indices, field, dst, stride, threads)
			if n < 0 {
				dst, hit = nil, nil
			}
			return []any{n, hit, dst}
		}}, false, false
	case 4:
		shift := rng.Uint64N(2) * rng.Uint64N(2)
		return operation{fmt.Sprintf("lengths, gather packed %v", indices), func(c client) []any {
			n, lengths := c.lengths(indices)
			if n < 0 {
				return []any{n}
			}
			offsets, total := make([]uint64, len(lengths)+1), uint64(0)
			want := append(slices.Clone(lengths), 0)
			for k, l := range lengths {
				offsets[k] = total
				if l != cache.Miss {
					want[k] += shift
					total += want[k]
				}
			}
			dst := make([]byte, total+1)
			m, hit := c.gatherPacked(indices, dst, offsets, want, 1)
			return []any{n, lengths, m, hit, dst}
		}}, false, false
	case 5:
		return operation{fmt.Sprintf("state %d", i), func(c client) []any { return []any{c.state(i)} }}, false, false
	case 6:
		first, n := rng.IntN(int(o.Samples)), rng.IntN(int(o.Samples))
		return operation{fmt.Sprintf("states and verify %d, %d", first, n), func(c client) []any {
			code, states := c.states(first, n)
			if code < 0 {
				states = nil
			}
			corrupt, checked, bad := c.verify(first, n)
			return []any{code, states, corrupt, checked, bad}
		}}, false, false
	case 7:
		return operation{fmt.Sprintf("peek %d into %d", i, room), func(c client) []any {
			dst := make([]byte, room)
			code := c.peek(i, dst)
			return []any{code, dst}
		}}, false, false
	case 8:
		if rng.IntN(4) != 0 {
			break
		}
		return operation{"clear", func(c client) []any { return []any{c.clear(3)} }}, false, false
	case 9:
		return operation{"recover", func(c client) []any { return []any{c.recover()} }}, false, false
	case 10:
		cut := rng.IntN(len(data) + 1)
		return operation{fmt.Sprintf("set %d of %d+%d bytes, flags %d", i, cut, len(data)-cut, flags), func(c client) []any {
			return []any{c.set(i, [][]byte{data[:cut], data[cut:]}, flags)}
		}}, false, false
	case 11, 12:
		if claimed {
			at, n := 0, min(rng.IntN(200), len(data))
			if rng.IntN(2) == 0 {
				at = rng.IntN(sampleBytes + 2)
			}
			switch rng.IntN(4) {
			case 0:
				return operation{"publish", func(c client) []any { return []any{c.publish()} }}, false, true
			case 1:
				return operation{"abort", func(c client) []any { return []any{c.abort()} }}, false, true
			default:
				return operation{fmt.Sprintf("write %d bytes at %d", n, at),
					func(c client) []any { return []any{c.write(at, data[:n])} }}, false, false
			}
		}
		return operation{fmt.Sprintf("claim %d of %d bytes, flags %d", i, len(data), flags),
			func(c client) []any { return []any{c.begin(i, len(data), flags)} }}, true, false
	}
	return operation{fmt.Sprintf("set %d of %d bytes, flags %d", i, len(data), flags),
		func(c client) []any { return []any{c.set(i, [][]byte{data}, flags)} }}, false, false
}

// image is what must be equal between segments: all but owners and times. It leaves owner numbers
// out of words, and adds counters up.
func image(t *testing.T, path string) map[string]any {
	t.Helper()
	seg := fatal.Value(shm.Open(path, shm.OpenOptions{ReadOnly: true}))(t)
	defer seg.Close()
	g := seg.Geometry
	const owner = 0xfff << shm.StateBits
	var words, meta, table []uint64
	var payload [][]byte
	for i := range g.Samples {
		w := shm.Word(seg.Word(i).Load())
		words, meta = append(words, uint64(w)&^owner), append(meta, seg.Meta(i).Load())
		if w.State() == shm.Ready && !g.Chains() {
			place := (g.WordLayout().Place(w) - 1) * g.SlotStride
			payload = append(payload, slices.Clone(seg.Bytes(place, seg.Length(shm.Meta(seg.Meta(i).Load())))))
		}
	}
	if g.HasSlotTable() {
		for s := range g.Slots {
			table = append(table, seg.SlotSample(s).Load())
		}
	}
	if g.Chains() {
		for k := range g.Groups() {
			table = append(table, seg.Group(k).Load())
		}
		payload = append(payload, slices.Clone(seg.Bytes(0, g.PayloadBytes)))
	}
	claims := 0
	var counters [shm.CounterCount]uint64
	for r := range g.ClientRecords {
		for e := range shm.ClaimsPerClient {
			if entry, _ := seg.Claim(r, e); entry.Load() != 0 {
				claims++
			}
		}
		for s := range shm.CounterStripes {
			for k := range shm.CounterCount {
				counters[k] += seg.Counter(r, s, k).Load()
			}
		}
	}
	return map[string]any{"words": words, "meta": meta, "slot table": table, "payload": payload, "claims": claims,
		"counters": counters,
		"phase":    seg.Phase().Load() &^ owner, "free_from": seg.FreeFrom().Load(),
		"arena_next": seg.ArenaNext().Load() &^ owner}
}

func difference(a, b map[string]any) string {
	var found []string
	for key := range a {
		if !reflect.DeepEqual(a[key], b[key]) {
			found = append(found, fmt.Sprintf("%s: %v / %v", key, a[key], b[key]))
		}
	}
	slices.Sort(found)
	return strings.Join(found, "\n")
}

// TestOperations runs random operations in Go, in C, and in both alternately on one segment, where
// either begins.
func TestOperations(t *testing.T) {
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 20; seed++ {
				compareRun(t, options, seed)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// short cuts results to a length that a person can compare.
func short(values []any) string {
	text := make([]string, len(values))
	for k, v := range values {
		if b, ok := v.([]byte); ok && len(b) > 16 {
			v = fmt.Sprintf("%d bytes with checksum %#x", len(b), crc32.Checksum(b, shm.Castagnoli))
		}
		text[k] = fmt.Sprint(v)
	}
	return strings.Join(text, ", ")
}

// compareRun has four segments: one for Go, one for C, and two where Go and C alternate.
func compareRun(t *testing.T, options shm.Options, seed uint64) {
	dir := directory(t)
	type party struct {
		name    string
		path    string
		clients []client
	}
	var parties []*party
	for _, who := range []struct {
		name string
		by   []int
	}{{"Go", []int{0}}, {"C", []int{1}}, {"Go, C", []int{0, 1}}, {"C, Go", []int{1, 0}}} {
		o := options
		o.Name, o.Dir, o.ClientRecords = fmt.Sprintf("seed%d-%d", seed, len(parties)), dir, 4
		seg := fatal.Value(shm.Create(o))(t)
		seg.Close()
		p := &party{name: who.name, path: filepath.Join(dir, o.Name)}
		for _, language := range who.by {
			c, code, message := languages[language].open(p.path, false)
			fatal.Equal(t, code, 0, "%s: %s", who.name, message)
			defer c.close()
			p.clients = append(p.clients, c)
		}
		parties = append(parties, p)
	}
	seg := fatal.Value(shm.Open(parties[0].path, shm.OpenOptions{ReadOnly: true}))(t)
	sampleBytes := int(seg.Header.SampleBytes)
	seg.Close()
	rng := rand.New(rand.NewPCG(seed, 7))
	claimant, history := -1, []string{}
	for step := range 120 {
		op, opens, ends := randomOperation(rng, options, sampleBytes, claimant >= 0)
		turn := step
		if claimant >= 0 && (ends || strings.HasPrefix(op.name, "write")) {
			turn = claimant // the client that claimed goes on
		}
		history = append(history, op.name)
		var first []any
		for k, p := range parties {
			got := op.do(p.clients[turn%len(p.clients)])
			if k == 0 {
				first = got
			} else if !reflect.DeepEqual(got, first) {
				t.Fatalf("seed %d, step %d, %s:\nGo gives %s\n%s gives %s\nbefore: %s", seed, step, op.name, short(first), p.name,
					short(got), strings.Join(history, "; "))
			}
		}
		if opens && first[0] == 0 {
			claimant = step
		}
		if ends {
			claimant = -1
		}
		want := image(t, parties[0].path)
		for _, p := range parties[1:] {
			if d := difference(want, image(t, p.path)); d != "" {
				t.Fatalf("seed %d, step %d, %s: the segments of Go / %s differ:\n%s\nbefore: %s", seed, step, op.name, p.name, d,
					strings.Join(history, "; "))
			}
		}
	}
	_, want := parties[0].clients[0].stats()
	for _, p := range parties {
		for _, c := range p.clients {
			code, s := c.stats()
			s.ClientsLive = want.ClientsLive // a shared segment has two
			s.AllocatedBytes = want.AllocatedBytes
			if code != 0 || s != want {
				t.Fatalf("seed %d: stats of Go %+v, of %s %d %+v", seed, want, p.name, code, s)
			}
		}
	}
}

// TestLengths learns lengths of lists through C. Go finds them in the segment, no set or eviction changes them, and a
// clear in either language forgets them.
func TestLengths(t *testing.T) {
	for _, name := range []string{"arena", "chains of clock"} {
		for clearer := range languages {
			o := kinds[name]
			o.Name, o.Dir, o.ClientRecords, o.Lengths = "lengths", directory(t), 4, true
			seg := fatal.Value(shm.Create(o))(t)
			t.Cleanup(func() { seg.Close() })
			path := filepath.Join(o.Dir, o.Name)
			c, other := open(t, 1, path, false).(*cClient), open(t, clearer, path, false)
			check := func(what string, plus func(i int) uint64) {
				code, lengths := c.learnedLengths(0, int(o.Samples))
				for i, n := range lengths {
					if word := seg.Items(uint64(i)).Load(); code != 0 || n != plus(i) || word != plus(i) {
						t.Fatalf("%s, %s: C says %d %d of sample %d, the segment %d, want %d", name, what, code, n, i, word, plus(i))
					}
				}
			}
			check("new", func(int) uint64 { return 0 })
			learned := func(i int) uint64 { return uint64(i)*uint64(i) + 1 }
			for i := range int(o.Samples) {
				if first, again := c.learnLength(i, learned(i)-1), c.learnLength(i, learned(i)-1); first != 0 || again != 1 {
					t.Fatal(first, again)
				}
			}
			check("learned", learned)
			for i := range int(o.Samples) { // some go for others
				other.set(i, [][]byte{make([]byte, 900)}, cache.Overwrite)
			}
			check("filled", learned)
			fatal.Equal(t, other.clear(1000), 0, "")
			check("cleared", func(int) uint64 { return 0 })
			if a, b, d := c.learnLength(20, 0), c.learnLength(-1, 0), c.learnLength(0, 1<<32); a != -2 || b != -2 || d != -1 {
				t.Error(a, b, d)
			}
			if code, _ := c.learnedLengths(0, 21); code != -2 {
				t.Error(code)
			}
			reader := open(t, 1, path, true).(*cClient)
			expect.Equal(t, reader.learnLength(0, 1), -11, "")
		}
	}
}

// TestDead leaves claims in one language, as a death does, and reclaims them in the other.
func TestDead(t *testing.T) {
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			o := options
			o.Name, o.Dir, o.ClientRecords = "dead", directory(t), 4
			seg := fatal.Value(shm.Create(o))(t)
			defer seg.Close()
			path := filepath.Join(o.Dir, o.Name)
			bytes := make([]byte, 300)
			if n := int(seg.Header.SampleBytes); !o.Variable {
				bytes = make([]byte, n)
			}
			c := open(t, 1, path, false)
			for round := range 5 {
				locks := fatal.Value(seg.NewLocks())(t)
				dead := fatal.Value(cache.Attach(seg, cache.Options{Locks: locks}))(t)
				if _, r, err := dead.Claim(3, len(bytes), cache.Overwrite); r != cache.Stored || err != nil {
					t.Fatalf("round %d: %v %v", round, r, err)
				}
				fatal.Equal(t, c.set(3, [][]byte{bytes}, 0), int(cache.Busy), "C's set of a sample that a live Go client is filling")
				locks.Close() // dies
				fatal.Equal(t, c.set(3, [][]byte{bytes}, 0), int(cache.Stored), "round %d: C's set of a dead Go client's sample", round)
			}
			if code, s := c.stats(); code != 0 || s.Recovered != 5 || s.Ready != 1 {
				t.Fatalf("%d %+v", code, s)
			}
		})
	}
}

// TestCorrupt writes impossible words into segments of all kinds, and compares the results of both.
func TestCorrupt(t *testing.T) {
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 40; seed++ {
				dir := directory(t)
				var results [2][]any
				for language := range languages {
					o := options
					o.Name, o.Dir, o.ClientRecords = languages[language].name, dir, 4
					seg := fatal.Value(shm.Create(o))(t)
					c := open(t, language, filepath.Join(dir, o.Name), false)
					bytes := make([]byte, 100)
					if !o.Variable {
						bytes = make([]byte, seg.Header.SampleBytes)
					}
					for i := range 4 {
						results[language] = append(results[language], c.set(i, [][]byte{bytes}, 0))
					}
					rng := rand.New(rand.NewPCG(seed, 3))
					for range 1 + rng.IntN(4) {
						i := rng.Uint64N(5)
						w := seg.WordLayout().Pack(shm.State(rng.IntN(8)), uint32(rng.IntN(3)*rng.IntN(3000)), rng.Uint64N(4),
							[]uint64{0, 1, 5, 7, 90, 129, 1 << 30, 1<<32 - 1}[rng.IntN(8)])
						if rng.IntN(3) == 0 {
							w = shm.Word(seg.Word(i).Load())
						}
						seg.Word(i).Store(uint64(w))
						if rng.IntN(3) == 0 {
							seg.Meta(i).Store(uint64(shm.NewMeta([]uint32{0, 99, 100, 1 << 20, 1<<32 - 1}[rng.IntN(5)], 0)))
						}
					}
					if rng.IntN(4) == 0 { // an entry of a dead client that names no sample
						entry, _ := seg.Claim(3, 0)
						entry.Store(12345)
						seg.ClientsHigh().Store(4)
					}
					if rng.IntN(4) == 0 {
						seg.Phase().Store([]uint64{1, 1 | 3<<3, 1 | 4095<<3, 1 | 5<<3 | 7<<15}[rng.IntN(4)])
					}
					for i := range 5 {
						code, n := c.get(i, make([]byte, 5000))
						viewed, view := c.view(i)
						results[language] = append(results[language], code, n, viewed, len(view), c.state(i))
					}
					corrupt, checked, bad := c.verify(0, 20)
					results[language] = append(results[language], corrupt, checked, bad)
					for i := range 5 {
						results[language] = append(results[language], c.set(i, [][]byte{bytes}, cache.Flags(i%2)))
					}
					results[language] = append(results[language], c.recover(), c.clear(50), c.set(1, [][]byte{bytes}, 0))
					if _, s := c.stats(); true {
						s.AllocatedBytes = 0
						results[language] = append(results[language], s)
					}
					seg.Close()
				}
				if !reflect.DeepEqual(results[0], results[1]) {
					t.Fatalf("seed %d:\nGo %v\nC  %v", seed, results[0], results[1])
				}
			}
		})
	}
}

// TestReadOnly compares read-only clients.
func TestReadOnly(t *testing.T) {
	o := kinds["first-come"]
	o.Name, o.Dir = "read-only", directory(t)
	seg := fatal.Value(shm.Create(o))(t)
	defer seg.Close()
	path, bytes := filepath.Join(o.Dir, o.Name), make([]byte, 300)
	fatal.Equal(t, open(t, 0, path, false).set(2, [][]byte{bytes}, 0), 0, "")
	var results [2][]any
	for k := range languages {
		c := open(t, k, path, true)
		hit, n := c.get(2, make([]byte, 300))
		miss, _ := c.get(3, make([]byte, 300))
		_, s := c.stats()
		results[k] = []any{hit, n, miss, c.set(3, [][]byte{bytes}, 0), c.set(-1, [][]byte{bytes}, 0), c.begin(3, 300, 0),
			c.clear(1), c.recover(), s.Hits, s.Misses, s.Busy}
	}
	if !reflect.DeepEqual(results[0], results[1]) {
		t.Fatalf("Go %v, C %v", results[0], results[1])
	}
}

// TestCreate gives both the same valid and invalid options. The codes must be equal, and the
// headers too, except for name, uuid and time.
func TestCreate(t *testing.T) {
	dir := directory(t)
	field := func(name string, d shm.DType, dims ...uint64) shm.Field {
		return shm.Field{Name: name, DType: d, Dims: dims}
	}
	table := []shm.Options{
		{}, {Samples: 5}, {Samples: 5, SampleBytes: 8}, {Samples: 5, SampleBytes: 8, Slots: 3},
		{Samples: 5, SampleBytes: 8, Slots: 6}, {Samples: 1<<40 + 1, SampleBytes: 8},
		{Samples: 5, SampleBytes: 1 << 32}, {Samples: 5, SampleBytes: 8, Policy: 2}, {Samples: 5, SampleBytes: 8, Policy: 1},
		{Samples: 5, SampleBytes: 8, Policy: 1, Slots: 2, UnlinkLast: true},
		{Samples: 5, Variable: true}, {Samples: 5, Variable: true, Limit: 1 << 20},
		{Samples: 5, Variable: true, Limit: 2<<20 + 1}, {Samples: 5, Variable: true, Limit: 2<<20 + 4096},
		{Samples: 5, Variable: true, Limit: 3<<20 + 777}, {Samples: 5, Variable: true, Limit: 3 << 20, SampleBytes: 1000},
		{Samples: 5, Variable: true, Limit: 3 << 20, Slots: 1},
		{Samples: 5, Variable: true, Limit: 3 << 20, Policy: 1}, {Samples: 5, SampleBytes: 8, ClientRecords: 4096},
		{Samples: 5, SampleBytes: 8, ClientRecords: 4095},
		{Samples: 1000, SampleBytes: 3000, Limit: 3 << 20}, {Samples: 1000, SampleBytes: 3001, Limit: 3<<20 + 5},
		{Samples: 1000, SampleBytes: 1 << 20, Limit: 3 << 20},
		{Samples: 1000, SampleBytes: 1 << 20, Limit: 2 << 20},
		{Samples: 1000, SampleBytes: 100, Slots: 1000, Limit: 2<<20 + 50000},
		{Samples: 300000, SampleBytes: 10, Limit: 9 << 20},
		{Samples: 5, SampleBytes: 8, Fingerprint: "cats, resized"},
		{Samples: 5, SampleBytes: 8, Fingerprint: strings.Repeat("x", 64)},
		{Samples: 5, SampleBytes: 8, Fingerprint: strings.Repeat("x", 65)},
		{Samples: 5, SampleBytes: 8, Fingerprint: "\xff"}, {Samples: 5, SampleBytes: 1, Reserve: true},
		{Samples: 5, Fields: []shm.Field{field("a", shm.Bool), field("b", shm.Complex128, 2), field("c", shm.Int16, 3, 1)}},
		{Samples: 5, Fields: []shm.Field{field("a", shm.Bool), field("a", shm.Bool)}}, {Samples: 5, Fields: []shm.Field{}},
		{Samples: 5, Fields: []shm.Field{field("", shm.Bool)}},
		{Samples: 5, Fields: []shm.Field{field("a", 16)}}, {Samples: 5, Fields: []shm.Field{field("a", shm.Bool, 0)}},
		{Samples: 5, Fields: []shm.Field{field("a", shm.Bool, 1, 2, 3, 4, 5, 6, 7, 8)}},
		{Samples: 5, Fields: []shm.Field{field("a", shm.Bool, 1, 2, 3, 4, 5, 6, 7, 8, 9)}},
		{Samples: 5, Fields: []shm.Field{field("a", shm.Bool, 1<<20, 1<<20)}},
		{Samples: 5, Fields: []shm.Field{field("a", shm.Bool, shm.VariableDim)}},
		{Samples: 5, Fields: []shm.Field{field(strings.Repeat("n", 39), shm.Bool)}},
		{Samples: 5, Fields: []shm.Field{field(strings.Repeat("n", 40), shm.Bool)}},
		{Samples: 5, Fields: []shm.Field{field("\xc3\xa4", shm.Bool)}},
		{Samples: 5, Fields: []shm.Field{field("\xc3", shm.Bool)}},
		{Samples: 5, Fields: slices.Repeat([]shm.Field{field("a", shm.Bool)}, 25)},
		{Samples: 5, Variable: true, Limit: 3 << 20, Fields: []shm.Field{field("a", shm.Uint8, 1<<16, 1<<16, 1<<16, 1<<16)}},
		{Samples: 5, Variable: true, Limit: 3 << 20, Fields: []shm.Field{field("a", shm.Uint8, 1<<31), field("b", shm.Uint8, 1<<31)}},
		{Samples: 5, Variable: true, Limit: 3 << 20, Fields: []shm.Field{field("a", shm.Uint8, 1<<31)}},
		{Samples: 5, Fields: []shm.Field{field("a", shm.Int64)}, SampleBytes: 8},
		{Samples: 5, Fields: []shm.Field{field("a", shm.Int64)}, SampleBytes: 9},
		{Samples: 5, Variable: true, Limit: 3 << 20, Fields: []shm.Field{field("a", shm.Float32, shm.VariableDim, 3),
			field("b", shm.Int64)}},
		{Samples: 5, Variable: true, Limit: 3 << 20, Policy: shm.PolicyCost}, // slots by the rule
		{Samples: 5, Variable: true, Limit: 3 << 20, Lengths: true}, {Samples: 5, SampleBytes: 8, Lengths: true},
		{Samples: 5000, Variable: true, Limit: 3 << 20, Policy: shm.PolicyLFU, Lengths: true},
		{Samples: 5000, Variable: true, Limit: 30<<20 + 777, Policy: shm.PolicyLFU},
		{Samples: 1 << 20, Variable: true, Limit: 30 << 20, Policy: shm.PolicyFIFO},
		{Samples: 3, Variable: true, Limit: 1 << 30, Policy: shm.PolicyClock, SampleBytes: 1 << 20},
		{Samples: 1, Variable: true, Limit: 2<<20 + 64, Policy: shm.PolicyClock},
		{Samples: 1, Variable: true, Limit: 1 << 29, Policy: shm.PolicyClock},
		{Samples: 30_000, Variable: true, Limit: 2<<20 + 64, Policy: shm.PolicyClock},
		{Samples: 30_000, Variable: true, Limit: 5<<20 + 1234, Policy: shm.PolicyClock},
		{Samples: 5, Variable: true, Limit: 3 << 20, Policy: shm.PolicyCost, SlotBytes: 4096},
		{Samples: 5000, Variable: true, Limit: 3<<20 + 777, Policy: shm.PolicyLRU, SlotBytes: 64, SampleBytes: 1000},
		{Samples: 5, Variable: true, Limit: 2<<20 + 100, Policy: shm.PolicyRandom, SlotBytes: 4096},
		{Samples: 5, Variable: true, Limit: 3 << 20, Policy: shm.PolicyRandom, SlotBytes: 192},
		{Samples: 5, Variable: true, Limit: 30 << 20, Policy: shm.PolicyRandom, SlotBytes: 4 << 20},
		{Samples: 5, Variable: true, Limit: 3 << 20, SlotBytes: 64},
		{Samples: 5, SampleBytes: 64, Policy: shm.PolicyRandom, SlotBytes: 64},
		{Samples: 1 << 31, Variable: true, Limit: 1 << 40, Policy: shm.PolicyRandom, SlotBytes: 64},
		{Samples: 1 << 32, SampleBytes: 1<<32 - 1, Slots: 1<<32 - 2}, {Samples: 1 << 22, SampleBytes: 1 << 30},
	}
	for k, o := range table {
		if o.Fields != nil && len(o.Fields) == 0 { // Go's options cannot express an empty list: nil means no fields given
			o.Fields = nil
		}
		o.Dir = dir
		for _, name := range []string{"same", "\x00"} {
			o.Name = name
			if name == "\x00" { // and a cache without a name
				o.Name, o.Dir = "", ""
				if o.UnlinkLast || o.Reserve {
					continue
				}
			}
			seg, err := shm.Create(o)
			var pages [2][]byte
			path := filepath.Join(dir, "same")
			if err == nil {
				pages[0] = header(t, path, o.Name != "")
				if stride := arena.StrideFor(seg.PayloadBytes, o.Samples, 0); seg.Chains() && o.SlotBytes == 0 && seg.SlotStride != stride {
					t.Errorf("options %d: slots of %d bytes, and the rule of docs/spec/arena-eviction.md says %d", k, seg.SlotStride, stride)
				}
				seg.Close()
				os.Remove(path)
			}
			code, message := createC(o)
			if code != shm.Code(err) {
				t.Errorf("options %d (name %q): Go %d %v, C %d %s", k, o.Name, shm.Code(err), err, code, message)
			}
			if code == 0 {
				pages[1] = header(t, path, o.Name != "" && !o.UnlinkLast)
				if o.UnlinkLast {
					pages[0] = nil
				}
				os.Remove(path)
			} else if err != nil && message == "" {
				t.Errorf("options %d: no message", k)
			}
			if !bytes.Equal(pages[0], pages[1]) {
				t.Errorf("options %d: headers differ:\n%x\n%x", k, pages[0], pages[1])
			}
		}
	}
}

// header reads a header page without the bytes that differ in each creation.
func header(t *testing.T, path string, named bool) []byte {
	if !named {
		return nil
	}
	b := fatal.Value(os.ReadFile(path))(t)
	page := b[:shm.HeaderBytes]
	clear(page[shm.HeaderUUID : shm.HeaderUUID+16])
	clear(page[shm.HeaderCreated : shm.HeaderCreated+8])
	clear(page[shm.HeaderCRC : shm.HeaderCRC+4])
	return page
}

// TestAttach damages headers, with and without a correct checksum, and puts other files in their
// place. The codes must be equal.
func TestAttach(t *testing.T) {
	for _, name := range []string{"fields", "chains of clock"} {
		t.Run(name, func(t *testing.T) { attachDamaged(t, kinds[name]) })
	}
}

func attachDamaged(t *testing.T, o shm.Options) {
	dir := directory(t)
	o.Name, o.Dir, o.ClientRecords = "damaged", dir, 2
	seg, err := shm.Create(o)
	fatal.If(t, err)
	seg.Close()
	path := filepath.Join(dir, o.Name)
	whole, err := os.ReadFile(path)
	fatal.If(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	fatal.If(t, err)
	defer f.Close()
	same := func(what string) {
		t.Helper()
		var codes [2]int
		var messages [2]string
		for k, l := range languages {
			var c client
			if c, codes[k], messages[k] = l.open(path, false); c != nil {
				c.close()
			}
		}
		if codes[0] != codes[1] {
			t.Errorf("%s: Go %d %s, C %d %s", what, codes[0], messages[0], codes[1], messages[1])
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for k := range shm.HeaderBytes {
		for _, signed := range []bool{false, true} {
			page := slices.Clone(whole[:shm.HeaderBytes])
			page[k] ^= byte(1 + rng.IntN(255))
			if signed {
				clear(page[shm.HeaderCRC : shm.HeaderCRC+4])
				binary.LittleEndian.PutUint32(page[shm.HeaderCRC:], crc32.Checksum(page, shm.Castagnoli))
			}
			fatal.Value(f.WriteAt(page, 0))(t)
			same(fmt.Sprintf("byte %d is %#x instead of %#x, signed %v", k, page[k], whole[k], signed))
		}
	}
	fatal.Value(f.WriteAt(whole[:shm.HeaderBytes], 0))(t)
	for _, n := range []int{0, 1, 7, 8, 4095, 4096, 4097, len(whole) - 4096, len(whole) - 1, len(whole) + 1, len(whole)} {
		fatal.If(t, os.Truncate(path, int64(n)))
		same(fmt.Sprintf("%d bytes", n))
	}
	for _, other := range []string{"directory", "link", "missing", "text", "missing/below", "text/below",
		"link-to-nothing"} {
		path = filepath.Join(dir, other)
		switch other {
		case "directory":
			err = os.Mkdir(path, 0o700)
		case "link":
			err = os.Symlink("damaged", path)
		case "link-to-nothing":
			err = os.Symlink("nothing", path)
		case "text":
			err = os.WriteFile(path, bytes.Repeat([]byte("hello "), 1000), 0o600)
		}
		fatal.If(t, err)
		same(other)
		if goes, c := shm.Code(shm.Unlink(path)), unlinkC(path); goes != c {
			t.Errorf("unlink %s: Go %d, C %d", other, goes, c)
		}
	}
	for _, name := range []string{"", ".", "a b", "\xff", strings.Repeat("x", 101), "no-such-cache-anywhere"} {
		_, err := shm.Open(name, shm.OpenOptions{})
		c, code, message := openC(name, false)
		if c != nil {
			c.close()
		}
		if code != shm.Code(err) {
			t.Errorf("open %q: Go %v, C %d %s", name, err, code, message)
		}
	}
}

// TestClosed compares calls on a closed handle, and on none.
func TestClosed(t *testing.T) {
	o := kinds["first-come"]
	o.Name, o.Dir = "closed", directory(t)
	seg := fatal.Value(shm.Create(o))(t)
	defer seg.Close()
	c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
	fatal.If(t, errors.Join(c.Close(), c.Close()))
	var results [2][]any
	for k, closed := range []client{&goClient{c: c, seg: seg}, &cClient{}} {
		got, _ := closed.get(1, make([]byte, 300))
		viewed, _ := closed.view(1)
		gathered, _ := closed.gather([]int{1}, -1, make([]byte, 300), 300, 1)
		states, _ := closed.states(0, 1)
		verified, _, _ := closed.verify(0, 1)
		stats, _ := closed.stats()
		results[k] = []any{got, viewed, gathered, states, verified, stats, closed.set(1, [][]byte{make([]byte, 300)}, 0),
			closed.state(1), closed.peek(1, make([]byte, 300)), closed.recover(), closed.clear(1)}
	}
	if !reflect.DeepEqual(results[0], results[1]) {
		t.Fatalf("Go %v, C %v", results[0], results[1])
	}
}
