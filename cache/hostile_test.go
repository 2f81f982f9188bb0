package cache_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/fatal"
	sweeps "github.com/stocached/stocached/internal/verify/hostile"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/diskfile"

	"golang.org/x/sys/unix"
)

// Ensure that no word of a segment, whatever a stray write makes of it, ends a process, keeps a call for ever, or leads
// out of the payload. Each word is overwritten in turn: so a new field is tried as well.

const (
	hostileSamples = 16
	hostileBytes   = 1000
	// patience is for the longest wait for a call: a clear that claims of live clients stop waits for its context.
	patience = 2 * time.Minute
)

// hostileSegments are caches of each kind and each policy, small, so that each table ends soon.
func hostileSegments(t *testing.T) map[string]func(*testing.T) *shm.Segment {
	made := map[string]func(*testing.T) *shm.Segment{}
	add := func(name string, o shm.Options) {
		o.Samples, o.ClientRecords = hostileSamples, 4
		made[name] = func(t *testing.T) *shm.Segment { return mapped(t, o) }
	}
	add("first-indices", shm.Options{Slots: 8, SampleBytes: hostileBytes, Policy: shm.PolicyFirstIndices})
	add("arena", shm.Options{Variable: true, SampleBytes: hostileBytes, Limit: 4 << 20, Lengths: true})
	for policy := shm.PolicyFirstCome; policy <= shm.PolicyPlanned; policy++ {
		if policy == shm.PolicyFirstIndices {
			continue
		}
		add(policy.String(), shm.Options{Slots: 8, SampleBytes: hostileBytes, Policy: policy})
		if policy.Evicts() {
			made["chains "+policy.String()] = func(t *testing.T) *shm.Segment {
				return mapped(t, chained(t, policy, hostileSamples, 32, 256))
			}
		}
	}
	for name, o := range map[string]shm.Options{
		"disk":       {SampleBytes: hostileBytes},
		"disk lru":   {SampleBytes: hostileBytes, Policy: shm.PolicyLRU},
		"disk arena": {SampleBytes: hostileBytes, Variable: true},
	} {
		o.Samples, o.Limit, o.Fingerprint = hostileSamples, 3<<20, "hostile"
		made[name] = func(t *testing.T) *shm.Segment {
			seg, _, err := diskfile.OpenShared(filepath.Join(t.TempDir(), "disk"), o)
			fatal.If(t, err)
			t.Cleanup(func() { seg.Close() })
			return seg.Segment
		}
	}
	return made
}

// words are all words of a segment between header and payload: their offsets.
func words(seg *shm.Segment) (all []uint64) {
	add := func(from, bytes uint64) {
		for at := from; at < from+bytes && from > 0; at += 8 {
			all = append(all, at)
		}
	}
	add(shm.ControlOffset, shm.ControlBytes)
	add(shm.ClientsOffset, min(3, uint64(seg.ClientRecords))*shm.ClientRecordBytes)
	add(seg.IndexOffset, seg.Samples*shm.IndexRecordBytes)
	add(seg.SumsOffset, seg.Samples*shm.SumRecordBytes)
	if seg.LengthsOffset != 0 {
		add(seg.LengthsOffset, seg.Samples*shm.LengthBytes)
	}
	add(seg.SlotTableOffset, seg.Slots*shm.SlotRecordBytes)
	add(seg.ReferenceOffset, seg.Slots)
	if seg.Chains() {
		add(seg.GroupsOffset, seg.Groups()*shm.GroupRecordBytes)
	}
	return all
}

// at is the word at an offset of a segment.
func at(seg *shm.Segment, offset uint64) *atomic.Uint64 {
	return seg.ClientWord(0, offset-shm.ClientsOffset) // a word before the table wraps around
}

