package decode

// scratch is what one read needs beside what decoders allocate. Reads take turns with them.
type scratch struct {
	encoded []byte // the file
	decoded []byte // a sample, when whole blocks are read
	pixels  []byte // RGB of a file whose pixels are neither that nor planes
	lines   []byte // of one row: Cb, Cr, R, G, B
	rows    []byte // of all colours, already as wide as they will be
	planes  []byte // the picture before its layout
	sums    []int32
	across  filter
	down    filter
	input   input
	memory  *memory // for pictures; nil: there is no bound
}

// mostKept is how many bytes stay for the next read. They count for nobody's memory, so they must be few: those of larger pictures are made anew.
const mostKept = 4 << 20

func (s *scratch) small() bool {
	return cap(s.encoded)+cap(s.decoded)+cap(s.pixels)+cap(s.lines)+cap(s.rows)+cap(s.planes)+4*(cap(s.sums)+cap(s.across.weights)+cap(s.down.weights)) <= mostKept
}

// grow returns n items of a buffer, whatever is in them.
func grow[T any](buffer *[]T, n int) []T {
	if cap(*buffer) < n {
		*buffer = make([]T, n)
	}
	*buffer = (*buffer)[:n]
	return *buffer
}
