// Package size reads numbers of bytes as people write them.
package size

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
)

// Bytes is a size in settings: a number of bytes, or a text for Parse.
type Bytes int64

// UnmarshalText is Parse.
func (b *Bytes) UnmarshalText(text []byte) error {
	n, err := Parse(string(text))
	*b = Bytes(n)
	return err
}

var units = func() map[string]uint64 {
	units := map[string]uint64{"": 1, "B": 1, "kB": 1000}
	binary, decimal := uint64(1), uint64(1)
	for _, prefix := range []string{"K", "M", "G", "T"} {
		binary, decimal = binary*1024, decimal*1000
		units[prefix+"iB"], units[prefix+"B"] = binary, decimal
	}
	return units
}()

// Parse reads "4096", "8GiB" (units of 1024), "500MB" (units of 1000), "1.5 GiB", without
// floating-point rounding. It cuts off a fraction of a byte that comes from a unit. It returns an
// error for anything else, and for more than 2^63 - 1 bytes.
func Parse(text string) (uint64, error) {
	trimmed := strings.TrimSpace(text)
	digits := len(trimmed) - len(strings.TrimLeft(trimmed, "0123456789."))
	number, unit := trimmed[:digits], strings.TrimSpace(trimmed[digits:])
	factor, ok := units[unit]
	value, valid := new(big.Rat).SetString(number)
	if !ok || !valid || strings.HasPrefix(number, ".") || strings.HasSuffix(number, ".") || factor == 1 &&
		strings.Contains(number, ".") {
		return 0, fmt.Errorf("%q is not a size: write bytes, or a number and a unit, such as 512MiB, 1.5GiB, 2TiB "+
			"(units of 1024) or 500MB (of 1000)", text)
	}
	value.Mul(value, new(big.Rat).SetInt(new(big.Int).SetUint64(factor)))
	whole := new(big.Int).Quo(value.Num(), value.Denom())
	if !whole.IsUint64() || whole.Uint64() > math.MaxInt64 {
		return 0, fmt.Errorf("%q is more than 2^63 - 1 bytes", text)
	}
	return whole.Uint64(), nil
}

// ParseAbove0 is Parse, but 0 has the error refusal.
func ParseAbove0(text, refusal string) (uint64, error) {
	n, err := Parse(text)
	if err == nil && n == 0 {
		err = errors.New(refusal)
	}
	return n, err
}
