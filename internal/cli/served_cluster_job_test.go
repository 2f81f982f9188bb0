package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/redistest"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
)

// The job of TestClusterJobKilled: three nodes with a rank each. An epoch has jobSteps global batches.
const (
	jobNodes, jobBatch, jobSteps = 3, 20, 10
	jobSamples                   = jobNodes * jobBatch * jobSteps
)

func jobOrder() order.Order { return order.Order{Samples: jobSamples, Kind: order.Shuffled, Seed: 5} }

func jobOptions(rank int, capacity uint64) loader.Options {
	var nodes []order.Node
	for k := range jobNodes {
		nodes = append(nodes, order.Node{Name: fmt.Sprint("n", k), Ranks: 1, Capacity: capacity})
	}
	return loader.Options{BatchSize: jobBatch, Order: jobOrder(), Rank: uint64(rank), Ends: order.Drop, Nodes: nodes}
}

// jobStep is what a rank says after each batch.
type jobStep struct {
	Epoch   uint64
	Indices []int
	After   loader.State
}

// rank is "rank SOCKETS RANK STATE": a rank that reads epochs from a state on, until its standard input ends, and
// then the rest of its epoch. It compares all bytes.
func rank(args []string) error {
	number, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var at loader.State
	if err := json.Unmarshal([]byte(args[2]), &at); err != nil {
		return err
	}
	ctx := context.Background()
	var c *stocclient.Served
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // its server may be away
		c, err = stocclient.Dial(ctx, "pets", stocclient.DialOptions{SocketsDir: args[0], Timeout: 20 * time.Second})
		if err == nil || time.Since(began) > 20*time.Second {
			break
		}
	}
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := loader.New(loader.FromServer(c), jobOptions(number, uint64(c.Info().Slots)))
	if err != nil {
		return err
	}
	if err := l.Resume(at); err != nil {
		return err
	}
	var last atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		last.Store(true)
	}()
	out := json.NewEncoder(os.Stdout)
	for more := true; more; {
		more = !last.Load()
		for b, err := range l.Batches(ctx) {
			if err != nil {
				return err
			}
			step := jobStep{b.Epoch(), slices.Clone(b.Indices()), l.State()}
			for k, i := range step.Indices {
				if !bytes.Equal(b.Sample(k), servedRecord(i)) {
					return fmt.Errorf("sample %d has other bytes", i)
				}
			}
			b.Release()
			time.Sleep(15 * time.Millisecond) // a step of the training
			if err := out.Encode(step); err != nil {
				return err
			}
		}
	}
	return nil
}

// jobRank runs a rank, and starts it again where it was when it is killed.
type jobRank struct {
	t       *testing.T
	server  *served
	number  int
	slowest time.Duration

	mu      sync.Mutex
	process *exec.Cmd
	stdin   io.Closer
	over    bool
	read    map[uint64][]int // by epoch
	at      loader.State
}

func (r *jobRank) run() {
	for {
		out, err := r.launch()
		if err != nil {
			r.t.Error(err)
			return
		}
		began := time.Now()
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var step jobStep
			if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
				break // it was killed while it wrote the line
			}
			r.mu.Lock()
			r.read[step.Epoch] = append(r.read[step.Epoch], step.Indices...)
			r.at = step.After
			r.slowest = max(r.slowest, time.Since(began))
			r.mu.Unlock()
			began = time.Now()
		}
		err = r.process.Wait()
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "killed") {
			r.t.Errorf("rank %d: %v", r.number, err)
			return
		}
	}
}

func (r *jobRank) launch() (io.Reader, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state, err := json.Marshal(r.at)
	if err != nil {
		return nil, err
	}
	r.process = exec.Command(os.Args[0], r.server.sockets, strconv.Itoa(r.number), string(state))
	r.process.Env = append(os.Environ(), childVariable+"=rank")
	r.process.Stderr = os.Stderr
	if r.stdin, err = r.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.process.StdoutPipe()
	if err == nil {
		err = r.process.Start()
	}
	if r.over {
		r.stdin.Close()
	}
	return out, err
}

