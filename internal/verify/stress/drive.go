package stress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// Drive says what Run does. Every field is needed.
type Drive struct {
	// least number of SIGKILLs; Run sends more until half of Kills hit a client that was filling a
	// sample, and a set has evicted one if the cache evicts
	Kills   int
	Lasts   time.Duration // limit; it is an error if Run needs longer
	Seed    uint64
	Kind    Kind     // kind of cache
	Workers []Worker // all run at the same time; Run replaces one that died
	Log     io.Writer
}

// Kind says what kind of cache is driven. A kind that evicts has one cache after the other, one for each policy, and
// divides the kills among them.
type Kind string

// The kinds.
const (
	Slots    Kind = "slots"
	Arena    Kind = "arena"
	Evicting Kind = "evicting" // slots; a set into a full cache evicts a sample
	Chains   Kind = "chains"   // an arena that evicts
)

// Kinds lists all of them.
var Kinds = []Kind{Slots, Arena, Evicting, Chains}

// Worker is the command of a worker. Run adds the arguments of the contract.
type Worker struct {
	Language string
	Command  []string
	Forks    bool // the command can also fork workers, as package stress describes; Memory does not use that
}

// Report is the result of Run.
type Report struct {
	Kills     int            // sent
	InWriting uint64         // claims of clients that were filling a sample when they died
	Clears    uint64         // clears of the whole cache during the run
	Stored    uint64         // samples published
	Reads     uint64         // hits of workers and driver
	Killed    map[string]int // workers, by language
	Caches    []CacheReport  // in the order in which they were driven
	Took      time.Duration
}

// CacheReport is the part of one cache.
type CacheReport struct {
	Policy    shm.Policy
	Kills     int
	InWriting uint64
	Evicted   uint64 // samples
}

// String is a line for people.
func (c CacheReport) String() string {
	return fmt.Sprintf("%v: %d kills, %d claims of the dead reclaimed, %d samples evicted", c.Policy, c.Kills, c.InWriting,
		c.Evicted)
}

func (r *Report) add(o Report) {
	r.Kills += o.Kills
	r.InWriting += o.InWriting
	r.Clears += o.Clears
	r.Stored += o.Stored
	r.Reads += o.Reads
	r.Took += o.Took
	r.Caches = append(r.Caches, o.Caches...)
	for language, n := range o.Killed {
		r.Killed[language] += n
	}
}

// Sizes of the cache. Samples are so large that a client spends most of its time filling one, and
// slots so few that samples compete for them.
const (
	driveSamples     = 48
	driveSlots       = 32
	driveSampleBytes = 96 << 10
	driveArenaBytes  = 64 << 20
	driveStride      = 4096 // stride of a slot, with Chains
	driveChain       = driveSampleBytes / driveStride
	driveChains      = driveSlots / 2 // samples of full length, with Chains; they have half of it on average
	clearEvery       = 40             // kills
	drawnFor         = 250 * time.Millisecond
	claimWithin      = 2 * drawnFor
)

// Run drives workers and then checks the cache, for each policy of the kind. It returns an error if an invariant does
// not hold, or if the kills took too long.
func (d Drive) Run() (report Report, err error) {
	report.Killed = map[string]int{}
	forkers := forkers{}
	defer forkers.end()
	policies, end := d.policies(), time.Now().Add(d.Lasts)
	for k, p := range policies {
		part := d
		part.Kills = (d.Kills + k) / len(policies)
		part.Seed += uint64(k)
		part.Lasts = time.Until(end) / time.Duration(len(policies)-k)
		one, err := part.run(p, forkers)
		report.add(one)
		if err != nil {
			return report, fmt.Errorf("policy %v: %w", p, err)
		}
		if d.Log != nil {
			fmt.Fprintf(d.Log, "%s, %v\n", d.Kind, one.Caches[0])
		}
	}
	return report, nil
}

// policies returns those of the caches. With planned, only workers in Go evict: no other client can know plans.
func (d Drive) policies() []shm.Policy {
	if d.Kind != Evicting && d.Kind != Chains {
		return []shm.Policy{shm.PolicyFirstCome}
	}
	return shm.EvictingPolicies()
}

