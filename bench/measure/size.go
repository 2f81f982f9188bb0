// Package measure runs the Go cases and drives worker processes of any language.
package measure

// Size is a kind of sample that the table is measured with.
type Size struct {
	Name    string
	Bytes   int // of a sample
	Samples int // of the cache, all of them filled
	Reads   int // samples that a run of a copying case reads
	Views   int // samples that a run of a view case reads
	Sets    int // samples that a run of a storing case stores, in a cache of as many slots as Samples
	Batch   int // samples of a gather
}

// Sizes are those of the table; quick ones only show that everything works. bench/python/sizes.py
// and c/bench.c have the same numbers.
func Sizes(quick bool) []Size {
	if quick {
		return []Size{
			{"image", 150528, 128, 128, 2000, 64, 32},
			{"small", 3072, 10000, 2000, 2000, 2000, 256},
			{"large", 8 << 20, 4, 4, 2000, 4, 2},
		}
	}
	return []Size{
		{"image", 150528, 4096, 2048, 1000000, 2048, 256},
		{"small", 3072, 1000000, 65536, 1000000, 65536, 256},
		{"large", 8 << 20, 64, 64, 1000000, 64, 8},
	}
}
