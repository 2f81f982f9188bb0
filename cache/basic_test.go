package cache_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/shm"
)

// kinds are the segments of most tests: each way to place samples, in ordinary memory and mapped.
func kinds(t *testing.T, run func(t *testing.T, make func(t testing.TB, o shm.Options) *shm.Segment, o shm.Options)) {
	for _, where := range []struct {
		name string
		make func(t testing.TB, o shm.Options) *shm.Segment
	}{{"heap", heap}, {"mapped", mapped}} {
		for _, how := range []struct {
			name string
			o    shm.Options
		}{
			{"first-come", shm.Options{Samples: 16, Slots: 8, SampleBytes: 1000, ClientRecords: 16}},
			{"first-indices", shm.Options{Samples: 16, Slots: 8, SampleBytes: 1000, ClientRecords: 16,
				Policy: shm.PolicyFirstIndices}},
			{"arena", shm.Options{Samples: 16, SampleBytes: 1000, ClientRecords: 16, Variable: true, Limit: 5 << 20}},
		} {
			t.Run(how.name+" "+where.name, func(t *testing.T) { run(t, where.make, how.o) })
		}
	}
}

// Each client finds stored samples by each way of reading. Other samples are misses.
func TestSetGetView(t *testing.T) {
	kinds(t, func(t *testing.T, make func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := make(t, o)
		a, b := attach(t, seg), attach(t, seg)
		if a.Owner() == b.Owner() {
			t.Fatal("two clients with one owner number")
		}
		wantMiss(t, a, 3)
		set(t, a, 3, payload(3, 0, 1000), 0, cache.Stored)
		set(t, b, 3, payload(3, 1, 1000), 0, cache.Exists)
		wantSample(t, a, 3, payload(3, 0, 1000))
		wantSample(t, b, 3, payload(3, 0, 1000))
		set(t, b, 3, payload(3, 1, 1000), cache.Overwrite, cache.Stored)
		wantSample(t, a, 3, payload(3, 1, 1000))
		wantMiss(t, b, 4)
		s := stats(t, a)
		if s.Hits != 6 || s.Misses != 2 || s.Stored != 2 || s.Exists != 1 || s.StoredBytes != 2000 || s.Ready != 1 ||
			s.ReadyBytes != 1000 || s.ClientsLive != 2 {
			t.Errorf("stats %+v", s)
		}
		checkSound(t, seg)
	})
}

// A cache holds as many samples as it has slots, and then returns the reason.
func TestFull(t *testing.T) {
	seg := mapped(t, shm.Options{Samples: 16, Slots: 8, SampleBytes: 100})
	c := attach(t, seg)
	for i := range 8 {
		set(t, c, 15-i, payload(i, 0, 100), 0, cache.Stored)
	}
	set(t, c, 0, payload(0, 0, 100), 0, cache.Full)
	set(t, c, 15, payload(0, 0, 100), 0, cache.Exists)
	for i := range 8 {
		wantSample(t, c, 15-i, payload(i, 0, 100))
	}
	checkSound(t, seg)

	seg = mapped(t, shm.Options{Samples: 16, Slots: 8, SampleBytes: 100, Policy: shm.PolicyFirstIndices})
	c = attach(t, seg)
	set(t, c, 7, payload(7, 0, 100), 0, cache.Stored)
	set(t, c, 8, payload(8, 0, 100), 0, cache.Out)
	if shm.WordLayout(seg.WordLayout()).Place(shm.Word(seg.Word(7).Load())) != 8 {
		t.Error("sample 7 is not in slot 7")
	}
	states := make([]cache.State, 16)
	if err := c.States(0, states); err != nil || states[7] != cache.StateReady || states[6] != cache.StateEmpty || states[8] != cache.StateOut {
		t.Error("states", states, err)
	}
	checkSound(t, seg)
}

