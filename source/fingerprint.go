package source

import (
	"crypto/sha256"
	"encoding/binary"
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
	fingerprint, _ := FingerprintOf(kind, settings, slices.Values(files))
	return fingerprint
}

// FingerprintOf returns the Fingerprint of files, and what the file system of this machine says about them beside it, so
// that a file that was replaced by one of the same size and time of modification counts as changed. Copies of the files
// have another state and the same fingerprint. state is "" for objects, whose tags are in the fingerprint.
func FingerprintOf(kind, settings string, files iter.Seq[Named]) (fingerprint, state string) {
	h, times, local := sha256.New(), sha256.New(), false
	fmt.Fprintf(h, "%q %q\n", kind, settings)
	for f := range files {
		fmt.Fprintf(h, "%q %d %d\n", f.Name, f.Stamp.Bytes, f.Stamp.ModifiedNs)
		_, _ = times.Write(binary.LittleEndian.AppendUint64(nil, uint64(f.Stamp.BornNs))) // a hash takes all
		local = local || f.Stamp.BornNs != 0
	}
	if local {
		state = hex.EncodeToString(times.Sum(nil)[:8])
	}
	return kind + "-" + hex.EncodeToString(h.Sum(nil)[:16]), state
}
