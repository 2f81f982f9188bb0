package shm

// LoadFence keeps loads before it before loads after it (docs/spec/protocol.md, Memory order): between copying a sample and looking at its word
// again. amd64 never reorders loads with loads, and the compiler none around the atomics of this package.
func LoadFence() {}
