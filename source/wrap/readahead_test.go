package wrap_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/internal/loadtime"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest/faults"
	"github.com/stocached/stocached/source/wrap"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestReadAheadSuite(t *testing.T) {
	for name, o := range map[string]wrap.ReadAheadOptions{"announced": {}, "whole blocks": {Blocks: true},
		"no room": {Size: 30, Blocks: true}} {
		t.Run(name, func(t *testing.T) {
			suite(t, func(s source.Source) (source.Source, error) { return wrap.ReadAhead(s, o) })
		})
	}
}

// ahead opens records with faults, in blocks of per unless it is 0, and reads ahead.
func ahead(t *testing.T, n, size, per int, o wrap.ReadAheadOptions, rules ...faults.Rule) (wrap.Ahead,
	*faults.Source, [][]byte) {
	t.Helper()
	inner, want := records(t, n, size)
	f := faults.Wrap(inner, rules...)
	var s source.Source = f
	if per > 0 {
		s = blocky{f, per}
	}
	a := fatal.Value(wrap.ReadAhead(s, o))(t)
	t.Cleanup(func() { a.Close() })
	return a, f, want
}

func wantSample(t *testing.T, s source.Source, want [][]byte, i int) {
	t.Helper()
	if got, err := readOne(s, i); err != nil || !bytes.Equal(got, want[i]) {
		t.Errorf("sample %d: %d bytes, %v", i, len(got), err)
	}
}

// Ensure that an announced sample is held when it is asked for, was read once, and is then dropped.
func TestReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f, want := ahead(t, 20, 24, 0, wrap.ReadAheadOptions{}, faults.Rule{Delay: time.Second})
		expect.Equal(t, a.Prefetch([]int{3, 7, 3, 11, -1, 20}), 4, "announced")
		time.Sleep(2 * time.Second)
		expect.Equal(t, a.Held(), 3*24, "bytes held")
		begun := time.Now()
		for _, i := range []int{11, 3, 7} {
			wantSample(t, a, want, i)
		}
		if took := time.Since(begun); took != 0 || f.TotalReads() != 3 || a.Held() != 0 {
			t.Errorf("%v, %d reads, %d bytes held", took, f.TotalReads(), a.Held())
		}
		wantSample(t, a, want, 3) // the second time reads the source
		wantSample(t, a, want, 4) // and so does a sample that was not announced
		if took := time.Since(begun); took != 2*time.Second || f.Reads(3) != 2 || f.Reads(4) != 1 {
			t.Errorf("%v, %d and %d reads", took, f.Reads(3), f.Reads(4))
		}
		a.Prefetch([]int{5})
		synctest.Wait()
		expect.Fails(a.Read(context.Background(), 5, make([]byte, 23)))(t, source.ErrShort)
		wantSample(t, a, want, 5) // while it is read ahead, and after a reader whose buffer was too short
		if took := time.Since(begun); took != 3*time.Second || f.Reads(5) != 1 {
			t.Errorf("%v, %d reads", took, f.Reads(5))
		}
		a.Close()
	})
}

// Ensure that an error of a read ahead is ignored: the Read of the sample tries again and returns
// its own error.
func TestReadAheadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f, want := ahead(t, 20, 24, 0, wrap.ReadAheadOptions{},
			faults.Rule{Samples: []int{1}, Times: 1, Err: unix.EIO}, faults.Rule{Samples: []int{2}, Err: unix.EIO})
		a.Prefetch([]int{1, 2, 3})
		synctest.Wait()
		expect.Equal(t, a.Held(), 24, "bytes held")
		wantSample(t, a, want, 1)
		if _, err := readOne(a, 2); !errors.Is(err, unix.EIO) || f.Reads(2) != 2 {
			t.Errorf("%v, %d reads", err, f.Reads(2))
		}
		wantSample(t, a, want, 3)
		a.Close()
	})
}

// Ensure that the bytes held stay within Size, that reading ahead continues in the announced order
// when bytes are free, and that no announced sample is lost.
func TestReadAheadBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f, want := ahead(t, 100, 24, 0, wrap.ReadAheadOptions{Size: 10*24 + 5, Readers: 3},
			faults.Rule{Delay: time.Millisecond})
		order := rand.Perm(100)
		expect.Equal(t, a.Prefetch(order), 100, "announced")
		for k, i := range order {
			time.Sleep(10 * time.Millisecond)
			if n := a.Held(); n > 10*24 {
				t.Errorf("%d bytes held", n)
			}
			expect.Equal(t, f.TotalReads(), min(k+10, 100), "reads when %d were asked for", k)
			wantSample(t, a, want, i)
		}
		if f.TotalReads() != 100 || a.Held() != 0 {
			t.Errorf("%d reads of 100 samples, %d bytes held", f.TotalReads(), a.Held())
		}
		a.Close()
	})
}

