package shm

// LoadFence keeps earlier loads before later loads (docs/spec/protocol.md, Memory order): a reader
// calls it between the copy of a sample and the second load of its word. amd64 never reorders loads
// with loads, and the compiler none around the atomics of this package.
func LoadFence() {}
