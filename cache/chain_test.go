package cache_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/decisions"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// chained returns the options of an arena that evicts.
func chained(t testing.TB, policy shm.Policy, samples, slots, stride uint64) shm.Options {
	t.Helper()
	g := fatal.Value(shm.NewGeometry(shm.FlagVariable, policy, samples, slots, stride, 8, 0))(t)
	return shm.Options{Samples: samples, Variable: true, Policy: policy, SlotBytes: stride, ClientRecords: 8,
		Limit: g.PayloadOffset + slots*stride}
}

// checkChains checks the samples and slots of an arena that evicts, while no client works.
func checkChains(t testing.TB, seg *shm.Segment) {
	t.Helper()
	layout := seg.WordLayout()
	owner := map[uint64]uint64{}
	for i := range seg.Samples {
		w, m := shm.Word(seg.Word(i).Load()), shm.Meta(seg.Meta(i).Load())
		switch w.State() {
		case shm.Empty:
			expect.Equal(t, layout.Place(w), 0, "place of sample %d, which is EMPTY", i)
			continue
		case shm.Ready:
		default:
			t.Errorf("sample %d is left in state %d by client %d", i, w.State(), w.Owner())
			continue
		}
		var parts [][]byte
		for s := layout.Place(w); s != 0; {
			l := shm.Link(seg.SlotSample(s - 1).Load())
			if other, taken := owner[s-1]; taken || l.Sample() != i+1 {
				t.Errorf("slot %d of sample %d is named by sample %d too (%v), and belongs to sample %d", s-1, i, other,
					taken, int(l.Sample())-1)
				break
			}
			owner[s-1] = i
			parts = append(parts, seg.Bytes((s-1)*seg.SlotStride, seg.SlotStride))
			s = l.Next()
		}
		crc, left := uint32(0), seg.Length(m)
		for k := len(parts) - 1; k >= 0; k-- {
			n := min(left, seg.SlotStride)
			crc = crc32.Update(crc, shm.Castagnoli, parts[k][:n])
			left -= n
		}
		if crc != seg.Checksum(i, m) || left != 0 {
			t.Errorf("sample %d of %d bytes in %d slots is READY and corrupt", i, seg.Length(m), len(parts))
		}
	}
	for s := range seg.Slots {
		named := shm.Link(seg.SlotSample(s).Load()).Sample()
		sample, taken := owner[s]
		from := uint64(shm.FreeFrom(seg.Group(s / shm.GroupSlots).Load()).From())
		switch {
		case named != 0 && (!taken || sample != named-1):
			t.Errorf("slot %d is lost: its table names sample %d, which does not have it", s, named-1)
		case named == 0 && s%shm.GroupSlots < from:
			t.Errorf("slot %d is free, and overlooked: the search begins at %d", s, from)
		}
	}
}

