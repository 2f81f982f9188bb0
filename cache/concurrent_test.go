package cache_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/stress"
	"github.com/stocached/stocached/shm"
)

// Ensure that views may be under way when the handle and the segment close: each gives a sample, or ErrClosed. Between
// its look at the handle and its load of the word a view may sleep for any time, and Close does not wait for it.
func TestCloseUnderViews(t *testing.T) {
	for range 100 {
		seg := fatal.Value(shm.Create(shm.Options{Samples: 4, SampleBytes: 700}))(t)
		c := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
		var readers sync.WaitGroup
		var views atomic.Int64
		for range 4 {
			readers.Go(func() {
				for ; ; views.Add(1) {
					if _, _, err := c.View(1); errors.Is(err, shm.ErrClosed) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for views.Load() < 16 {
			runtime.Gosched()
		}
		expect.NoError(t, errors.Join(c.Close(), seg.Close()))
		readers.Wait()
	}
}

// Goroutines of several clients fill and read a cache in ordinary memory, where the race detector
// sees all bytes. Without clears and overwrites no byte of a sample is written after it is READY,
// so there is no race.
func TestGoroutinesOnTheHeap(t *testing.T) {
	for name, o := range map[string]shm.Options{
		"first-come":    {Samples: 200, Slots: 150, SampleBytes: 700},
		"first-indices": {Samples: 200, Slots: 150, SampleBytes: 700, Policy: shm.PolicyFirstIndices},
		"arena":         {Samples: 200, SampleBytes: 700, Variable: true, Limit: 4<<20 + 8<<10 + 120<<10},
	} {
		t.Run(name, func(t *testing.T) {
			seg := heap(t, o)
			var wait sync.WaitGroup
			var stored atomic.Int64
			for k := range 3 {
				c := attach(t, seg)
				for g := range 3 {
					wait.Go(func() {
						rng := rand.New(rand.NewPCG(uint64(k), uint64(g)))
						data, buffer, hit := make([]byte, 700), make([]byte, 700*4), make([]bool, 4)
						for n := range 1500 {
							i := rng.IntN(200)
							switch rng.IntN(6) {
							case 0: // in pieces; half of them are aborted
								claim, r, err := c.Claim(i, 700, 0)
								expect.NoError(t, err)
								if r != cache.Stored {
									break
								}
								stress.Fill(data, uint64(i), uint64(n), uint64(k))
								claim.WriteAt(data[350:], 350)
								claim.WriteAt(data[:350], 0)
								if n%2 == 0 {
									err = claim.Abort()
								} else if err = claim.Publish(); err == nil {
									stored.Add(1)
								}
								expect.NoError(t, err)
							case 1, 2:
								stress.Fill(data, uint64(i), uint64(n), uint64(k))
								r, err := c.Set(i, data, 0)
								expect.NoError(t, err)
								if r == cache.Stored {
									stored.Add(1)
								}
							case 3:
								if view, hit, err := c.View(i); err != nil || hit && stress.Verify(view, uint64(i)) != nil {
									t.Error("view", i, err)
								}
							case 4:
								if seg.Variable() {
									break
								}
								if _, err := c.Gather([]int{i, i, i, i}, buffer, cache.GatherOptions{Stride: 700, Hit: hit, Threads: 2}); err != nil {
									t.Error(err)
								}
								for row := range 4 {
									if hit[row] && stress.Verify(buffer[row*700:(row+1)*700], uint64(i)) != nil {
										t.Error("gather", i)
									}
								}
							default:
								if n, hit, err := c.Get(i, buffer); err != nil || hit && stress.Verify(buffer[:n], uint64(i)) != nil {
									t.Error("get", i, err)
								}
							}
						}
					})
				}
			}
			wait.Wait()
			c := attach(t, seg)
			s := stats(t, c)
			if s.Stored != uint64(stored.Load()) || s.Ready != s.Stored || s.Lost+s.Corrupt+s.Recovered != 0 || s.Stored < 100 {
				t.Errorf("%d stored, stats %+v", stored.Load(), s)
			}
			for i := range 200 { // fill the missing samples
				set := make([]byte, 700)
				stress.Fill(set, uint64(i), 1, 1)
				if r, err := c.Set(i, set, 0); err != nil || r == cache.Busy {
					t.Error(r, err)
				}
			}
			if s := stats(t, c); !seg.Variable() && s.Ready != 150 {
				t.Errorf("%d samples ready, %d slots", s.Ready, 150)
			}
			checkSound(t, seg)
		})
	}
}

// Ensure that a set that meets another client taking the last place for the same sample returns
// that result, and not Full.
func TestFullMeansThatItDoesNotFit(t *testing.T) {
	rounds := 20000
	if testing.Short() {
		rounds = 2000
	}
	for name, o := range map[string]shm.Options{
		"slots": {Samples: 1, SampleBytes: 100},
		"arena": {Samples: 1, SampleBytes: 80 << 10, Variable: true, Limit: 4<<20 + 8<<10 + 120<<10}, // holds one sample
	} {
		t.Run(name, func(t *testing.T) {
			seg := heap(t, o)
			clients := []*cache.Cache{attach(t, seg), attach(t, seg)}
			data := payload(0, 0, int(o.SampleBytes))
			for range rounds {
				var begun, stored atomic.Int32
				var wait sync.WaitGroup
				for _, c := range clients {
					wait.Go(func() {
						for begun.Add(1); begun.Load() < 2; {
							runtime.Gosched()
						}
						switch r, err := c.Set(0, data, 0); {
						case r == cache.Stored:
							stored.Add(1)
						case err != nil || r == cache.Full:
							t.Error(r, err)
						}
					})
				}
				wait.Wait()
				if r, err := clients[0].Clear(t.Context()); r != cache.Stored || err != nil || stored.Load() != 1 || t.Failed() {
					t.Fatalf("%v, %v, stored %d times", r, err, stored.Load())
				}
			}
			if s := stats(t, clients[0]); s.Exists+s.Busy != uint64(rounds) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// tornBytes is large enough that an overwrite happens during a copy.
const tornBytes = 120 << 10

// Overwrites and clears run during reads in mapped memory: each copy is one complete version.
func TestCopiesAreNeverTorn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // the kernel may stop such threads in the middle of a copy
	wantRetried := uint64(2)
	if runtime.NumCPU() == 1 {
		wantRetried = 0
		t.Log("one processor: copies may never meet an overwrite here, and then this tests little")
	}
	for name, o := range map[string]shm.Options{
		"slots": {Samples: 3, SampleBytes: tornBytes},
		"arena": {Samples: 3, SampleBytes: tornBytes, Variable: true, Limit: 64 << 20},
		// A slot is free for another sample at once: 40 are room for two of the three.
		"chains": chained(t, shm.PolicyFIFO, 3, 40, 8<<10),
	} {
		t.Run(name, func(t *testing.T) {
			seg := mapped(t, o)
			stop := make(chan struct{})
			var wait sync.WaitGroup
			work := func(f func(c *cache.Cache, n int) error) {
				c := attach(t, seg)
				wait.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						if err := f(c, n); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for w := range 2 {
				data := make([]byte, tornBytes)
				work(func(c *cache.Cache, n int) error {
					p := data
					if seg.Variable() {
						p = p[:32+n*997%(tornBytes-32)]
					}
					stress.Fill(p, uint64(n%3), uint64(n), uint64(w))
					_, err := c.Set(n%3, p, cache.Overwrite)
					return err
				})
			}
			work(func(c *cache.Cache, n int) error {
				time.Sleep(30 * time.Millisecond)
				_, err := c.Clear(t.Context())
				return err
			})
			var copies atomic.Int64
			buffer := make([]byte, tornBytes)
			work(func(c *cache.Cache, n int) error {
				length, hit, err := c.Get(n%3, buffer)
				if err == nil && hit {
					copies.Add(1)
					err = stress.Verify(buffer[:length], uint64(n%3))
				}
				return err
			})
			batch, hits, lengths := make([]byte, tornBytes*3), make([]bool, 3), make([]uint64, 3)
			offsets := []uint64{0, 1 * tornBytes, 2 * tornBytes}
			work(func(c *cache.Cache, n int) error {
				all := []int{0, 1, 2}
				var err error
				if seg.Variable() {
					if _, err = c.Lengths(all, lengths); err == nil {
						_, err = c.GatherPacked(all, batch, offsets, lengths, hits, 1)
					}
				} else {
					_, err = c.Gather(all, batch, cache.GatherOptions{Stride: tornBytes, Hit: hits})
				}
				for k := 0; k < 3 && err == nil; k++ {
					length := tornBytes
					if seg.Variable() {
						length = int(lengths[k])
					}
					if hits[k] {
						copies.Add(1)
						err = stress.Verify(batch[tornBytes*k:tornBytes*k+length], uint64(k))
					}
				}
				return err
			})
			work(func(c *cache.Cache, n int) error { // a READY sample always matches its checksum
				v, err := c.Verify(0, 3)
				if err == nil && v.Corrupt > 0 {
					err = fmt.Errorf("%+v", v)
				}
				return err
			})
			c := attach(t, seg)
			s := stats(t, c)
			for end := time.Now().Add(30 * time.Second); time.Now().Before(end) &&
				(s.Retried < wantRetried || s.Clears < 5 || copies.Load() < 100); s = stats(t, c) {
				time.Sleep(10 * time.Millisecond)
			}
			close(stop)
			wait.Wait()
			t.Logf("%d copies, %d thrown away, %d stored, %d clears", copies.Load(), s.Retried, s.Stored, s.Clears)
			if s = stats(t, c); s.Retried < wantRetried || s.Clears < 5 || copies.Load() < 100 ||
				s.Lost+s.Corrupt+s.Recovered != 0 {
				t.Errorf("%+v", s)
			}
			checkSound(t, seg)
		})
	}
}

// A client dies while several of its goroutines fill: all its entries are reclaimed, also those of
// goroutines that lost a race for the same sample.
func TestDeadClientOfManyGoroutines(t *testing.T) {
	for _, o := range []shm.Options{{Samples: 40, Slots: 40, SampleBytes: 100},
		{Samples: 40, SampleBytes: 100, Variable: true, Limit: 5 << 20}} {
		seg := heap(t, o)
		c := attach(t, seg)
		locks := fatal.Value(seg.NewLocks())(t)
		dying := fatal.Value(cache.Attach(seg, cache.Options{Locks: locks}))(t)
		for i := range 20 {
			if _, r, err := dying.Claim(i, 100, 0); r != cache.Stored {
				t.Fatal(r, err)
			}
		}
		// As a second goroutine would leave it that listed sample 5 and lost the race, in an entry
		// before and one after.
		for _, e := range []int{31, 30} {
			entry, _ := seg.Claim(dying.Owner()-1, e)
			entry.Store(5 + 1)
		}
		first, intent := seg.Claim(dying.Owner()-1, 0)
		fifth, intentOfFifth := seg.Claim(dying.Owner()-1, 5)
		first.Store(5 + 1) // entries 0 and 5 change places, so that the one without an intent comes first
		fifth.Store(0 + 1)
		a, b := intent.Load(), intentOfFifth.Load()
		intent.Store(b)
		intentOfFifth.Store(a)
		locks.Close()
		expect.Gives(c.Recover())(t, 20)
		checkSound(t, seg)
		for i := range 40 {
			set(t, c, i, payload(i, 0, 100), 0, cache.Stored)
		}
		checkSound(t, seg)
	}
}

// The calls of a training loop allocate nothing.
func TestHotPathsDoNotAllocate(t *testing.T) {
	seg := mapped(t, shm.Options{Samples: 600, SampleBytes: 4096})
	c := attach(t, seg)
	data, batch, hit, indices := payload(0, 0, 4096), make([]byte, 256*4096), make([]bool, 256), make([]int, 256)
	for i := range 300 {
		set(t, c, i, data, 0, cache.Stored)
		indices[i%256] = i
	}
	n := 300
	for name, f := range map[string]func(){
		"view":             func() { c.View(7) },
		"view of a miss":   func() { c.View(599) },
		"get":              func() { c.Get(7, data) },
		"gather":           func() { c.Gather(indices, batch, cache.GatherOptions{Stride: 4096, Hit: hit}) },
		"gather threads":   func() { c.Gather(indices, batch, cache.GatherOptions{Stride: 4096, Hit: hit, Threads: 2}) },
		"set":              func() { c.Set(n, data, 0); n++ },
		"set that exists":  func() { c.Set(7, data, 0) },
		"set to overwrite": func() { c.Set(7, data, cache.Overwrite) },
		"state":            func() { c.State(7) },
	} {
		runs := 200
		if allocated := testing.AllocsPerRun(runs, f); allocated >= 0.5 && !raceDetector {
			t.Errorf("%s allocates %v times", name, allocated)
		}
	}
}

// Other clients overwrite samples with longer and shorter ones, while this one reads them into memory that it makes
// for each. Each sample comes whole.
func TestReadsOfSamplesThatGrow(t *testing.T) {
	for name, o := range map[string]shm.Options{
		"evicting": chained(t, shm.PolicyLRU, 4, 256, 256),
		"arena":    {Samples: 4, Variable: true, Limit: 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			seg := mapped(t, o)
			writer, reader := attach(t, seg), attach(t, seg)
			var versions [][]byte
			for k := range 8 {
				versions = append(versions, bytes.Repeat([]byte{byte(k)}, 1+600*k))
			}
			set(t, writer, 1, versions[7], 0, cache.Stored) // in an arena that does not evict, others keep this extent
			done := make(chan struct{})
			go func() {
				defer close(done)
				for n := range 20_000 {
					if r, err := writer.Set(1, versions[n%8], cache.Overwrite); err != nil || r != cache.Stored {
						t.Errorf("set: %v, %v", r, err)
						return
					}
				}
			}()
			check := func(data []byte) {
				if len(data) == 0 || !bytes.Equal(data, versions[data[0]]) {
					t.Errorf("a sample of %d bytes, that begins with %v", len(data), data[:min(len(data), 1)])
				}
			}
			for open := true; open && !t.Failed(); {
				select {
				case <-done:
					open = false
				default:
				}
				for _, data := range reader.Ready() {
					if seg.Policy.Evicts() { // a view shows what comes next
						check(data)
					}
				}
				data, hit, err := reader.ReadOwn(1, reader.Copy, func(n int) []byte { return make([]byte, n) })
				if err != nil {
					t.Error(err)
				} else if hit {
					check(data)
				}
			}
			<-done
		})
	}
}