// Ensure that a Read that comes before its sample is read ahead does not wait for it, and that the
// sample is not read again.
func TestReadAheadOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		a, f, want := ahead(t, 20, 24, 0, wrap.ReadAheadOptions{Readers: 1}, faults.Rule{Samples: []int{0}, Stuck: stuck})
		a.Prefetch([]int{0, 1, 2})
		synctest.Wait()
		wantSample(t, a, want, 1)
		close(stuck)
		synctest.Wait()
		if f.Reads(0) != 1 || f.Reads(1) != 1 || f.Reads(2) != 1 || a.Held() != 2*24 {
			t.Errorf("%d reads, %d bytes held", f.TotalReads(), a.Held())
		}
		a.Close()
	})
}

// Ensure that a Read of a block drops the held block that was untouched for longest.
func TestReadAheadDropsTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f, want := ahead(t, 60, 24, 10, wrap.ReadAheadOptions{Size: 3 * 240, Blocks: true})
		for k, i := range []int{0, 10, 20, 1, 30, 2, 21} { // blocks 0 1 2, 0 again; 3 drops 1; 0 and 2 are still held
			time.Sleep(time.Second)
			wantSample(t, a, want, i)
			if blocks := min(k+1, 3) * 10; k < 4 && f.TotalReads() != blocks || k >= 4 && f.TotalReads() != 40 {
				t.Errorf("%d reads after %d samples", f.TotalReads(), k+1)
			}
		}
		wantSample(t, a, want, 11)
		expect.Equal(t, f.TotalReads(), 50, "reads: block 1 was still there")
		a.Close()
	})
}

// Ensure that samples that no reader asks for are dropped after a while.
func TestReadAheadForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f, want := ahead(t, 100, 24, 0, wrap.ReadAheadOptions{Size: 10 * 24, Keep: time.Hour})
		a.Prefetch(rand.Perm(50)[:10])
		time.Sleep(time.Minute)
		a.Prefetch([]int{60, 61})
		time.Sleep(58 * time.Minute)
		if f.Reads(60)+f.Reads(61) != 0 {
			t.Error("what was announced was dropped for something else")
		}
		time.Sleep(2 * time.Minute)
		if f.Reads(60) != 1 || f.Reads(61) != 1 || a.Held() > 10*24 {
			t.Errorf("%d, %d reads, %d bytes held", f.Reads(60), f.Reads(61), a.Held())
		}
		wantSample(t, a, want, 60)
		a.Close()
	})
}

// Ensure that a sample larger than Size is refused and read from the source, and that the queue is
// bounded.
func TestReadAheadRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, want := ahead(t, 100, 24, 0, wrap.ReadAheadOptions{Size: 23})
		expect.Equal(t, a.Prefetch([]int{1, 2}), 0, "announced")
		wantSample(t, a, want, 1)
		a.Close()
		stuck := make(chan struct{})
		many, _, want := ahead(t, 70_000, 2, 0, wrap.ReadAheadOptions{Size: 2, Readers: 1},
			faults.Rule{Stuck: stuck, Times: 1})
		all := make([]int, 70_000)
		for i := range all {
			all[i] = i
		}
		n := many.Prefetch(all)
		if n < 1<<16 || n > 1<<16+1 {
			t.Errorf("%d announced", n)
		}
		close(stuck)
		wantSample(t, many, want, 69_999)
		many.Close()
		if n := many.Prefetch(all); n != 0 || many.Held() != 0 {
			t.Errorf("%d announced, %d bytes held after Close", n, many.Held())
		}
	})
	for _, o := range []wrap.ReadAheadOptions{{Size: -1}, {Readers: -1}, {Readers: 2000}, {Keep: -1}} {
		if _, err := wrap.ReadAhead(nil, o); !errors.Is(err, source.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Ensure that a block is read whole where a call announces samples side by side, or most of the block, and that other samples
// are read alone. The samples of a block that no call announces stay while there is space.
func TestReadAheadOfBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f, want := ahead(t, 600, 24, 10, wrap.ReadAheadOptions{Size: 25 * 24}, faults.Rule{Delay: time.Millisecond})
		check := func(reads int, held int64, what string) {
			t.Helper()
			synctest.Wait()
			time.Sleep(time.Second)
			if f.TotalReads() != reads || a.Held() != held*24 {
				t.Errorf("%s: %d reads, %d bytes held", what, f.TotalReads(), a.Held())
			}
		}
		a.Prefetch([]int{312, 45, 131, 44})
		check(4, 4, "samples anywhere")
		for _, i := range []int{131, 45, 44, 312} {
			wantSample(t, a, want, i)
		}
		check(4, 0, "after their reads")
		a.Prefetch([]int{12, 15})
		check(14, 10, "samples side by side")
		for _, i := range []int{12, 15, 11} { // 11 was not announced
			wantSample(t, a, want, i)
		}
		check(14, 10, "after their reads")
		a.Prefetch([]int{16}) // the same block
		a.Prefetch([]int{408, 401, 406, 402, 403})
		check(24, 20, "most of a block")
		wantSample(t, a, want, 16)
		a.Prefetch([]int{30, 31})
		check(34, 20, "a block in the space of one of which no more was announced")
		wantSample(t, a, want, 406)
		wantSample(t, a, want, 31)
		check(34, 20, "after their reads")
		wantSample(t, a, want, 13)
		check(35, 20, "a sample that had to go")
		a.Close()

		a, f, want = ahead(t, 60, 24, 10, wrap.ReadAheadOptions{}, faults.Rule{Delay: time.Millisecond})
		for _, i := range rand.Perm(60) {
			a.Prefetch([]int{i})
			synctest.Wait()
			wantSample(t, a, want, i)
		}
		check(60, 0, "samples anywhere of blocks that all fit")
		a.Close()
	})
}

