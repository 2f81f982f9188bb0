package cache

// RaceDetector: see raceDetector. It also allocates for sync.Pool.
const RaceDetector = raceDetector
