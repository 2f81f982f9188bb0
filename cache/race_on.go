//go:build race

package cache

// raceDetector says that the race detector runs. It does not see mapped memory, so ordinary memory
// must repeat the order that counters in the segment establish.
const raceDetector = true