// Ensure that sources with a total share it, that each of them still reads, and that what one frees another one gets.
func TestReadAheadTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := wrap.ReadAheadOptions{Size: 20 * 24, Total: 30 * 24}
		first, _, want := ahead(t, 40, 24, 0, o)
		second, _, _ := ahead(t, 40, 24, 0, o)
		third, _, _ := ahead(t, 40, 24, 0, o)
		var all []int
		for i := range 20 {
			all = append(all, i)
		}
		for k, held := range []int64{20, 10, 1} {
			a := []wrap.Ahead{first, second, third}[k]
			a.Prefetch(all)
			time.Sleep(time.Second)
			expect.Equal(t, a.Held()/24, held, "samples of source %d", k)
		}
		for _, i := range all {
			wantSample(t, first, want, i)
		}
		time.Sleep(time.Second)
		if n := (first.Held() + second.Held() + third.Held()) / 24; n < 30 || n > 33 {
			t.Errorf("they hold %d samples", n)
		}
		time.Sleep(2 * time.Minute) // what nobody asks for in a minute goes
		third.Prefetch([]int{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39})
		time.Sleep(time.Minute)
		expect.Equal(t, third.Held()/24, 20, "samples held beside those that nobody asked for")
		for _, a := range []wrap.Ahead{first, second, third} {
			a.Close()
		}
		expect.Equal(t, wrap.Together(), 0, "bytes counted after the end")
	})
}

// Ensure that readers that read block by block have each block read once.
func TestReadAheadBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f, want := ahead(t, 600, 24, 10, wrap.ReadAheadOptions{Size: 17 * 240, Blocks: true},
			faults.Rule{Delay: time.Millisecond})
		order := windowed(60, 10, 16)
		var readers sync.WaitGroup
		var mu sync.Mutex
		for range 4 {
			readers.Go(func() {
				for {
					mu.Lock()
					if len(order) == 0 {
						mu.Unlock()
						return
					}
					i := order[0]
					order = order[1:]
					mu.Unlock()
					wantSample(t, a, want, i)
					if n := a.Held(); n > 17*240 {
						t.Errorf("%d bytes held", n)
					}
				}
			})
		}
		readers.Wait()
		// A window moves on before the last readers of the previous one have ended, so a few blocks
		// are read twice.
		if f.TotalReads() < 600 || f.TotalReads() > 620 || a.Held() != 0 {
			t.Errorf("%d reads of 600 samples, %d bytes held", f.TotalReads(), a.Held())
		}
		a.Close()
	})
}

// windowed returns an order of samples block by block: window blocks at a time, mixed.
func windowed(blocks, per, window int) (order []int) {
	perm := rand.Perm(blocks)
	for len(perm) > 0 {
		n := min(window, len(perm))
		var mixed []int
		for _, b := range perm[:n] {
			for k := range per {
				mixed = append(mixed, b*per+k)
			}
		}
		rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		order, perm = append(order, mixed...), perm[n:]
	}
	return order
}