// hostile returns values for a word that had one: bounds, parts of the word that are 0, 1 or all ones, and any bits.
func hostile(was uint64, rng *rand.Rand) []uint64 {
	values := []uint64{0, 1, 1<<64 - 1, 1 << 63, was + 1, was - 1, was ^ 1<<rng.IntN(64), rng.Uint64()}
	for shift := 0; shift < 64; shift += 16 {
		part := uint64(1<<16-1) << shift
		values = append(values, was&^part, was|part, was&^part|1<<shift, was&^part|rng.Uint64()&part)
	}
	for _, bound := range []uint64{hostileSamples, 8, 32, 4096, hostileBytes} {
		values = append(values, bound, bound+1, bound<<32|was&(1<<32-1), (bound+1)<<32|was&(1<<32-1))
	}
	return values
}

// within calls f and ends the program, with all stacks, if it does not return.
func within(what string, f func()) {
	late := time.AfterFunc(patience, func() {
		debug.SetTraceback("all")
		panic(what + ": a call does not come back")
	})
	defer late.Stop()
	f()
}

// hostileMemory has what everything reads into. New memory for each call takes a third of the time.
var hostileMemory = sync.Pool{New: func() any { return new([4 << 20]byte) }}

// everything calls what a program may call, once. An error is one of those that are documented.
func everything(t *testing.T, c *cache.Cache, rng *rand.Rand) {
	check := func(err error) {
		for _, known := range []error{nil, shm.ErrCorrupt, shm.ErrSchema, shm.ErrLost, shm.ErrInvalid, shm.ErrSystem,
			shm.ErrTimeout, shm.ErrFull, shm.ErrFormat} {
			if errors.Is(err, known) {
				return
			}
		}
		t.Error(err)
	}
	seg := c.Segment()
	samples, most := int(min(hostileSamples, seg.Samples)), int(min(seg.Header.SampleBytes, 1<<20))
	i, size := rng.IntN(samples), most
	if seg.Variable() {
		size = 1 + rng.IntN(most)
	}
	memory := hostileMemory.Get().(*[4 << 20]byte)
	defer hostileMemory.Put(memory)
	buffer := memory[:most:most]
	room := func(n uint64) []byte {
		if n > 3<<20 {
			return make([]byte, n)
		}
		return memory[1<<20:][:n:n]
	}
	_, _, err := c.Get(i, buffer[:size])
	check(err)
	data, _, err := c.ReadOwn(i, c.Copy, func(n int) []byte {
		if uint64(n) > seg.Header.SampleBytes {
			t.Errorf("sample %d wants memory for %d bytes", i, n)
		}
		return room(uint64(n))
	})
	check(err)
	_ = data
	if !seg.OnDisk() {
		_, _, err = c.View(i)
		check(err)
		indices, lengths, offsets := []int{i, 0, samples - 1}, make([]uint64, 3), make([]uint64, 3)
		if seg.Variable() {
			_, err = c.Lengths(indices, lengths)
			check(err)
			total := uint64(0)
			for k, n := range lengths {
				if offsets[k] = total; n != cache.Miss {
					total += n
				}
			}
			_, err = c.GatherPacked(indices, room(total), offsets, lengths, nil, 1)
		} else {
			_, err = c.Gather(indices, room(uint64(3*most)), cache.GatherOptions{Stride: most})
			check(err)
			_, _, err = c.Peek(i, buffer)
		}
		check(err)
	}
	_, err = c.SetLoaded(i, [][]byte{buffer[:size]}, cache.Flags(rng.IntN(2))*cache.Overwrite, time.Duration(rng.IntN(1e6)))
	check(err)
	for _, publish := range []bool{true, false} {
		claim, _, err := c.Claim((i+1)%samples, size, cache.Overwrite)
		check(err)
		if claim != nil {
			_, err = claim.WriteAt(buffer[:size], 0)
			check(err)
			if publish {
				check(claim.Publish())
			} else {
				check(claim.Abort())
			}
		}
	}
	check(c.Drop((i + 2) % samples))
	_, err = c.Verify(0, samples)
	check(err)
	for range c.Ready() {
	}
	_, err = c.Stats()
	check(err)
	_, err = c.Clients()
	check(err)
	check(c.Costs(0, make([]cache.Cost, samples)))
	check(c.States(0, make([]cache.State, samples)))
	_, err = c.Recover()
	check(err)
	if rng.IntN(8) == 0 {
		ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		_, err = c.Clear(ctx)
		check(err)
	}
}

