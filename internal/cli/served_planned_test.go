package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/order"
)

func init() { servedChildren["planned"] = plannedJob }

// plannedJob is "planned SOCKETS LOG SEED BATCH EPOCHS STOP": a job that announces its order and reads epochs
// of it. It adds a line to the log for each batch, with the samples whose bytes it got, and starts where
// the log ends. From STOP samples on, it prints "stop" and reads on without the log, until it is killed.
// With STOP -1 it reads to the end.
func plannedJob(args []string) error {
	var numbers [4]int
	for k, text := range args[2:] {
		var err error
		if numbers[k], err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	seed, batch, epochs, stop := numbers[0], numbers[1], numbers[2], numbers[3]
	log, samples, err := plannedLog(args[1])
	if err != nil {
		return err
	}
	defer log.Close()
	c, err := untilServed(func() (*stocclient.Served, error) {
		return stocclient.Dial(context.Background(), servedName, stocclient.DialOptions{SocketsDir: args[0]})
	})
	if err != nil {
		return err
	}
	defer c.Close()
	n, row, done := c.Info().Samples, c.Info().SampleBytes, len(samples)
	known := map[string]int{}
	for i := range n {
		known[string(servedRecord(i))] = i
	}
	own := order.Order{Samples: uint64(n), Kind: order.Shuffled, Seed: uint64(seed)}
	indices, dst := make([]int, batch), make([]byte, batch*row)
	stopped := false
	for announced := -1; done < epochs*n; {
		number, from := done/n, done%n
		stops := stop >= 0 && done >= stop
		if stops && !stopped {
			stopped = true
			fmt.Println("stop")
		}
		if announced != number || stops {
			announced = number
			plan := stocclient.Plan{Order: own, Epoch: uint64(number), Shard: order.Shard{From: uint64(from)}, Batch: batch}
			if used, err := untilServed(func() (bool, error) { return c.Announce(context.Background(), plan) }); err != nil {
				return err
			} else if !used {
				return errors.New("the cache does not use plans")
			}
		}
		e, err := own.Epoch(uint64(number))
		if err != nil {
			return err
		}
		most := min(batch, n-from)
		if stop > done {
			most = min(most, stop-done)
		}
		got := e.Fill(indices[:most], uint64(from), 1)
		if _, err := untilServed(func() (any, error) {
			return nil, c.Fetch(context.Background(), indices[:got], dst, row)
		}); err != nil {
			return err
		}
		var line strings.Builder
		for k := range got {
			i, right := known[string(dst[k*row:][:row])]
			if !right {
				return fmt.Errorf("sample %d came wrong", indices[k])
			}
			fmt.Fprintf(&line, "%d ", i)
		}
		if stops {
			continue
		}
		if _, err := log.WriteString(line.String() + "\n"); err != nil {
			return err
		}
		done += got
	}
	return nil
}

// untilServed calls a function until a server answers.
func untilServed[T any](call func() (T, error)) (v T, err error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if v, err = call(); !errors.Is(err, stocclient.ErrNoServer) || time.Now().After(deadline) {
			return v, err
		}
	}
}

// plannedLog opens the log of a job, and returns the samples that it names. A line that the job was killed
// in goes.
func plannedLog(path string) (log *os.File, samples []int, err error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for _, word := range strings.Fields(string(text)) {
		i, err := strconv.Atoi(word)
		if err != nil {
			return nil, nil, err
		}
		samples = append(samples, i)
	}
	if log, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, nil, err
	}
	return log, samples, log.Truncate(int64(len(text)))
}

// plannedProgram makes the process of a job, as plannedJob describes it.
type plannedProgram func(s *served, log string, numbers []string) *exec.Cmd

func plannedGo(s *served, log string, numbers []string) *exec.Cmd {
	p := exec.Command(os.Args[0], append([]string{s.sockets, log}, numbers...)...)
	p.Env = append(os.Environ(), childVariable+"=planned")
	return p
}

