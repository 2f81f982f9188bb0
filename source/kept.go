package source

import "context"

// keptElsewhere is the key of a context of a read whose sample another node keeps.
type keptElsewhere struct{}

// KeptElsewhere returns the context of a read whose sample another node keeps. So what lies between this source and the
// cache does not keep it on this machine.
func KeptElsewhere(ctx context.Context) context.Context {
	return context.WithValue(ctx, keptElsewhere{}, true)
}

// IsKeptElsewhere says whether another node keeps the sample of a read.
func IsKeptElsewhere(ctx context.Context) bool { return ctx.Value(keptElsewhere{}) != nil }
