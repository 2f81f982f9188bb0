package advise

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/stocached/stocached/internal/timeline"
)

// Run reads a recorded timeline. Its pace is that of the epoch that `stocached trace` explains.
// sampleBytes: 0: as the recording says.
func Run(name string, t *timeline.Trace, sampleBytes uint64) (*Data, error) {
	e := timeline.Typical(t.Epochs())
	if e == nil || e.Samples == 0 {
		return nil, fmt.Errorf("%w: %s has no epoch of a training loop: iterate over Loader(..., trace=\"run.json\"), and "+
			"close it", ErrUnknown, name)
	}
	pace, loads := e.Pace(), t.Loads()
	d := &Data{Name: name, SampleBytes: sampleBytes,
		Samples: max(e.Samples*max(e.Loader.WorldSize, 1), len(loads))}
	if d.SampleBytes == 0 {
		d.SampleBytes = t.SampleBytes()
		if e.Loader.Settings["augment"] != nil {
			d.Notes = append(d.Notes, name+": augment= may change the size of samples; --sample-bytes says that of cached "+
				"ones")
		}
	}
	d.loads(loads)
	d.Pace = Pace{Share: float64(e.Samples) / float64(d.Samples), Workers: pace.Workers, CPUs: e.Loader.CPUs,
		Augment: pace.Augment, Limits: pace.Limits}
	if share := t.SourceShare(); !math.IsNaN(share) {
		d.Pace.Source = &share
	}
	d.Today = Today{Part: e.HitRate(), Seconds: pace.Seconds}
	d.Today.Policy, _ = e.Loader.Settings["policy"].(string)
	if math.IsNaN(d.Today.Part) {
		d.Today.Part = 0
	}
	wait := e.WaitFor.Delay
	busy := wait > 0.1*pace.Seconds
	if e.Number > 0 || d.Today.Part > 0 || busy {
		d.Notes = append(d.Notes, fmt.Sprintf("%s: today is epoch %d, in which %.1f %% of the samples were hits", name,
			e.Number, d.Today.Part*100))
	}
	if busy {
		d.Notes = append(d.Notes, fmt.Sprintf("%s: in that epoch the training loop waited %.3g s for workers that had no "+
			"processor; the predictions leave that out", name, wait))
	}
	next := "record an epoch that begins with an empty cache"
	if e.Work.Fetch > 0 {
		next = "its samples came from a server, so ask for the cache: stocached advise NAME"
	} else if e.Work.Load > 0 {
		next = "its workers make whole batches; record a loader over a dataset with __getitem__"
	}
	if err := d.check(fmt.Sprintf("%s names no sample that was loaded: %s", name, next)); err != nil {
		return nil, err
	}
	if d.SampleBytes == 0 {
		return nil, fmt.Errorf("%w: %s does not say how large a sample is: give --sample-bytes", ErrUnknown, name)
	}
	return d, nil
}

// loads sets Seconds and Noise. Samples that were loaded several times say how noisy loads are.
func (d *Data) loads(loads map[int64][]float64) {
	var known []measured
	total, squares, free := 0.0, 0.0, 0.0
	for _, index := range slices.Sorted(maps.Keys(loads)) {
		m := measured{loads: float64(len(loads[index]))}
		for _, s := range loads[index] {
			total += s / m.loads
			m.log += math.Log(max(s, 1e-9)) / m.loads
		}
		for _, s := range loads[index] {
			squares += math.Pow(math.Log(max(s, 1e-9))-m.log, 2)
		}
		free += m.loads - 1
		known = append(known, m)
	}
	noise := 0.0
	if free > 0 {
		noise = min(math.Sqrt(squares/free), 1)
	}
	d.believe(known, noise, 0)
	d.Stalls, d.Today.Load = noise == 0, 0
	drawn := 0.0
	for _, s := range d.Seconds {
		drawn += s
	}
	for k := range d.Seconds { // together they took as long as measured
		d.Seconds[k] *= total / drawn
	}
}
