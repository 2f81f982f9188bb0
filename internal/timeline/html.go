package timeline

import "io"

func HTML(w io.Writer, t *Trace, from, to int64) error { return nil }