// Ensure that samples before a damaged one of a block are served, and that the others are read one
// by one.
func TestReadAheadDamagedBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f, want := ahead(t, 60, 24, 10, wrap.ReadAheadOptions{Blocks: true},
			faults.Rule{Samples: []int{14}, Err: source.ErrCorrupt})
		for i := 10; i < 20; i++ {
			if i != 14 {
				wantSample(t, a, want, i)
			} else if _, err := readOne(a, i); !errors.Is(err, source.ErrCorrupt) {
				t.Error(err)
			}
		}
		// The block up to the damaged sample; once more, because all its good samples had been
		// read; that sample; and the 5 after it.
		if f.TotalReads() != 5+5+1+5 || a.Held() > 10*24 {
			t.Errorf("%d reads, %d bytes held", f.TotalReads(), a.Held())
		}
		a.Close()
	})
}

// sized counts calls of Size.
type sized struct {
	blocky
	calls atomic.Int32
}

func (s *sized) Size(i int) (int, error) {
	s.calls.Add(1)
	return s.blocky.Size(i)
}

// Ensure that a sample that is read alone does not measure its block, which may have millions of samples.
func TestReadAheadOfASampleMeasuresNoBlock(t *testing.T) {
	inner, _ := records(t, 1000, 24)
	s := &sized{blocky: blocky{inner, 500}}
	a := fatal.Value(wrap.ReadAhead(s, wrap.ReadAheadOptions{Size: 1 << 20}))(t)
	defer a.Close()
	if n := a.Prefetch([]int{700}); n != 1 || s.calls.Load() > 2 {
		t.Errorf("%d announced, after %d calls of Size", n, s.calls.Load())
	}
}

// noticing notes which reads were measured.
type noticing struct {
	source.Source
	measured map[int]bool
}

func (n *noticing) Read(ctx context.Context, i int, dst []byte) (int, error) {
	n.measured[i] = loadtime.IsMeasured(ctx)
	return n.Source.Read(ctx, i, dst)
}

// Ensure that reads ahead are measured while the reads that they are for are, and that a measured read of a sample that was not
// measured costs what another one did.
func TestReadAheadMeasuresWhatIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, _ := records(t, 5, 24)
		n := &noticing{faults.Wrap(inner, faults.Rule{Delay: time.Second}), map[int]bool{}}
		a, err := wrap.ReadAhead(n, wrap.ReadAheadOptions{Readers: 1})
		fatal.If(t, err)
		defer a.Close()
		read := func(i int) (err error) {
			a.Prefetch([]int{i})
			synctest.Wait() // it is being read
			_, err = readOne(a, i)
			return err
		}
		measured := func(i int) time.Duration {
			return loadtime.Measure(t.Context(), func(ctx context.Context) {
				a.Prefetch([]int{i})
				synctest.Wait()
				_, err = a.Read(ctx, i, make([]byte, 24))
			}).All
		}
		errs := errors.Join(read(0), read(1))
		cost := measured(2)
		errs = errors.Join(errs, err)
		again := measured(3)
		if errs = errors.Join(errs, err); errs != nil {
			t.Fatal(errs)
		}
		want := map[int]bool{0: true, 1: false, 2: false, 3: true}
		if !maps.Equal(n.measured, want) {
			t.Errorf("measured: %v", n.measured)
		}
		for _, cost := range []time.Duration{cost, again} {
			if cost < 800*time.Millisecond || cost > 1200*time.Millisecond {
				t.Errorf("a load of 1 s costs %v", cost)
			}
		}
	})
}

// Ensure, with the race detector, that many goroutines that announce and read get their samples,
// and that Close at any time leaves no goroutine.
func TestReadAheadConcurrent(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, o := range []wrap.ReadAheadOptions{{Size: 40 * 24}, {Size: 40 * 24, Blocks: true},
		{Size: 1 << 20, Blocks: true}, {Size: 40 * 24, Keep: time.Nanosecond}} {
		for _, per := range []int{0, 10} {
			a, _, want := ahead(t, 500, 24, per, o, faults.Rule{Every: 50, Err: unix.EIO})
			var readers sync.WaitGroup
			for range 6 {
				readers.Go(func() {
					for {
						batch := make([]int, 32)
						for k := range batch {
							batch[k] = rand.IntN(500)
						}
						a.Prefetch(batch)
						for _, i := range batch {
							got, err := readOne(a, i)
							switch {
							case errors.Is(err, source.ErrClosed):
								return
							case err == nil && !bytes.Equal(got, want[i]), err != nil && !errors.Is(err, unix.EIO):
								t.Errorf("sample %d: %x, %v", i, got, err)
							}
							if n := a.Held(); n > int64(o.Size) {
								t.Errorf("%d bytes held", n)
							}
						}
					}
				})
			}
			time.Sleep(30 * time.Millisecond)
			a.Close()
			readers.Wait()
			expect.Equal(t, a.Held(), 0, "bytes held after Close")
		}
	}
}
