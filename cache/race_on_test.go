//go:build race

package cache_test

// raceDetector says that the race detector runs. A copy races with the fill that its check detects, and a sync.Pool
// allocates.
const raceDetector = true
