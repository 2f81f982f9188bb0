//go:build race

package cache_test

// raceEnabled: the race detector allocates for sync.Pool.
const raceEnabled = true
