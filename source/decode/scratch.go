package decode

// scratch is the memory of one read beside that of decoders. A pool keeps it for other reads.
type scratch struct {
	encoded []byte // the file
	decoded []byte // a sample, when whole blocks are read
	pixels  []byte // RGB of a file whose pixels are neither RGB nor planes
	lines   []byte // one row: Cb, Cr, R, G, B
	rows    []byte // rows of all colours, already resized across
	planes  []byte // the picture before its layout
	turned  []byte // the picture as it lies in the file
	sums    []int32
	across  filter
	down    filter
	input   input
	memory  *memory  // for pictures; nil: no limit
	helpers *helpers // nil: Go decodes and resizes
}

// mostKept is the most bytes that the pool keeps for the next read. They count for no memory limit,
// so they must be few. Reads of larger pictures allocate again.
const mostKept = 4 << 20

func (s *scratch) small() bool {
	bytes := cap(s.encoded) + cap(s.decoded) + cap(s.pixels) + cap(s.lines) + cap(s.rows) + cap(s.planes) + cap(s.turned)
	return bytes+4*(cap(s.sums)+cap(s.across.weights)+cap(s.down.weights)) <= mostKept
}

// grow returns n items of a buffer, with any content.
func grow[T any](buffer *[]T, n int) []T {
	if cap(*buffer) < n {
		*buffer = make([]T, n)
	}
	*buffer = (*buffer)[:n]
	return *buffer
}