// run drives the workers of one cache.
func (d Drive) run(policy shm.Policy, forkers forkers) (Report, error) {
	dir, err := os.MkdirTemp("/dev/shm", "stocached-stress-")
	if err != nil {
		return Report{}, err
	}
	defer os.RemoveAll(dir)
	o := shm.Options{Name: "stress", Dir: dir, Samples: driveSamples, SampleBytes: driveSampleBytes,
		Slots: driveSlots, ClientRecords: 64, Policy: policy}
	switch d.Kind {
	case Slots, Evicting:
	case Arena:
		o.Slots, o.Variable, o.Limit = 0, true, driveArenaBytes
	case Chains:
		o.Slots, o.Variable, o.SlotBytes = 0, true, driveStride
		g, err := shm.NewGeometry(shm.FlagVariable, o.Policy, o.Samples, driveChains*driveChain, driveStride,
			o.ClientRecords, 0)
		if err != nil {
			return Report{}, err
		}
		o.Limit = g.SegmentBytes
	default:
		return Report{}, fmt.Errorf("%q is not one of the kinds %v", d.Kind, Kinds)
	}
	seg, err := shm.Create(o)
	if err != nil {
		return Report{}, err
	}
	defer seg.Close()
	c, err := cache.Attach(seg, cache.Options{Label: "stress driver"})
	if err != nil {
		return Report{}, err
	}
	defer c.Close()
	r := &run{Drive: d, path: filepath.Join(dir, "stress"), seg: seg, c: c, rng: rand.New(rand.NewPCG(d.Seed, 1)),
		report: Report{Killed: map[string]int{}, Caches: []CacheReport{{Policy: policy}}}, begun: time.Now(),
		forkers: forkers}
	err = errors.Join(r.kill(), r.check())
	r.report.Took = time.Since(r.begun).Round(time.Millisecond)
	return r.report, err
}

// run is the state of a Drive.
type run struct {
	Drive
	path   string
	seg    *shm.Segment
	c      *cache.Cache
	rng    *rand.Rand
	begun  time.Time
	report Report

	forkers forkers
}

// forkers are started for the first worker of a language. All caches of a Drive share them.
type forkers map[string]*forker // by language

func (f forkers) end() {
	for _, one := range f {
		_ = one.end() // Run has reported the errors of workers already
	}
}

func (r *run) start(w Worker) (*process, error) {
	args := []string{r.path, fmt.Sprint(driveSamples), fmt.Sprint(int(r.Lasts.Seconds()) + 60),
		fmt.Sprint(r.rng.Uint32())}
	if !w.Forks {
		return startWorker(w.Language,
			exec.Command(w.Command[0], append(w.Command[1:len(w.Command):len(w.Command)], args...)...))
	}
	if r.forkers[w.Language] == nil {
		f, err := startForker(w)
		if err != nil {
			return nil, err
		}
		r.forkers[w.Language] = f
	}
	return r.forkers[w.Language].start(args)
}

// kill starts workers and kills them at random, until there were enough kills.
func (r *run) kill() error {
	workers := make([]*process, len(r.Workers))
	defer func() {
		for _, p := range workers {
			if p != nil {
				p.Kill()
				<-p.ended
			}
		}
	}()
	stop, readErr := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	end := func() error { once.Do(func() { close(stop) }); return <-readErr }
	go func() { readErr <- r.read(stop) }()
	for k := range workers {
		var err error
		if workers[k], err = r.start(r.Workers[k]); err != nil {
			return errors.Join(err, end())
		}
	}
	for {
		if done, err := r.killedEnough(); err != nil || done {
			return errors.Join(err, end())
		}
		k, err := r.killOne(workers)
		if err != nil {
			return errors.Join(err, end())
		}
		r.report.Kills++
		if r.report.Kills%min(clearEvery, max(1, r.Kills/2)) == 0 || r.arenaIsFull() {
			if err := r.clear(); err != nil {
				workers[k] = nil
				return errors.Join(err, end())
			}
		}
		if r.report.Kills%200 == 0 && r.Log != nil {
			fmt.Fprintf(r.Log, "%d kills after %v\n", r.report.Kills, time.Since(r.begun).Round(time.Second))
		}
		if workers[k], err = r.start(r.Workers[k]); err != nil {
			workers[k] = nil
			return errors.Join(err, end())
		}
	}
}