// killPlanned runs jobs of one cache that holds half of their samples, and kills each so many times, at random
// positions, and the server at every second of these times. Each job goes on where its log ends. All
// must have read each epoch of their orders.
func killPlanned(t *testing.T, kills int, programs ...plannedProgram) {
	const n, slots = 600, 300
	epochs := max(3, kills/4)
	s := evictingServer(t, n, slots, "planned", "path: records, limits: {latency: 200us, heads: 4}")
	calls := make(chan func()) // for the goroutine of the test, which alone may end the test
	do := func(f func()) {
		done := make(chan struct{})
		select {
		case calls <- func() { defer close(done); f() }:
			<-done
		case <-t.Context().Done():
		}
	}
	logs := make([]string, len(programs))
	var jobs sync.WaitGroup
	for k, program := range programs {
		logs[k] = filepath.Join(t.TempDir(), "log")
		jobs.Go(func() {
			for kill := range kills {
				stop := (kill*epochs*n + rand.IntN(epochs*n)) / kills
				if err := killJob(t, s, do, program, logs[k], k, epochs, stop, kill%2 == 0); err != nil {
					t.Errorf("job %d, killed after %d samples: %v", k, stop, err)
					return
				}
			}
			p := plannedProcess(t, s, program, logs[k], k, epochs, -1)
			if out, err := p.CombinedOutput(); err != nil {
				t.Errorf("job %d: %v\n%s", k, err, out)
			}
		})
	}
	t.Cleanup(jobs.Wait)
	go func() { jobs.Wait(); close(calls) }()
	for f := range calls {
		f()
	}
	for k, path := range logs {
		log, samples, err := plannedLog(path)
		fatal.If(t, err)
		log.Close()
		if len(samples) != epochs*n {
			t.Fatalf("job %d read %d samples in %d epochs of %d", k, len(samples), epochs, n)
		}
		indices := make([]int, n)
		for number := range epochs {
			e := fatal.Value(order.Order{Samples: n, Kind: order.Shuffled, Seed: uint64(k)}.Epoch(uint64(number)))(t)
			e.Fill(indices, 0, 1)
			expect.Slice(t, samples[number*n:][:n], indices, "%v, %v", k, number)
		}
	}
	fatal.Until(t, "the server forgets all jobs and clients", func() bool {
		return len(s.plannedJobs()) == 0 && s.metric("stocached_clients", fmt.Sprintf("cache=%q", servedName)) == 1
	})
	c := s.dial()
	expect.Equal(t, ready(t, c.Cache), c.Info().Slots, "samples in all slots")
	noClaims(t, c.Cache)
}

// plannedProcess makes a process of a job: its number is the seed of its order.
func plannedProcess(t *testing.T, s *served, program plannedProgram, log string, number, epochs, stop int) *exec.Cmd {
	var words []string
	for _, n := range []int{number, 7 + 5*number, epochs, stop} {
		words = append(words, strconv.Itoa(n))
	}
	p := program(s, log, words)
	context.AfterFunc(t.Context(), func() {
		if p.Process != nil {
			p.Process.Kill()
		}
	})
	return p
}

// killJob runs a job up to a position, and kills it there while it reads on, and the server too if it says
// so. The server must forget the job.
func killJob(t *testing.T, s *served, do func(func()), program plannedProgram, log string, number, epochs, stop int,
	server bool) error {
	p := plannedProcess(t, s, program, log, number, epochs, stop)
	var complaint bytes.Buffer
	p.Stderr = &complaint
	out, err := p.StdoutPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "stop\n" {
		io.Copy(io.Discard, out)
		return errors.Join(fmt.Errorf("it said %q, %w", line, err), p.Wait(), errors.New(complaint.String()))
	}
	end := sync.OnceFunc(func() { // it reads on, so it must still run
		p.Process.Kill()
		if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("job %d had ended: %v\n%s", number, err, complaint.String())
		}
	})
	time.Sleep(rand.N(5 * time.Millisecond))
	if server {
		when := rand.IntN(3)
		do(func() {
			s.kill()
			if when == 0 {
				end()
			}
			s.start()
			time.Sleep(rand.N(time.Duration(when)*5*time.Millisecond + 1))
		})
	}
	end()
	do(func() {
		fatal.Until(t, "the server forgets the job that was killed", func() bool {
			return !slices.Contains(s.plannedJobs(), number)
		})
	})
	return nil
}

// plannedJobs returns the seeds of the jobs that the server knows.
func (s *served) plannedJobs() (seeds []int) {
	s.t.Helper()
	about := decode[struct {
		Jobs []struct {
			Seed int `json:"seed"`
		} `json:"jobs"`
	}](s.t, s.answers("/v1/caches/"+servedName))
	for _, job := range about.Jobs {
		seeds = append(seeds, job.Seed)
	}
	return seeds
}

// Ensure that each job gets every sample of its order exactly once an epoch, though the processes of jobs and
// of the server are killed in the middle of what they do, and that the server forgets dead jobs.
func TestPlannedJobsKilled(t *testing.T) {
	t.Parallel()
	killPlanned(t, killsOr(t, 15), plannedGo, plannedGo, plannedGo)
}