// Samples of any length are stored, overwritten, evicted, removed and read, by each policy: all copies
// are right, and no slot is lost.
func TestChains(t *testing.T) {
	for kind := policy.KindCost; kind <= policy.KindLFU; kind++ {
		for _, stride := range []uint64{64, 256, 8192} {
			t.Run(fmt.Sprintf("%s in slots of %d", kind, stride), func(t *testing.T) {
				const samples = 60
				seg := mapped(t, chained(t, shm.Policy(kind-1), samples, 1200*64/stride, stride))
				c, other := attach(t, seg), attach(t, seg)
				r := rand.New(rand.NewPCG(1, uint64(kind)))
				versions := map[int][]byte{}
				dst := make([]byte, 1<<16)
				for n := range 3000 {
					i := r.IntN(samples)
					size := int(1500 * math.Exp(r.NormFloat64()))
					switch r.IntN(8) {
					case 0, 1, 2, 3: // set or overwrite
						flags := cache.Flags(0)
						if r.IntN(2) == 0 {
							flags = cache.Overwrite
						}
						data := payload(i, n, size)
						got, err := c.SetLoaded(i, [][]byte{data[:size/3], data[size/3:]}, flags,
							time.Duration(1+r.IntN(1e6))*time.Microsecond)
						fatal.If(t, err)
						if got == cache.Stored {
							versions[i] = data
						}
					case 4: // in pieces, out of order
						k, got, err := c.Claim(i, size, 0)
						if err != nil || got == cache.Busy {
							t.Fatal(got, err)
						}
						if k == nil {
							break
						}
						data := payload(i, n, size)
						_, err1 := k.WriteAt(data[size/2:], int64(size/2))
						_, err2 := k.WriteAt(data[:size/2], 0)
						fatal.If(t, errors.Join(err1, err2))
						if n%3 == 0 {
							err = k.Abort()
						} else {
							err = k.Publish()
							versions[i] = data
						}
						fatal.If(t, err)
					default:
						length, hit, err := other.Get(i, dst)
						if err != nil || hit && string(dst[:length]) != string(versions[i]) {
							t.Fatalf("get %d: %d bytes, %v", i, length, err)
						}
					}
				}
				if v, err := other.Verify(0, samples); err != nil || v.Corrupt != 0 || v.Checked == 0 {
					t.Errorf("%+v, %v", v, err)
				}
				for i, data := range c.Ready() {
					if string(data) != string(versions[i]) {
						t.Errorf("sample %d has other bytes", i)
					}
				}
				s := stats(t, c)
				if s.Evicted == 0 || s.Corrupt != 0 || s.Lost != 0 || s.ArenaNextBytes > seg.PayloadBytes ||
					s.ArenaLostBytes != s.ArenaNextBytes-s.ReadyBytes {
					t.Errorf("%+v", s)
				}
				checkSound(t, seg)
				fatal.Gives(c.Clear(t.Context()))(t, cache.Stored)
				checkSound(t, seg)
				set(t, c, 1, payload(1, 1, 5000), 0, cache.Stored)
				wantSample(t, other, 1, payload(1, 1, 5000))
				if s := stats(t, c); s.Ready != 1 || s.ArenaNextBytes-s.ArenaLostBytes != 5000 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// A cache in one process takes exactly the slots and victims of the simulation that shows what is lost.
func TestChainsDecideAsSimulated(t *testing.T) {
	decisions.CompareChains(t, func(t *testing.T, o shm.Options) (*shm.Segment, decisions.Client) {
		seg := heap(t, o)
		t.Cleanup(func() { checkSound(t, seg) })
		return seg, decider{t, attach(t, seg)}
	})
}

// Packed gathers copy samples of any length, and views are refused.
func TestChainsGather(t *testing.T) {
	seg := mapped(t, chained(t, shm.PolicyRandom, 10, 64, 256))
	c := attach(t, seg)
	indices, lengths := []int{3, 4, 5, 9}, make([]uint64, 4)
	for k, i := range indices[:3] {
		set(t, c, i, payload(i, 1, 700*k), 0, cache.Stored)
	}
	if n, err := c.Lengths(indices, lengths); n != 3 || err != nil || lengths[2] != 1400 || lengths[3] != cache.Miss {
		t.Fatal(n, err, lengths)
	}
	dst, hit := make([]byte, 3000), make([]bool, 4)
	n, err := c.GatherPacked(indices, dst, []uint64{0, 10, 800, 0}, lengths, hit, 2)
	if n != 3 || err != nil || string(dst[10:710]) != string(payload(4, 1, 700)) ||
		string(dst[800:2200]) != string(payload(5, 1, 1400)) || hit[3] {
		t.Error(n, err, hit)
	}
	if _, hit, err := c.View(3); hit || !errors.Is(err, shm.ErrInvalid) {
		t.Errorf("view: %v, %v", hit, err)
	}
	set(t, c, 1, payload(1, 1, 64*256+1), 0, cache.Full) // larger than the arena
	set(t, c, 1, payload(1, 1, 64*256), 0, cache.Stored) // as large as it
	if s := stats(t, c); s.Ready != 1 || s.Evicted != 3 || s.ArenaLostBytes != 0 {
		t.Errorf("%+v", s)
	}
	checkSound(t, seg)
}

// chainLength is the length of a sample in the tests of several clients.
func chainLength(i int) int { return 100 + i*i%1900 }

// Clients set and get samples of different sizes together.
func TestChainsTogether(t *testing.T) {
	for kind := policy.KindCost; kind <= policy.KindLFU; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			evictTogether(t, heap(t, chained(t, shm.Policy(kind-1), 100, 96, 256)), chainLength)
		})
	}
}

// After 50 epochs of lognormal sizes at most 15 % of an arena are lost, as stats shows.
func TestChainsLoss(t *testing.T) {
	const samples = 1000
	for _, sigma := range []float64{0.6, 1.2} {
		for _, p := range []shm.Policy{shm.PolicyRandom, shm.PolicyCost} {
			t.Run(fmt.Sprintf("sigma %v, %s", sigma, p), func(t *testing.T) {
				r := rand.New(rand.NewPCG(5, 6))
				lengths, total := make([]int, samples), 0
				for i := range lengths {
					lengths[i] = int(2000 * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2))
					total += lengths[i]
				}
				o := chained(t, p, samples, uint64(total/2)/128, 128)
				o.SlotBytes = 0 // the rule
				seg := heap(t, o)
				c := attach(t, seg)
				data := make([]byte, total)
				for range 50 {
					for _, i := range r.Perm(samples) {
						if s, _ := c.State(i); s != cache.StateReady {
							took := time.Duration(lengths[i]) * time.Duration(50+i*7919%100) * time.Microsecond
							fatal.Value(c.SetLoaded(i, [][]byte{data[:lengths[i]]}, 0, took))(t)
						}
					}
				}
				s := stats(t, c)
				lost := 1 - float64(s.ReadyBytes)/float64(seg.PayloadBytes)
				t.Logf("%.1f %% lost, %d evicted, %d refused", 100*lost, s.Evicted, s.Full)
				if lost > 0.15 || s.Evicted == 0 {
					t.Errorf("%.1f %% lost, %d evicted", 100*lost, s.Evicted)
				}
				checkSound(t, seg)
			})
		}
	}
}

// Without memory a set takes no slot that was never filled. It evicts, and takes slots that have pages.
func TestChainsShortOfMemory(t *testing.T) {
	seg := mapped(t, chained(t, shm.PolicyFIFO, 20, 64, 4096))
	c := attach(t, seg)
	for i := range 8 {
		set(t, c, i, payload(i, 1, 4*4096), 0, cache.Stored) // half of the slots
	}
	before := stats(t, c).AllocatedBytes
	c.ShortOfMemory()
	for i := 8; i < 20; i++ {
		set(t, c, i, payload(i, 1, 3*4096), 0, cache.Stored)
		wantSample(t, c, i, payload(i, 1, 3*4096))
	}
	if s := stats(t, c); s.AllocatedBytes > before || s.Evicted == 0 {
		t.Errorf("%d bytes allocated, %d before; %d evicted", s.AllocatedBytes, before, s.Evicted)
	}
	checkSound(t, seg)
}

// A sample that gets no slots has its cost and its length in meta, so the cost of a byte is known.
func TestChainsKeepLengths(t *testing.T) {
	seg := mapped(t, chained(t, shm.PolicyCost, 4, 16, 256))
	c := attach(t, seg)
	for i, want := range []cache.Result{cache.Stored, cache.Full} {
		length := []int{16 * 256, 1234}[i]
		r, err := c.SetLoaded(i, [][]byte{payload(i, 1, length)}, 0, []time.Duration{4 * time.Millisecond, time.Millisecond}[i])
		m := shm.Meta(seg.Meta(uint64(i)).Load())
		if r != want || err != nil || seg.Length(m) != uint64(length) || m.Cost() == 0 {
			t.Errorf("sample %d: %v, %v, %d bytes, cost %d", i, r, err, seg.Length(m), m.Cost())
		}
	}
}

// Words of the slot table that are impossible are reported, and lead nowhere outside the payload.
func TestChainsCorrupt(t *testing.T) {
	for name, damage := range map[string]func(*shm.Segment, uint64){
		"a slot outside": func(seg *shm.Segment, s uint64) {
			seg.SlotSample(s).Store(uint64(shm.NewLink(2, 1<<32-1, true)))
		},
		"a chain too long": func(seg *shm.Segment, s uint64) {
			seg.SlotSample(s).Store(uint64(shm.NewLink(2, s+1, true)))
		},
		"a chain too short": func(seg *shm.Segment, s uint64) {
			seg.Meta(1).Store(uint64(shm.Meta(seg.Meta(1).Load()).With(60000)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			seg := mapped(t, chained(t, shm.PolicyFIFO, 4, 16, 256))
			c := attach(t, seg)
			set(t, c, 1, payload(1, 1, 1000), 0, cache.Stored)
			s := seg.WordLayout().Place(shm.Word(seg.Word(1).Load())) - 1
			damage(seg, s)
			if _, hit, err := c.Get(1, make([]byte, 1<<16)); hit || !errors.Is(err, shm.ErrCorrupt) {
				t.Errorf("get: %v, %v", hit, err)
			}
			if v, err := c.Verify(0, 4); err != nil || v.Corrupt != 1 {
				t.Errorf("%+v, %v", v, err)
			}
			if _, err := c.Set(1, payload(1, 2, 2000), cache.Overwrite); err != nil && !errors.Is(err, shm.ErrCorrupt) {
				t.Error(err)
			}
		})
	}
}