// sealed makes the checksum of a header again.
func sealed(page []byte) []byte {
	binary.LittleEndian.PutUint32(page[shm.HeaderCRC:], 0)
	binary.LittleEndian.PutUint32(page[shm.HeaderCRC:], crc32.Checksum(page, shm.Castagnoli))
	return page
}

// laidOut gives a header the offsets and sizes that follow from its other numbers, as a writer that lies would. It
// returns the size of the file; 0: there is none, or it is larger than a test wants.
func laidOut(page []byte) uint64 {
	le := binary.LittleEndian
	g, err := shm.NewGeometry(le.Uint32(page[shm.HeaderFlags:]), shm.Policy(le.Uint32(page[shm.HeaderPolicy:])),
		le.Uint64(page[shm.HeaderSamples:]), le.Uint64(page[shm.HeaderSlots:]), le.Uint64(page[shm.HeaderSlotStride:]),
		le.Uint32(page[shm.HeaderClientRecords:]), le.Uint64(page[shm.HeaderPayloadBytes:]))
	if err != nil || g.SegmentBytes > 64<<20 {
		return 0
	}
	for offset, value := range map[int]uint64{shm.HeaderSegmentBytes: g.SegmentBytes, shm.HeaderIndexOffset: g.IndexOffset,
		shm.HeaderSumsOffset: g.SumsOffset, shm.HeaderLengthsOffset: g.LengthsOffset, shm.HeaderSlotTableOffset: g.SlotTableOffset, shm.HeaderGroupsOffset: g.GroupsOffset,
		shm.HeaderReferenceOffset: g.ReferenceOffset, shm.HeaderPayloadOffset: g.PayloadOffset, shm.HeaderPayloadBytes: g.PayloadBytes} {
		le.PutUint64(page[offset:], value)
	}
	return g.SegmentBytes
}

// used returns a segment that a client has used, the client, and random numbers of this stream of a seed.
func used(t *testing.T, create func(*testing.T) *shm.Segment, seed, stream uint64) (*shm.Segment, *cache.Cache, *rand.Rand) {
	rng := rand.New(rand.NewPCG(seed, stream))
	seg := create(t)
	c := attach(t, seg)
	c.PlentyOfMemory()
	for range 4 {
		everything(t, c, rng)
	}
	return seg, c, rng
}

// Ensure that no header with a correct checksum, whatever its fields say, ends a process: attach refuses it, or the
// cache is one that works. Each word is overwritten in turn, alone and with all numbers that follow from it.
func TestHostileHeaders(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for name, create := range hostileSegments(t) {
		if strings.HasPrefix(name, "disk") {
			continue // their header is checked by the same code
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seg, _, rng := used(t, create, seed, 3)
			all, accepted := make([]byte, seg.PayloadOffset), 0
			fatal.Value(unix.Pread(seg.FD(), all, 0))(t)
			all = bytes.TrimRight(all, "\x00") // most of a control part is empty, and each trial writes all
			for offset := 0; offset < shm.HeaderBytes; offset += 8 {
				values := hostile(binary.LittleEndian.Uint64(all[offset:]), rng)
				if !sweeps.All {
					rng.Shuffle(len(values), func(a, b int) { values[a], values[b] = values[b], values[a] })
					values = values[:1]
					if offset < shm.HeaderFingerprint || offset-shm.HeaderFields < shm.FieldBytes && offset >= shm.HeaderFields {
						values = values[:2] // numbers; the rest is text, or reserved
					}
				}
				for _, value := range values {
					for _, how := range []string{"alone", "laid out", "laid out in the same file"} {
						page, size := bytes.Clone(all[:shm.HeaderBytes]), seg.SegmentBytes
						binary.LittleEndian.PutUint64(page[offset:], value)
						if how != "alone" {
							if size = laidOut(page); size == 0 {
								continue
							}
						}
						if how == "laid out in the same file" {
							size = seg.SegmentBytes
						}
						within(fmt.Sprintf("word %d of the header becomes %#x", offset, value), func() {
							if tryHeader(t, sealed(page), all[shm.HeaderBytes:], size, rng) {
								accepted++
							}
						})
						if t.Failed() {
							t.Fatalf("word %d of the header became %#x, %s", offset, value, how)
						}
					}
				}
			}
			if accepted == 0 {
				t.Error("no header was accepted: uuid and time may have any value")
			}
		})
	}
}

