// Package diskfile keeps a segment in an ordinary file on a local disk, so that samples survive the
// programs: docs/spec/segment.md, On a disk. One process has the file for itself (Open), or
// processes share it (OpenShared).
//
// Nothing of the file is mapped. The control part is in memory, and each change of a sample's index
// record is also written to the file. Who reads a sample compares its checksum.
package diskfile
