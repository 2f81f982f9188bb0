package stress

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// Exit statuses of a worker, besides 0.
const (
	ExitTorn  = 3
	ExitError = 4
)

// errTorn marks a sample that does not verify.
var errTorn = errors.New("TORN")

// Work is a worker. It returns its exit status, and writes the line of that status to stderr.
func Work(path string, samples int, lasts time.Duration, seed uint64) int {
	err := work(path, samples, lasts, seed)
	switch {
	case err == nil, errors.Is(err, shm.ErrClients):
		return 0
	case errors.Is(err, errTorn):
		fmt.Fprintln(os.Stderr, err)
		return ExitTorn
	default:
		fmt.Fprintln(os.Stderr, "ERROR", err)
		return ExitError
	}
}

func work(path string, samples int, lasts time.Duration, seed uint64) error {
	seg, err := shm.Open(path, shm.OpenOptions{})
	if err != nil {
		return err
	}
	defer seg.Close()
	c, err := cache.Attach(seg, cache.Options{Label: "stress worker (Go)", Next: next})
	if err != nil {
		return err
	}
	defer c.Close()
	w := worker{c: c, rng: rand.New(rand.NewPCG(seed, 0)), sampleBytes: int(seg.Header.SampleBytes),
		variable: seg.Variable()}
	w.data, w.batch = make([]byte, w.sampleBytes), make([]byte, 8*w.sampleBytes)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		if err := w.turn(w.rng.IntN(samples), samples); err != nil {
			return err
		}
	}
	return nil
}

type worker struct {
	c           *cache.Cache
	rng         *rand.Rand
	sampleBytes int
	variable    bool
	data, batch []byte
	sequence    uint64
}

// turn does one operation.
func (w *worker) turn(i, samples int) error {
	switch k := w.rng.IntN(16); {
	case k < 9:
		if hit, err := w.get(i); hit || err != nil {
			return err
		}
		return w.set(i, 0)
	case k < 13:
		return w.set(i, cache.Overwrite)
	case k < 15:
		return w.gather(i, samples)
	default:
		return w.pieces(i)
	}
}

// next makes the next payload of this writer.
func (w *worker) next(i int) []byte {
	p := w.data
	if w.variable {
		p = p[:HeaderBytes+w.rng.IntN(w.sampleBytes-HeaderBytes+1)]
	}
	w.sequence++
	Fill(p, uint64(i), w.sequence, uint64(os.Getpid()))
	return p
}

func (w *worker) set(i int, flags cache.Flags) error {
	_, err := w.c.SetLoaded(i, [][]byte{w.next(i)}, flags, cost(i))
	return err
}

// next invents a plan that changes, for the policy planned.
func next(sample, _ uint64) uint64 {
	return 1 + policy.Random(uint64(time.Now().UnixMilli()/250), sample)%1000
}

// cost returns what a load of a sample costs at this moment.
func cost(i int) time.Duration {
	return time.Microsecond << ((int64(i) + time.Now().UnixMilli()/250) % 12)
}

func (w *worker) get(i int) (bool, error) {
	n, hit, err := w.c.Get(i, w.batch)
	if !hit || err != nil {
		return false, err
	}
	return true, torn(Verify(w.batch[:n], uint64(i)))
}

func (w *worker) gather(first, samples int) error {
	var indices [8]int
	for k := range indices {
		indices[k] = (first + k) % samples
	}
	if w.variable {
		for _, i := range indices {
			if _, err := w.get(i); err != nil {
				return err
			}
		}
		return nil
	}
	var hit [8]bool
	if _, err := w.c.Gather(indices[:], w.batch, cache.GatherOptions{Stride: w.sampleBytes, Hit: hit[:]}); err != nil {
		return err
	}
	for k, i := range indices {
		if hit[k] {
			if err := torn(Verify(w.batch[k*w.sampleBytes:(k+1)*w.sampleBytes], uint64(i))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) pieces(i int) error {
	p := w.next(i)
	claim, r, err := w.c.Claim(i, len(p), 0)
	if r != cache.Stored || err != nil {
		return err
	}
	for _, at := range []int{0, len(p) / 2} {
		end := len(p) / 2
		if at > 0 {
			end = len(p)
		}
		if _, err := claim.WriteAt(p[at:end], int64(at)); errors.Is(err, shm.ErrFull) {
			return nil // WriteAt has aborted the claim
		} else if err != nil {
			return err
		}
	}
	if w.sequence%2 == 0 {
		return claim.Abort()
	}
	return claim.PublishLoaded(cost(i))
}

// torn marks an error of Verify.
func torn(err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", errTorn, err)
	}
	return nil
}