// tryHeader calls everything on a file with such a header, if attach accepts it.
func tryHeader(t *testing.T, page, rest []byte, size uint64, rng *rand.Rand) (accepted bool) {
	fd := fatal.Value(unix.MemfdCreate("stoctest", unix.MFD_CLOEXEC))(t)
	defer unix.Close(fd)
	fatal.Value(unix.Pwrite(fd, page, 0))(t)
	fatal.If(t, unix.Ftruncate(fd, int64(size)))
	seg, err := shm.OpenFD(fd, shm.OpenOptions{})
	if err != nil {
		if !errors.Is(err, shm.ErrFormat) && !errors.Is(err, shm.ErrVersion) {
			t.Error(err)
		}
		return false
	}
	defer seg.Close()
	fatal.Value(unix.Pwrite(fd, rest[:min(uint64(len(rest)), size-shm.HeaderBytes)], shm.HeaderBytes))(t)
	c, err := cache.Attach(seg, cache.Options{})
	if err != nil { // no free record, say
		t.Log(err)
		return true
	}
	c.PlentyOfMemory()
	for range 2 {
		everything(t, c, rng)
	}
	_ = c.Close()
	return true
}

func TestHostileWords(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for name, create := range hostileSegments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seg, c, rng := used(t, create, seed, 0)
			all := words(seg)
			var rest []uint64 // as the words are between trials
			for _, offset := range all {
				rest = append(rest, at(seg, offset).Load())
			}
			for k, offset := range all {
				values := hostile(rest[k], rng)
				if !sweeps.All {
					if rng.IntN(2) == 0 {
						continue // each run tries half of the words
					}
					rng.Shuffle(len(values), func(a, b int) { values[a], values[b] = values[b], values[a] })
					values = values[:1]
				}
				for _, value := range values {
					within(fmt.Sprintf("word %d becomes %#x", offset, value), func() {
						other := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
						other.PlentyOfMemory()
						at(seg, offset).Store(value)
						everything(t, c, rng)
						everything(t, other, rng)
						_ = other.Close() // its record may have become one that is not possible
					})
					if t.Failed() {
						t.Fatalf("word %d became %#x", offset, value)
					}
					for k, offset := range all {
						at(seg, offset).Store(rest[k])
					}
				}
			}
		})
	}
}

// Words change while clients read and write. A client that closes then waits for its calls, and for nothing else.
func TestHostileWordsUnderWay(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 2_000
	if sweeps.All {
		rounds = 20_000
	}
	for name, create := range hostileSegments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seg := create(t)
			rng := rand.New(rand.NewPCG(seed, 1))
			all := words(seg)
			within("stray writes", func() {
				var busy sync.WaitGroup
				var stop atomic.Bool
				for n := range uint64(3) {
					busy.Go(func() {
						rng := rand.New(rand.NewPCG(seed, 2+n))
						for !stop.Load() {
							c, err := cache.Attach(seg, cache.Options{})
							if err != nil {
								t.Error(err)
								return
							}
							c.PlentyOfMemory()
							for range 20 {
								everything(t, c, rng)
							}
							_ = c.Close()
						}
					})
				}
				for range rounds {
					word := at(seg, all[rng.IntN(len(all))])
					values := hostile(word.Load(), rng)
					word.Store(values[rng.IntN(len(values))])
					if rng.IntN(50) == 0 { // at times a cache in which clients do more than fail
						for _, offset := range all {
							at(seg, offset).Store(0)
						}
					}
				}
				stop.Store(true)
				busy.Wait()
			})
		})
	}
}
