package cli

import (
	"context"
	"fmt"
	"math"
	"testing"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/order"
)

// Ensure that `stocached simulate --served` predicts how many samples a server reads from its source for jobs
// that read in turn, with many slots and with few: it is wrong for at most 1 of 100 reads of the jobs. How far the
// server reads ahead depends on the machine, and makes a part of that.
func TestSimulateServed(t *testing.T) {
	const samples, batch, epochs, first = 2000, 16, 5, 2
	for _, c := range []struct{ slots, jobs int }{{1000, 2}, {1000, 4}, {160, 2}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			rows := decode[[]jsonObject](t, ok(t, "simulate", "--samples", fmt.Sprint(samples), "--sample-bytes",
				fmt.Sprint(servedBytes), "--size", fmt.Sprintf("%g%%", float64(c.slots)/samples*100), "--jobs", fmt.Sprint(c.jobs), "--epochs",
				fmt.Sprint(epochs), "--seed", "1", "--served", fmt.Sprint(batch), "--policy", "planned", "--json"))
			want := 0.0
			for _, e := range rows[first:] {
				want += (e["reads"].(float64) - e["hits"].(float64)) / samples / (epochs - first)
			}
			s := evictingServer(t, samples, c.slots, "planned", "path: records")
			var jobs []*stocclient.Served
			for range c.jobs {
				jobs = append(jobs, s.dial())
			}
			reads := func() float64 { return s.metric("stocached_source_reads_total", `cache="pets"`) / samples }
			before := 0.0
			indices, dst := make([]int, batch), make([]byte, batch*servedBytes)
			for number := range uint64(epochs) {
				if number == first {
					before = reads()
				}
				for from := uint64(0); from < samples; from += batch {
					for k, j := range jobs {
						o := order.Order{Samples: samples, Kind: order.Shuffled, Seed: uint64(k) + 1}
						e, err := o.Epoch(number)
						if err != nil {
							t.Fatal(err)
						}
						if from == 0 {
							plan := stocclient.Plan{Order: o, Epoch: number, Batch: batch}
							if used, err := j.Announce(context.Background(), plan); err != nil || !used {
								t.Fatal(used, err)
							}
						}
						n := e.Fill(indices[:min(batch, samples-from)], from, 1)
						if err := j.Fetch(context.Background(), indices[:n], dst, servedBytes); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			got := (reads() - before) / (epochs - first)
			t.Logf("%.3f of the dataset is read in an epoch of all jobs, and %.3f are predicted", got, want)
			if math.Abs(got-want)/float64(c.jobs) > 0.01 {
				t.Errorf("%.4f of the dataset is read in an epoch of all jobs, and %.4f are predicted", got, want)
			}
		})
	}
}