// killedEnough says whether the kills are done. On a busy machine a client often publishes its
// sample before the signal arrives, so the number of kills is not enough.
func (r *run) killedEnough() (bool, error) {
	if r.report.Kills < r.Kills {
		return false, nil
	}
	if _, err := r.c.Recover(); err != nil {
		return false, err
	}
	s, err := r.c.Stats()
	enough := 2*s.Recovered >= uint64(r.Kills) && (s.Evicted > 0 || !r.report.Caches[0].Policy.Evicts())
	if err == nil && !enough && time.Since(r.begun) > r.Lasts {
		err = fmt.Errorf("only %d of %d kills hit a client that was filling a sample, and %d samples were evicted, after "+
			"%v%s", s.Recovered, r.report.Kills, s.Evicted, r.Lasts, r.refused())
	}
	return enough, err
}

// killOne kills a worker and returns its number. In one of eight cases it kills any worker at any
// time. Else it kills one that lists a claim, a moment later: workers verify most of the time, and
// a kill in the middle of a fill tests more. For a moment it accepts only workers of a language
// drawn beforehand. Otherwise it would kill only workers that start fast.
func (r *run) killOne(workers []*process) (int, error) {
	any := r.rng.IntN(8) == 0
	language := workers[r.rng.IntN(len(workers))].language
	begun, wait := time.Now(), drawnFor
	// the kills are late
	if time.Since(r.begun)*time.Duration(r.Kills) > r.Lasts*time.Duration(r.report.Kills)*3/4+
		drawnFor*time.Duration(r.Kills) {
		wait = 0
	}
	for {
		for _, k := range r.rng.Perm(len(workers)) {
			p := workers[k]
			select {
			case <-p.ended:
				workers[k] = nil
				return k, fmt.Errorf("a worker in %s ended by itself (%v): %s", p.language, p.err, p.said())
			default:
			}
			if p.record < 0 {
				p.record = r.recordOf(p.Pid)
			}
			if p.record < 0 || !any && !r.claims(p.record) || p.language != language && time.Since(begun) < wait {
				continue
			}
			for until := time.Now().Add(time.Duration(r.rng.IntN(40)) * time.Microsecond); time.Now().Before(until); {
			}
			p.Kill()
			<-p.ended
			workers[k] = nil
			var exit *exec.ExitError
			if errors.As(p.err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
				r.report.Killed[p.language]++
				return k, nil
			}
			return k, fmt.Errorf("a worker in %s ended by itself (%v) before it was killed: %s", p.language, p.err,
				p.said())
		}
		if time.Since(r.begun) > r.Lasts {
			return 0, fmt.Errorf("%d of %d kills after %v%s", r.report.Kills, r.Kills, r.Lasts, r.refused())
		}
		// No worker claims while the arena is full, or while the machine has too little memory for sets.
		any = any || r.arenaIsFull() || time.Since(begun) > claimWithin
		time.Sleep(50 * time.Microsecond)
	}
}

// refused says, for errors, how many sets found no space or memory.
func (r *run) refused() string {
	s, err := r.c.Stats()
	if err != nil {
		return fmt.Sprintf("; no counters: %v", err)
	}
	return fmt.Sprintf("; %d samples were stored, and %d sets refused for lack of space or memory", s.Stored, s.Full)
}

// arenaIsFull says whether the arena is nearly full, so that few workers claim.
func (r *run) arenaIsFull() bool {
	next := shm.ArenaNext(r.seg.ArenaNext().Load()).Unit()
	return r.Kind == Arena && next > r.seg.Units()*3/4
}

// recordOf returns the client record of a process; -1: it has none yet.
func (r *run) recordOf(pid int) int {
	for k := range uint32(r.seg.ClientsHigh().Load()) {
		if uint32(r.seg.ClientWord(k, shm.ClientPID).Load()) == uint32(pid) {
			return int(k)
		}
	}
	return -1
}

func (r *run) claims(record int) bool {
	for e := range shm.ClaimsPerClient {
		if sample, _ := r.seg.Claim(uint32(record), e); sample.Load() != 0 {
			return true
		}
	}
	return false
}

// clear empties the cache while the workers run. None is stopped, so the clear must end. But a worker
// may claim for seconds: it asks for a huge page, and the kernel needs a processor for that.
func (r *run) clear() error {
	ctx, cancel := context.WithDeadline(context.Background(), r.begun.Add(r.Lasts+20*time.Second))
	defer cancel()
	result, err := r.c.Clear(ctx)
	if err != nil || result != cache.Stored {
		return fmt.Errorf("clear: %v, %w", result, err)
	}
	return nil
}

