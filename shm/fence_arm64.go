package shm

// LoadFence keeps loads before it before loads after it (docs/spec/protocol.md, Memory order): between copying a sample and looking at its word
// again. An acquire load alone would not do: it only orders what comes after it.
func LoadFence()
