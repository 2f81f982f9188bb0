//go:build race

package cache

// raceDetector: it sees nothing of mapped memory, so an order that counters in the segment make must be made once more in ordinary memory for it.
const raceDetector = true
