package loader

import "github.com/stocached/stocached/order"

// These are names of package order, for programs that import only this package.
type (
	Order         = order.Order
	Kind          = order.Kind
	Epoch         = order.Epoch
	Ends          = order.Ends
	Shard         = order.Shard
	Part          = order.Part
	Node          = order.Node
	Weights       = order.Weights
	WeightedOrder = order.WeightedOrder
	MixedOrder    = order.MixedOrder
	Stop          = order.Stop
	Concatenation = order.Concatenation
)

const (
	MaxSamples  = order.MaxSamples
	MaxDatasets = order.MaxDatasets

	Sequential = order.Sequential
	Shuffled   = order.Shuffled
	Windows    = order.Windows
	Blocks     = order.Blocks

	Uneven = order.Uneven
	Pad    = order.Pad
	Drop   = order.Drop

	StopFirst  = order.StopFirst
	StopAll    = order.StopAll
	StopLength = order.StopLength
)

// ErrInvalid is the error of invalid settings. Its text has the numbers and the next step.
var ErrInvalid = order.ErrInvalid

// NewWeights is order.NewWeights.
func NewWeights(weights []float64) (*Weights, error) { return order.NewWeights(weights) }

// Concatenate is order.Concatenate.
func Concatenate(samples ...uint64) (*Concatenation, error) { return order.Concatenate(samples...) }
