package cli

import (
	"math"
	"slices"
	"strings"

	"github.com/stocached/stocached/internal/cli/table"
	cacheserver "github.com/stocached/stocached/server/served"
	"github.com/stocached/stocached/shm"
)

// comparedColumns are of a cache that is watched: its server, top, web or --watch --json knows what an epoch did.
var comparedColumns = table.Columns[*stats]{
	table.Listed("predicted_hit_rate", "predicted hits",
		"hit rate of an epoch with as many samples as are cached now, in one job that reads each once",
		ofEpochs(func(e *cacheserver.Epochs) any { return ratio(e.PredictedHitRate) })),
	table.Listed("observed_hit_rate", "observed hits",
		"hit rate of the last epoch: as many reads as there are samples, and at least 100",
		ofEpochs(func(e *cacheserver.Epochs) any { return ratio(e.ObservedHitRate) })),
	table.Listed("predicted_load_seconds", "predicted loads",
		"time that loads of an epoch take, as stocached advise predicts; as the other times with the policy cost only",
		ofEpochs(func(e *cacheserver.Epochs) any { return duration(e.PredictedLoad) })),
	table.Listed("observed_load_seconds", "observed loads", "time that those of the last epoch took",
		ofEpochs(func(e *cacheserver.Epochs) any { return duration(e.ObservedLoad) })),
	table.Listed("predicted_saved_seconds", "predicted saved", "time that its hits save, as stocached advise predicts",
		ofEpochs(func(e *cacheserver.Epochs) any { return duration(e.PredictedSaved) })),
	table.Listed("observed_saved_seconds", "observed saved",
		"loads of an epoch without a cache, as advise adds them up, less observed loads",
		ofEpochs(func(e *cacheserver.Epochs) any { return duration(e.ObservedSaved) })),
	table.InJSON("observed_evicted", "samples that went for others in the last epoch, as replaced above",
		ofEpochs(func(e *cacheserver.Epochs) any { return wholeOrNone(e.ObservedEvicted) })),
	table.Listed("no_prediction", "no prediction", "why nothing is predicted yet; none: it is", noPrediction),
}

// compared are the columns of epochs of a cache. Without the policy cost, nothing is known of the time of its loads.
func (s *stats) compared() table.Columns[*stats] {
	if s.Policy == shm.PolicyCost {
		return comparedColumns
	}
	return slices.DeleteFunc(slices.Clone(comparedColumns), func(c table.Column[*stats]) bool {
		return strings.HasSuffix(c.Field, "_seconds")
	})
}

func noPrediction(s *stats) any {
	if s.epochs == nil {
		return "no server watches this cache, or it does not answer; stocached top compares the epochs of an opened cache"
	}
	return orNone(s.epochs.NoPrediction)
}

// wholeOrNone rounds a number; nil: it is unknown.
func wholeOrNone(v *float64) any {
	if v == nil {
		return nil
	}
	return uint64(math.Round(*v))
}

// duration and ratio show a number of a server; nil: it is unknown.
func duration(v *float64) table.Duration {
	if v == nil {
		return table.Duration(math.NaN())
	}
	return table.Duration(*v)
}

func ratio(v *float64) table.Ratio { return table.Ratio(duration(v)) }

func ofEpochs(value func(*cacheserver.Epochs) any) func(*stats) any {
	return of(func(s *stats) *cacheserver.Epochs { return s.epochs }, value)
}

// of is a value of a part of the stats; nil: there is no such part.
func of[T any](part func(*stats) *T, value func(*T) any) func(*stats) any {
	return func(s *stats) any {
		if p := part(s); p != nil {
			return value(p)
		}
		return nil
	}
}
