package wrap

import "context"

// KindOf returns the kind of an error of a read with ctx.
func KindOf(ctx context.Context, err error) ErrorKind { return errorKinds[kindIndex(ctx, err)].kind }