func (r *jobRank) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.process.Process.Kill()
}

// goesOn waits until the rank has read one more batch.
func (r *jobRank) goesOn() {
	read := func() loader.State {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.at
	}
	before := read()
	for began := time.Now(); read() == before && time.Since(began) < time.Minute && !r.t.Failed(); {
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *jobRank) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.stdin.Close()
}

// Ensure that each rank of a job on three nodes reads exactly its samples, once each and with the right bytes, while
// servers, nodes of the engine, ranks and the storage are killed at random, and that no batch takes longer than the
// timeouts say.
func TestClusterJobKilled(t *testing.T) {
	kills := killsOr(t, 10)
	storage := newStorage(t, jobSamples)
	engines := redistest.Cluster(t, 3)
	var ranks []*jobRank
	var running sync.WaitGroup
	for k := range jobNodes {
		s := configureServed(t, fmt.Sprintf("size: 4800kB, parallel: 8, tiers: [{kind: cluster, %s, lease: 1s, timeout: 200ms}], "+
			"source: {kind: raw, path: %q, sample_bytes: %d}", on(engines...), storage.URL+"/records", servedBytes))
		s.start()
		r := &jobRank{t: t, server: s, number: k, read: map[uint64][]int{},
			at: loader.State{Order: jobOrder()}}
		ranks = append(ranks, r)
		running.Go(r.run)
	}
	done := map[string]int{}
	for k := range kills {
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		what := []string{"server", "engine", "engine stops", "rank", "storage"}[rand.IntN(5)]
		if done["storage"] > kills/20 && what == "storage" || k == 0 {
			what = "rank"
		}
		if k == kills/2 && done["storage"] == 0 {
			what = "storage"
		}
		done[what]++
		engine := engines[rand.IntN(len(engines))]
		switch what {
		case "server":
			s := ranks[rand.IntN(jobNodes)].server
			s.kill()
			s.start()
		case "engine": // it comes back with an empty memory
			engine.Kill()
			time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond)
			engine.Begin()
		case "engine stops":
			engine.Stop()
			time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond)
			engine.Continue()
		case "rank":
			ranks[rand.IntN(jobNodes)].kill()
		case "storage":
			storage.status.Store(http.StatusServiceUnavailable)
			time.Sleep(10 * time.Second)
			storage.status.Store(0)
			for _, r := range ranks { // it is not away for longer than reads are tried
				r.goesOn()
			}
		}
		if t.Failed() {
			break
		}
	}
	for _, r := range ranks {
		r.finish()
	}
	running.Wait()
	epochs := 0
	for _, r := range ranks {
		c := r.server.dial()
		o := jobOptions(r.number, uint64(c.Info().Slots))
		for epoch, got := range r.read {
			expect.Slice(t, got, wantRank(t, o, epoch), "%v, %v", r.number, epoch)
			epochs++
		}
		// The storage was away for 10 seconds, and the last pause before another try of a read is 5.
		if r.slowest > 25*time.Second {
			t.Errorf("a batch of rank %d took %v", r.number, r.slowest)
		}
		t.Logf("rank %d: %d epochs, the slowest batch took %v", r.number, len(r.read), r.slowest)
	}
	t.Logf("kills: %v; %d epochs of ranks", done, epochs)
	if epochs < jobNodes {
		t.Errorf("%d epochs of ranks", epochs)
	}
}

// wantRank returns the samples of a rank in an epoch, as the order alone says.
func wantRank(t *testing.T, o loader.Options, number uint64) (want []int) {
	t.Helper()
	owners := fatal.Value(order.NewOwners(o.Nodes, jobSamples))(t)
	e := fatal.Value(o.Order.Epoch(number))(t)
	d := fatal.Value(e.Dealer(owners, jobBatch, 0, order.Drop))(t)
	for b := range d.Batches() {
		dst := make([]int, jobBatch)
		n, _ := d.Fill(dst, b, o.Rank)
		want = append(want, dst[:n]...)
	}
	return want
}