// read gets samples all the time and verifies them.
func (r *run) read(stop chan struct{}) error {
	buffer := make([]byte, driveSampleBytes)
	for i := 0; ; i = (i + 1) % driveSamples {
		select {
		case <-stop:
			return nil
		default:
		}
		n, hit, err := r.c.Get(i, buffer)
		if hit {
			err = torn(Verify(buffer[:n], uint64(i)))
		}
		if err != nil {
			<-stop
			return err
		}
		time.Sleep(100 * time.Microsecond) // leaves the processors to the workers
	}
}

// check checks the cache after all workers have ended.
func (r *run) check() error {
	if _, err := r.c.Recover(); err != nil {
		return err
	}
	s, err := r.c.Stats()
	if err != nil {
		return err
	}
	r.report.InWriting, r.report.Clears, r.report.Stored, r.report.Reads = s.Recovered, s.Clears, s.Stored, s.Hits
	of := &r.report.Caches[0]
	of.Kills, of.InWriting, of.Evicted = r.report.Kills, s.Recovered, s.Evicted
	var wrong []error
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if s.Corrupt != 0 || s.Lost != 0 {
		complain("the counters say: corrupt %d, lost %d", s.Corrupt, s.Lost)
	}
	wrong = append(wrong, r.checkRest(), r.fillUp(), r.checkRest())
	return errors.Join(wrong...)
}

// checkRest checks a cache without workers: it has no claims, and READY samples are complete.
func (r *run) checkRest() error {
	var wrong []error
	buffer := make([]byte, driveSampleBytes)
	for i := range driveSamples {
		w := shm.Word(r.seg.Word(uint64(i)).Load())
		if w.State() != shm.Empty && w.State() != shm.Ready {
			wrong = append(wrong, fmt.Errorf("sample %d is left claimed by client %d, which is dead", i, w.Owner()))
		}
		if n, hit, err := r.c.Get(i, buffer); err != nil {
			wrong = append(wrong, err)
		} else if hit {
			wrong = append(wrong, torn(Verify(buffer[:n], uint64(i))))
		}
	}
	for k := range r.seg.ClientRecords {
		if r.claims(int(k)) {
			wrong = append(wrong, fmt.Errorf("client record %d is left with claims", k))
		}
	}
	if v, err := r.c.Verify(0, driveSamples); err != nil || v.Corrupt != 0 {
		wrong = append(wrong, fmt.Errorf("%d of %d READY samples are corrupt, the first is %d (%v)", v.Corrupt,
			v.Checked, v.Bad, err))
	}
	return errors.Join(wrong...)
}

// fillUp sets all missing samples: this shows lost slots.
func (r *run) fillUp() error {
	p := make([]byte, driveSampleBytes)
	flags := cache.Flags(0)
	if r.Kind == Chains {
		flags = cache.Overwrite // READY samples may be short
	}
	for i := range driveSamples {
		Fill(p, uint64(i), 1, uint64(os.Getpid()))
		if result, err := r.c.Set(i, p, flags); err != nil || result == cache.Busy {
			return fmt.Errorf("set %d at the end: %v, %w", i, result, err)
		}
	}
	s, err := r.c.Stats()
	if err == nil && r.Kind == Chains {
		return r.checkChains(s)
	}
	if err == nil && r.Kind != Arena && s.Ready != driveSlots {
		err = fmt.Errorf("%d slots of %d could be filled at the end", s.Ready, driveSlots)
	}
	return err
}

// checkChains checks that each slot that is taken is one of a READY sample, and that sets have found the
// others.
func (r *run) checkChains(s cache.Stats) error {
	var used uint64
	for i := range uint64(driveSamples) {
		if w := shm.Word(r.seg.Word(i).Load()); w.State() == shm.Ready {
			length := r.seg.Length(shm.Meta(r.seg.Meta(i).Load()))
			used += (length + driveStride - 1) / driveStride
		}
	}
	if taken := s.ArenaNextBytes / driveStride; taken != used || r.seg.Slots-taken > driveChain {
		return fmt.Errorf("%d slots of %d are taken at the end, and READY samples have %d", taken, r.seg.Slots, used)
	}
	return nil
}
