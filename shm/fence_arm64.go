package shm

// LoadFence keeps earlier loads before later loads (docs/spec/protocol.md, Memory order): a reader
// calls it between the copy of a sample and the second load of its word. An acquire load is not
// enough: it orders only later loads.
func LoadFence()
