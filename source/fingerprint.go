package source

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
)

// Named is a file in a fingerprint.
type Named struct {
	Name  string
	Stamp Stamp
}

// Fingerprint names data by the kind of source, the settings that change the samples, and the files
// in their order.
func Fingerprint(kind, settings string, files ...Named) string {
	return FingerprintOf(kind, settings, slices.Values(files))
}

// FingerprintOf is Fingerprint for files that are in no slice.
func FingerprintOf(kind, settings string, files iter.Seq[Named]) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q\n", kind, settings)
	for f := range files {
		fmt.Fprintf(h, "%q %d %d\n", f.Name, f.Stamp.Bytes, f.Stamp.ModifiedNs)
	}
	return kind + "-" + hex.EncodeToString(h.Sum(nil)[:16])
}