// Invalid calls return the error of their kind and change nothing.
func TestBadCalls(t *testing.T) {
	kinds(t, func(t *testing.T, create func(testing.TB, shm.Options) *shm.Segment, o shm.Options) {
		seg := create(t, o)
		c := attach(t, seg)
		set(t, c, 1, payload(1, 0, 1000), 0, cache.Stored)
		buffer := make([]byte, 1000)
		if n, _, err := c.Get(1, buffer[:999]); !errors.Is(err, shm.ErrSchema) || n != 1000 {
			t.Errorf("get into a short buffer: %d, %v", n, err)
		}
		for _, i := range []int{-1, 16, 1 << 40, -1 << 63} {
			_, _, err := c.Get(i, buffer)
			_, _, err2 := c.View(i)
			_, err3 := c.Set(i, buffer, 0)
			_, err4 := c.State(i)
			_, _, err5 := c.Peek(i, buffer)
			_, err6 := c.Gather([]int{1, i}, make([]byte, 2000), cache.GatherOptions{Stride: 1000})
			_, err7 := c.GatherPacked([]int{1, i}, buffer, []uint64{0, 0}, []uint64{1000, 1000}, nil, 1)
			_, err8 := c.Lengths([]int{i}, make([]uint64, 1))
			_, _, err9 := c.Claim(i, 1000, 0)
			for k, err := range []error{err, err2, err3, err4, err5, err6, err7, err8, err9} {
				if seg.Variable() && k == 5 {
					continue
				}
				if !errors.Is(err, shm.ErrIndex) {
					t.Errorf("call %d with index %d: %v", k, i, err)
				}
			}
		}
		for _, n := range []int{0, 1, 999, 1001} {
			if seg.Variable() && n < 1000 {
				continue
			}
			if _, err := c.Set(2, make([]byte, n), 0); !errors.Is(err, shm.ErrSchema) {
				t.Errorf("set of %d bytes: %v", n, err)
			}
			if _, _, err := c.Claim(2, n, 0); !errors.Is(err, shm.ErrSchema) {
				t.Errorf("claim of %d bytes: %v", n, err)
			}
		}
		expect.Fails(c.Set(2, buffer, 4))(t, shm.ErrInvalid)
		if _, _, err := c.Claim(2, -1, 0); !errors.Is(err, shm.ErrInvalid) {
			t.Errorf("claim of -1 bytes: %v", err)
		}
		expect.Error(t, c.States(10, make([]cache.State, 7)), shm.ErrIndex)
		expect.Fails(c.Verify(0, 17))(t, shm.ErrIndex)
		if s := stats(t, c); s.Stored != 1 || s.Corrupt != 0 || s.Busy != 0 || s.Hits != 0 {
			t.Errorf("bad calls were counted: %+v", s)
		}
		wantSample(t, c, 1, payload(1, 0, 1000))
		checkSound(t, seg)
	})
}

