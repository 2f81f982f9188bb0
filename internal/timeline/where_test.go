package timeline

import (
	"math"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that the times of an epoch match a timeline made by hand, and that the causes of waiting
// are distinct. The order is: loads of the awaited batch, then its fetches, gathers and transfers,
// then the same of other batches, then nothing.
func TestWhere(t *testing.T) {
	m := newMade(map[string]any{"num_workers": 2.0})
	// batch 0: awaited from 0 to 100: loads of it until 60 (two side by side), its gather until 80,
	// its transfer until 90, nothing until 100
	m.loop(Wait, 4, 0, 0, 100*ms, 8, 6)
	m.load(0, 4, 0, 1, 10*ms, 60*ms)
	m.load(1, 4, 0, 2, 10*ms, 40*ms)
	m.stage(Gather, gatherTrack, 4, 0, 55*ms, 80*ms)
	m.stage(Transfer, transferTrack, 4, 0, 80*ms, 90*ms)
	m.loop(Step, 4, 0, 100*ms, 150*ms, 0, 0)
	// batch 1: awaited from 150 to 200: a fetch until 160; then a worker is busy with batch 2 until
	// 190, then a gather of batch 2 until 195
	m.loop(Wait, 4, 1, 150*ms, 200*ms, 8, 8)
	m.stage(Fetch, serverTrack, 4, 1, 120*ms, 160*ms)
	m.load(0, 4, 2, 3, 155*ms, 190*ms)
	m.stage(Gather, gatherTrack, 4, 2, 185*ms, 195*ms)
	m.loop(Step, 4, 1, 200*ms, 240*ms, 0, 0)
	m.loop(Wait, 4, 2, 240*ms, 240*ms, 4, 2)
	m.loop(Step, 4, 2, 240*ms, 250*ms, 0, 0)
	m.loop(Wait, 4, 3, 250*ms, 251*ms, -1, 0) // for the end: no batch
	m.add(firstOther, "other", Span{Kind: Load, Start: 0, End: 250 * ms, Epoch: 4, Batch: 1})
	epochs := m.trace().Epochs()
	fatal.Equal(t, len(epochs), 1, "epochs")
	e := epochs[0]
	if e.Number != 4 || e.Batches != 3 || e.Samples != 20 || e.Hits != 16 || e.Misses != 4 || e.Bytes != 20_000 ||
		e.Workers != 2 || e.From != 0 || e.To != 251*ms {
		t.Errorf("%+v", e)
	}
	near(t, "step", e.Step, 0.100)
	near(t, "wait", e.Wait, 0.151)
	near(t, "first", e.First, 0.100)
	near(t, "seconds", e.Seconds(), 0.251)
	near(t, "waiting", e.Waiting(), 0.151/0.251)
	near(t, "hit rate", e.HitRate(), 0.8)
	near(t, "rate", e.Rate(), 20/0.251)
	near(t, "longest", e.LongestLoad, 0.050)
	near(t, "busy", e.Busy, (0.050+0.030+0.035)/0.502)
	near(t, "startup", e.Startup, 0.010)
	for _, c := range []struct {
		name      string
		got, want Parts
	}{
		{"work", e.Work, Parts{Load: 0.115, Fetch: 0.040, Gather: 0.035, Transfer: 0.010}},
		{"first", e.FirstFor, Parts{Load: 0.050, Gather: 0.020, Transfer: 0.010, Other: 0.020}},
		{"waited for", e.WaitFor, Parts{Load: 0.050 + 0.030, Fetch: 0.010, Gather: 0.020 + 0.005, Transfer: 0.010,
			Other: 0.020 + 0.005 + 0.001}},
	} {
		near(t, c.name+": load", c.got.Load, c.want.Load)
		near(t, c.name+": fetch", c.got.Fetch, c.want.Fetch)
		near(t, c.name+": gather", c.got.Gather, c.want.Gather)
		near(t, c.name+": transfer", c.got.Transfer, c.want.Transfer)
		near(t, c.name+": other", c.got.Other, c.want.Other)
	}
	near(t, "all of the waiting", e.WaitFor.Load+e.WaitFor.Fetch+e.WaitFor.Gather+e.WaitFor.Transfer+e.WaitFor.Other,
		e.Wait)
}

// Ensure that spans within spans are not counted twice, that work ahead for the next epoch counts
// for that epoch, and that a recording with dropped spans is cut there.
func TestWhereEdges(t *testing.T) {
	m := newMade(nil)
	m.loop(Wait, 0, 0, 0, 10*ms, 4, 0)
	m.loop(Step, 0, 0, 10*ms, 50*ms, 0, 0)
	m.loop(Wait, 1, 0, 50*ms, 60*ms, 4, 0)
	m.loop(Step, 1, 0, 60*ms, 90*ms, 0, 0)
	m.loop(Wait, 1, 1, 90*ms, 95*ms, 4, 0)
	m.load(0, 0, 0, 1, 0, 10*ms)
	m.add(firstWorker, "worker 0", Span{Kind: Augment, Start: 6 * ms, End: 9 * ms, Epoch: 0, Batch: 0})
	m.load(0, 1, 0, 2, 30*ms, 55*ms)
	m.load(0, 1, 1, 3, 80*ms, 95*ms)
	m.Dropped, m.DroppedFrom = 7, new(float64)
	*m.DroppedFrom = 90_000 // us
	epochs := m.trace().Epochs()
	fatal.Equal(t, len(epochs), 2, "epochs")
	near(t, "load of epoch 0", epochs[0].Work.Load, 0.010)
	near(t, "load of epoch 1", epochs[1].Work.Load, 0.040)
	near(t, "busy in epoch 0", epochs[0].Busy, 0.6) // 20 of its 50 ms are for epoch 1
	if e := epochs[1]; e.Batches != 1 || e.To != 90*ms {
		t.Errorf("beyond what was dropped: %+v", e)
	}
	if uses := m.trace().Uses(0, 50*ms); len(uses) != 2 || uses[0].Spans != 2 || math.Abs(uses[0].Share-0.8) > 1e-9 ||
		math.Abs(uses[1].Share-0.6) > 1e-9 {
		t.Errorf("%+v", uses)
	}
	if from, to, ok := m.trace().Epoch(1); from != 50*ms || to != 95*ms || !ok {
		t.Errorf("epoch 1 from %d to %d, %v", from, to, ok)
	}
	if _, _, ok := m.trace().Epoch(2); ok {
		t.Error("there is no epoch 2")
	}
	alone := newMade(nil) // without workers the training loop loads and gathers within its waits
	alone.loop(Wait, 0, 0, 0, 10*ms, 4, 2)
	alone.stage(Gather, loopTrack, 0, 0, ms, 3*ms)
	alone.stage(Load, loopTrack, 0, 0, 3*ms, 9*ms)
	if e := alone.trace().Epochs()[0]; e.Workers != 0 || e.Work != (Parts{Load: 0.006, Gather: 0.002}) ||
		math.Abs(e.WaitFor.Load-0.006) > 1e-9 || math.Abs(e.WaitFor.Other-0.002) > 1e-9 {
		t.Errorf("without workers: %+v", e)
	}
	begun := newMade(nil) // workers start, and then the loop waits for the first batch
	begun.loop(Wait, 0, -1, 0, 30*ms, -1, 0)
	begun.loop(Wait, 0, 0, 30*ms, 50*ms, 4, 0)
	begun.load(0, 0, 0, 1, 35*ms, 45*ms)
	begun.loop(Step, 0, 0, 50*ms, 60*ms, 0, 0)
	begun.loop(Wait, 0, 1, 60*ms, 62*ms, 4, 4)
	if e := begun.trace().Epochs()[0]; e.Batches != 2 || math.Abs(e.First-0.050) > 1e-9 ||
		math.Abs(e.Startup-0.035) > 1e-9 || math.Abs(e.FirstFor.Other-0.040) > 1e-9 ||
		math.Abs(e.FirstFor.Load-0.010) > 1e-9 || math.Abs(e.WaitFor.Other-0.042) > 1e-9 {
		t.Errorf("with a start: %+v", e)
	}
	// one worker loads the samples of a batch while others run the random part; then only that is
	// left
	apart := newMade(nil)
	apart.loop(Wait, 0, 0, 0, 30*ms, 4, 2)
	apart.load(0, 0, 0, 1, 0, 10*ms)
	apart.stage(Augment, firstWorker, 0, 0, 10*ms, 30*ms)
	for k := range 3 {
		apart.stage(Augment, firstWorker+1+k, 0, 0, 0, 10*ms)
	}
	apart.stage(BatchAugment, loopTrack, 0, 0, 30*ms, 45*ms)
	apart.Tracks[0].Spans[0].End = 45 * ms
	e := apart.trace().Epochs()[0]
	if want := (Parts{Load: 0.010, Augment: 0.050, BatchAugment: 0.015}); e.Work != want {
		t.Errorf("work with a random part: %+v", e.Work)
	}
	near(t, "waited for loads", e.WaitFor.Load, 0.030*10/60)
	near(t, "waited for the random part", e.WaitFor.Augment, 0.030*50/60)
	near(t, "waited for the random part of the batch", e.WaitFor.BatchAugment, 0.015)
	// workers wait for a processor between a load and its random part
	delayed := newMade(nil)
	delayed.loop(Wait, 0, 0, 0, 40*ms, 4, 2)
	delayed.load(0, 0, 0, 1, 0, 10*ms)
	delayed.add(firstWorker, "worker 0", Span{Kind: Source, Start: 0, End: 6 * ms, Epoch: 0, Batch: 0, Index: 1})
	delayed.stage(Delay, firstWorker, 0, 0, 10*ms, 35*ms)
	delayed.stage(Augment, firstWorker, 0, 0, 35*ms, 40*ms)
	e = delayed.trace().Epochs()[0]
	if want := (Parts{Load: 0.010, Augment: 0.005, Delay: 0.025}); e.Work != want || e.Busy != 1 {
		t.Errorf("with a delay: %+v, busy %g", e.Work, e.Busy)
	}
	near(t, "waited for a processor", e.WaitFor.Delay, 0.025)
	near(t, "source", delayed.trace().SourceShare(), 0.6)
	near(t, "load", delayed.trace().Loads()[1][0], 0.010)
	// workers that make batches do so one after the other with loads
	batched := newMade(nil)
	batched.loop(Wait, 0, 0, 0, 30*ms, 4, 0)
	batched.load(0, 0, 0, 1, 0, 20*ms)
	batched.stage(Collate, firstWorker, 0, 0, 20*ms, 26*ms)
	batched.stage(Gather, gatherTrack, 0, 0, 26*ms, 30*ms)
	e = batched.trace().Epochs()[0]
	near(t, "collated", e.Collated, 0.006)
	near(t, "gathered", e.Work.Gather, 0.010)
	none := newMade(nil)
	none.load(0, 0, 0, 1, 0, ms)
	if epochs := none.trace().Epochs(); epochs != nil || Typical(epochs) != nil {
		t.Errorf("without a training loop: %v", epochs)
	}
}

// Ensure that the size of a sample is that of the stored one: the header says it, else the batches, if nothing changes
// samples on their way into a batch.
func TestSampleBytes(t *testing.T) {
	for _, c := range []struct {
		settings map[string]any
		stored   uint64
		want     uint64
	}{{nil, 0, 1000}, {map[string]any{"augment": "crop"}, 0, 0}, {map[string]any{"augment": "crop"}, 250, 250},
		{map[string]any{"batch_augment": "mix"}, 0, 0}, {nil, 250, 250}} {
		m := newMade(c.settings)
		m.SampleBytes = c.stored
		m.loop(Wait, 0, 0, 0, 10*ms, 8, 0)
		expect.Equal(t, m.trace().SampleBytes(), c.want, "%+v: bytes", c)
	}
}

// Ensure that advice is about the last epoch that is not a mere beginning, of the rank that waits
// most.
func TestTypical(t *testing.T) {
	a, b := newMade(nil), newMade(nil)
	b.Rank = 1
	for epoch := range 2 {
		for batch := range 10 {
			at := int64(epoch*1000+batch*100) * ms
			a.loop(Wait, epoch, batch, at, at+10*ms, 8, 8)
			a.loop(Step, epoch, batch, at+10*ms, at+100*ms, 0, 0)
			b.loop(Wait, epoch, batch, at, at+30*ms, 8, 8)
			b.loop(Step, epoch, batch, at+30*ms, at+100*ms, 0, 0)
		}
	}
	b.loop(Wait, 2, 0, 2000*ms, 2090*ms, 8, 8) // the third epoch was broken off
	tr := &Trace{Loaders: []*Loader{a.Loader, b.Loader}}
	tr.order()
	if e := Typical(tr.Epochs()); e.Number != 1 || e.Loader.Rank != 1 {
		t.Errorf("epoch %d of rank %d", e.Number, e.Loader.Rank)
	}
}
