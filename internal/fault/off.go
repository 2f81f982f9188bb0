//go:build !faultpoints

package fault

// Enabled says whether fault points exist in this build.
const Enabled = false

// At passes a fault point.
func At(string) {}

// SetHook does nothing in this build.
func SetHook(func(point string)) {}
