package advise

import (
	"math"

	"github.com/stocached/stocached/internal/simulate"
)

// usualNoise is that of further measurements if no sample was loaded twice, as of `stocached simulate`.
const usualNoise = 0.3

// measured is what is known about a sample.
type measured struct {
	log   float64 // logarithm of the seconds of a load, or mean of those of several
	loads float64 // how many single measurements are as exact
	ready bool    // it is cached
	bytes uint64  // 0: as all others
}

// believe sets Seconds, Noise and Today.Load. Measured costs lie further apart than true ones do, and the
// costliest owe part of it to chance, so a cache would seem to save more than it does. If true costs
// and errors are lognormal, the true cost of a sample has a known distribution around its measured one,
// nearer to the mean. Seconds has one number drawn from it for each sample. noise is the standard
// deviation of a measurement's logarithm; 0: unknown, and all differences are believed. others is the number
// of cached samples of unknown cost.
func (d *Data) believe(known []measured, noise, others float64) {
	if d.Noise = noise; noise == 0 {
		d.Noise = usualNoise
		d.Notes = append(d.Notes, d.Name+": no sample was loaded twice, so all differences between loads count as "+
			"differences between samples; with more epochs, noise will be told apart")
	}
	n := float64(len(known))
	mean, spread, errors := 0.0, 0.0, 0.0
	for _, m := range known {
		mean += m.log / n
		errors += noise * noise / m.loads / n
	}
	for _, m := range known {
		spread += (m.log - mean) * (m.log - mean) / n
	}
	truly := max(spread-errors, 0)
	total, saved := 0.0, 0.0
	for k, m := range known {
		weight, left := 1.0, 0.0
		if of := noise * noise / m.loads; of > 0 {
			weight = truly / (truly + of)
			left = math.Sqrt(weight * of)
		}
		seconds := math.Exp(mean + weight*(m.log-mean) + left*simulate.Normal(uint64(k)))
		d.Seconds = append(d.Seconds, seconds)
		if m.bytes > 0 {
			d.Sizes = append(d.Sizes, m.bytes)
		}
		total += seconds / n * float64(d.Samples)
		if m.ready {
			saved += seconds
		}
	}
	// A cached sample of unknown cost saves as much as others do.
	d.Today.Load = total - saved - others*total/float64(d.Samples)
}