// A batch has the right rows, and rows of misses keep their bytes.
func TestGather(t *testing.T) {
	fields := []shm.Field{{Name: "image", DType: shm.Uint8, Dims: []uint64{3, 7}},
		{Name: "label", DType: shm.Int64, Dims: nil}}
	seg := mapped(t, shm.Options{Samples: 100, Slots: 50, Fields: fields})
	c := attach(t, seg)
	size := int(seg.Header.SampleBytes)
	for i := range 50 {
		set(t, c, 2*i, payload(2*i, 0, size), 0, cache.Stored)
	}
	var indices []int
	for k := range 300 {
		indices = append(indices, k*37%100)
	}
	for _, threads := range []int{0, 1, 2, 5} {
		for field := -1; field < 2; field++ {
			skip, row, name := 0, size, ""
			if field >= 0 {
				f := seg.Header.Fields[field]
				skip, row, name = int(f.Offset), int(f.Bytes), f.Name
			}
			stride := row + 3
			dst := slices.Repeat([]byte{0xee}, 300*stride)
			hit := make([]bool, 300)
			n, err := c.Gather(indices, dst, cache.GatherOptions{Field: name, Stride: stride, Hit: hit, Threads: threads})
			if err != nil || n != 150 {
				t.Fatalf("gather: %d hits, %v", n, err)
			}
			for k, i := range indices {
				want := slices.Repeat([]byte{0xee}, stride)
				if i%2 == 0 {
					copy(want, payload(i, 0, size)[skip:skip+row])
				}
				if hit[k] != (i%2 == 0) || !slices.Equal(dst[k*stride:(k+1)*stride], want) {
					t.Fatalf("threads %d, field %d, row %d of sample %d: hit %v, bytes %x, want %x", threads, field, k, i, hit[k],
						dst[k*stride:(k+1)*stride], want)
				}
			}
		}
	}
	for name, call := range map[string]func() (int, error){
		"field": func() (int, error) {
			return c.Gather(indices, make([]byte, 300*size), cache.GatherOptions{Field: "none"})
		},
		"stride": func() (int, error) {
			return c.Gather(indices, make([]byte, 300*size), cache.GatherOptions{Stride: size - 1})
		},
		"dst": func() (int, error) {
			return c.Gather(indices, make([]byte, 300*size-1), cache.GatherOptions{Stride: size})
		},
		"stride < 0": func() (int, error) {
			return c.Gather(indices, make([]byte, 300*size), cache.GatherOptions{Stride: -size})
		},
		"no dst": func() (int, error) { return c.Gather(indices[:1], nil, cache.GatherOptions{Stride: size}) },
	} {
		if _, err := call(); !errors.Is(err, shm.ErrSchema) {
			t.Errorf("gather with a wrong %s: %v", name, err)
		}
	}
	if _, err := c.Gather(indices, make([]byte, 300*size), cache.GatherOptions{Stride: size, Hit: make([]bool, 299)}); !errors.Is(err, shm.ErrInvalid) {
		t.Errorf("gather with too few hits: %v", err)
	}
	expect.Gives(c.Gather(nil, nil, cache.GatherOptions{Stride: size}))(t, 0)
}

// Samples of different sizes are gathered by their lengths. A sample whose length has changed is a
// miss.
func TestGatherPacked(t *testing.T) {
	seg := mapped(t, shm.Options{Samples: 20, Variable: true, Limit: 5 << 20})
	c := attach(t, seg)
	indices := []int{}
	for i := range 20 {
		indices = append(indices, 19-i)
		if i%3 != 0 {
			set(t, c, i, payload(i, 0, i*7), 0, cache.Stored)
		}
	}
	lengths, offsets := make([]uint64, 20), make([]uint64, 20)
	n, err := c.Lengths(indices, lengths)
	if err != nil || n != 13 {
		t.Fatal(n, err)
	}
	var end uint64
	for k, l := range lengths {
		if (l == cache.Miss) != (indices[k]%3 == 0) {
			t.Fatalf("length of sample %d is %d", indices[k], l)
		}
		offsets[k] = end
		if l != cache.Miss {
			end += l
		}
	}
	set(t, c, 7, payload(7, 1, 3), cache.Overwrite, cache.Stored)
	dst, hit := make([]byte, end), make([]bool, 20)
	n, err = c.GatherPacked(indices, dst, offsets, lengths, hit, 3)
	if err != nil || n != 12 {
		t.Fatal(n, err)
	}
	for k, i := range indices {
		expect.Equal(t, hit[k], (i%3 != 0 && i != 7), "hit of sample %d", i)
		if hit[k] && !slices.Equal(dst[offsets[k]:offsets[k]+lengths[k]], payload(i, 0, i*7)) {
			t.Errorf("sample %d has other bytes", i)
		}
	}
	expect.Fails(c.GatherPacked(indices, dst[:end-1], offsets, lengths, hit, 1))(t, shm.ErrSchema)
	expect.Fails(c.GatherPacked(indices, dst, offsets[:19], lengths, hit, 1))(t, shm.ErrInvalid)
	checkSound(t, seg)
}
