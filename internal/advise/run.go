package advise

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/stocached/stocached/internal/timeline"
)

// Run reads a recorded timeline, and describes the epoch that `stocached trace` explains. sampleBytes: 0: as the recording
// says. Lend takes a run without loads.
func Run(name string, t *timeline.Trace, sampleBytes uint64) (*Data, error) {
	d, err := pace(name, t)
	if err != nil {
		return nil, err
	}
	if d.SampleBytes = sampleBytes; sampleBytes == 0 {
		d.SampleBytes = t.SampleBytes()
	}
	next := "record an epoch that begins with an empty cache"
	if d.Run.Work.Fetch > 0 {
		next = "its samples came from a server, so ask for the cache: stocached advise NAME"
	}
	if loads := t.Loads(); len(loads) > 0 || d.Run.Work.Load == 0 {
		d.loads(loads)
	} else {
		d.alike()
	}
	if err := d.check(fmt.Sprintf("%s names no sample that was loaded: %s", name, next)); err != nil {
		return nil, err
	}
	if d.SampleBytes == 0 {
		return nil, fmt.Errorf("%w: %s does not say how large a stored sample is, which augment= may change: give --sample-bytes",
			ErrUnknown, name)
	}
	return d, nil
}

// Lend gives a cache the pace of a run that read it.
func (d *Data) Lend(name string, t *timeline.Trace) error {
	run, err := pace(name, t)
	if err != nil {
		return err
	}
	if run.Pace.Source == nil {
		run.Pace.Source = d.Pace.Source
	}
	d.Pace, d.Loop, d.Run, d.Today.Seconds = run.Pace, true, run.Run, run.Today.Seconds
	d.Notes = append(d.Notes, run.Notes...)
	return nil
}

// pace reads all of a run but the loads of its samples.
func pace(name string, t *timeline.Trace) (*Data, error) {
	e := timeline.Typical(t.Epochs())
	if e == nil || e.Samples == 0 {
		return nil, fmt.Errorf("%w: %s has no epoch of a training loop: iterate over Loader(..., trace=\"run.json\"), and "+
			"close it", ErrUnknown, name)
	}
	l := e.Loader
	whole := cmp.Or(l.EpochSamples, e.Samples) // samples of an epoch, of which only a part may be recorded
	scale := float64(whole) / float64(e.Samples)
	d := &Data{Name: name, Loop: true, Run: e}
	d.Samples = cmp.Or(l.Samples, max(whole*max(l.WorldSize, 1), len(t.Loads())))
	d.Pace = Pace{Share: float64(whole) / float64(d.Samples), Workers: e.Setting(), CPUs: l.CPUs,
		Augment: scale * (e.Work.Augment + e.Collated), Collate: scale * e.Collated,
		Limits: []Limit{{Name: Step, Seconds: scale * (e.Step + e.Work.BatchAugment)},
			{Name: "gathering", Seconds: scale * (e.Work.Gather - e.Collated) / float64(max(e.Gatherers, 1))},
			{Name: "transfers", Seconds: scale * e.Work.Transfer}, {Name: "the server", Seconds: scale * e.Work.Fetch}}}
	if share := t.SourceShare(); !math.IsNaN(share) {
		d.Pace.Source = &share
	}
	// The wait for the first batch stays out: a cache shortens it little.
	total := e.Step + e.Wait - e.First
	d.Today = Today{Part: e.HitRate(), Seconds: scale * total}
	d.Today.Policy, _ = l.Settings["policy"].(string)
	if math.IsNaN(d.Today.Part) {
		d.Today.Part = 0
	}
	wait := e.WaitFor.Delay
	busy := wait > 0.1*total
	if e.Number > 0 && l.EpochSamples == 0 || d.Today.Part > 0 || busy {
		d.Notes = append(d.Notes, fmt.Sprintf("%s: today is epoch %d, in which %.1f %% of the samples were hits", name,
			e.Number, d.Today.Part*100))
	}
	if busy {
		d.Notes = append(d.Notes, fmt.Sprintf("%s: in that epoch the training loop waited %.3g s for workers that had no "+
			"processor; the predictions leave that out", name, wait))
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

// alike gives all samples the same cost, if workers load whole batches.
func (d *Data) alike() {
	each := d.Run.Work.Load / float64(max(d.Run.Samples-d.Run.Hits, 1))
	d.Seconds = slices.Repeat([]float64{each}, d.Samples)
	d.Notes = append(d.Notes, d.Name+": its workers load whole batches, so the loads of all samples count as alike")
}
