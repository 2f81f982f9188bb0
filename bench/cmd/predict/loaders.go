package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/simulate"
	"github.com/stocached/stocached/loader"
	"github.com/stocached/stocached/order"
	"github.com/stocached/stocached/shm"
)

// ours says which of our loaders reads a case. The zero value: gets and sets of one sample after the other.
type ours struct {
	language string // "go", or "python" (bench/python/predicted.py)
	workers  int
	kind     string // of Python's workers
	own      bool   // with an own collate_fn, so that workers make whole batches
	batch    int    // samples
	ahead    int    // as simulate.Options
	first    int    // likewise
	waits    bool   // loads take time, so that the training waits for the workers
}

// duration is that of the typical load. A sleep takes some 60 us longer than it should, which makes costs more alike.
// On a busy machine it ends later still, which Go measures with the load and a worker of Python does not.
func (l ours) duration(name string) time.Duration {
	switch {
	case name == "cost" && l.language == "go":
		return 5 * time.Millisecond
	case name == "cost":
		return 500 * time.Microsecond
	case l.waits:
		return 100 * time.Microsecond
	}
	return 0
}

// observeLoader reads a new cache with a loader, and returns what its epochs did, and the seed of the policy.
func (r *reads) observeLoader(t *simulate.Trace, name string) ([]result, uint64, error) {
	loads, of, err := r.loadsOf(t, name)
	if err != nil {
		return nil, 0, err
	}
	whole := 0.0
	for _, seconds := range t.Seconds {
		whole += seconds
	}
	var all []result
	for _, samples := range loads {
		loaded := 0.0
		for _, sample := range samples {
			loaded += t.Seconds[sample]
		}
		all = append(all, result{1 - float64(len(samples))/float64(r.samples), 1 - loaded/whole})
	}
	return all, of, nil
}

// loadsOf returns which samples each epoch loads, and the seed of the policy.
func (r *reads) loadsOf(t *simulate.Trace, name string) ([][]int, uint64, error) {
	if r.by.language == "go" {
		loads, err := r.loadsOfGo(t, name) // its client does not say the seed
		return loads, 0, err
	}
	ask, err := json.Marshal(map[string]any{"policy": name, "slots": r.room(t), "epochs": r.epochs, "seed": seed,
		"batch": r.by.batch, "workers": r.by.workers, "kind": r.by.kind, "own": r.by.own, "load": r.by.duration(name).Seconds(),
		"times": t.Seconds})
	if err != nil {
		return nil, 0, err
	}
	python := exec.Command(r.python, "python/predicted.py")
	python.Stdin, python.Stderr = bytes.NewReader(ask), os.Stderr
	out, err := python.Output()
	if err != nil {
		return nil, 0, fmt.Errorf("bench/python/predicted.py: %w", err)
	}
	var told struct {
		Loads [][]int `json:"loads"`
		Seed  uint64  `json:"seed"`
	}
	err = json.Unmarshal(out, &told)
	return told.Loads, told.Seed, err
}

func (r *reads) loadsOfGo(t *simulate.Trace, name string) (loads [][]int, err error) {
	p, err := shm.ParsePolicy(name)
	if err != nil {
		return nil, err
	}
	c, err := client.Create("", client.Options{Samples: r.samples, SampleBytes: sampleBytes, Policy: p, Slots: int(r.room(t))})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	load := func(_ context.Context, i int, dst []byte) ([]byte, error) {
		mu.Lock()
		loads[len(loads)-1] = append(loads[len(loads)-1], i)
		mu.Unlock()
		time.Sleep(time.Duration(t.Seconds[i] / 0.01 * float64(r.by.duration(name))))
		return append(dst, make([]byte, sampleBytes)...), nil
	}
	l, err := loader.New(loader.FromCache(c, load), loader.Options{BatchSize: r.by.batch, Workers: r.by.workers,
		Order: order.Order{Samples: uint64(r.samples), Kind: order.Shuffled, Seed: seed}})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	for range r.epochs {
		loads = append(loads, nil)
		for b, err := range l.Batches(context.Background()) {
			if err != nil {
				return nil, errors.Join(err, c.Close())
			}
			b.Release()
		}
	}
	return loads, c.Close()
}
