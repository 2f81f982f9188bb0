package table

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Types of what commands print. String is for people, MarshalJSON for programs. For an unknown
// value people get "-" and programs null.

// If is v where a thing has it, else nil, an unknown value.
func If(has bool, v any) any {
	if has {
		return v
	}
	return nil
}

// Bytes is a size: "1.4 GiB" for people, a number of bytes for programs.
type Bytes uint64

func (n Bytes) String() string {
	if n < 1024 {
		return fmt.Sprintf("%d B", uint64(n))
	}
	value, unit := float64(n), -1
	for value >= 1023.95 && unit < 5 { // 1023.95 is shown as 1024.0
		value /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[unit])
}

// Count is a number of things: "1,000,000" for people.
type Count uint64

func (n Count) String() string {
	s := strconv.FormatUint(uint64(n), 10)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// Plural writes a number of things.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Ratio is a fraction or rate; NaN: unknown.
type Ratio float64

// Fraction is part of whole; unknown when whole is 0.
func Fraction(part, whole uint64) Ratio { return Ratio(float64(part) / float64(whole)) }

func (r Ratio) Known() bool { return !math.IsNaN(float64(r)) && !math.IsInf(float64(r), 0) }

func (r Ratio) String() string {
	if !r.Known() {
		return "-"
	}
	return fmt.Sprintf("%.4f", float64(r))
}

func (r Ratio) MarshalJSON() ([]byte, error) {
	if !r.Known() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(r))
}

// PerSecond is a rate over an interval; NaN: unknown.
type PerSecond float64

func (r PerSecond) String() string {
	switch {
	case !Ratio(r).Known():
		return "-"
	case r < 100:
		return fmt.Sprintf("%.1f", float64(r))
	}
	return Count(math.Round(float64(r))).String()
}

func (r PerSecond) MarshalJSON() ([]byte, error) { return Ratio(r).MarshalJSON() }

// BytesPerSecond is a rate of bytes; NaN: unknown.
type BytesPerSecond float64

func (r BytesPerSecond) String() string {
	if !Ratio(r).Known() {
		return "-"
	}
	return Bytes(r).String() + "/s"
}

func (r BytesPerSecond) MarshalJSON() ([]byte, error) { return Ratio(r).MarshalJSON() }

// Moment is a point in time, in local time for people; zero: unknown.
type Moment time.Time

func (m Moment) String() string {
	if time.Time(m).UnixNano() == 0 || time.Time(m).IsZero() {
		return "-"
	}
	return time.Time(m).Local().Format("2006-01-02 15:04:05")
}

func (m Moment) MarshalJSON() ([]byte, error) {
	if m.String() == "-" {
		return []byte("null"), nil
	}
	return json.Marshal(time.Time(m).UTC())
}

// Clock is a moment of today.
type Clock time.Time

func (c Clock) String() string               { return time.Time(c).Format("15:04:05") }
func (c Clock) MarshalJSON() ([]byte, error) { return Moment(c).MarshalJSON() }

// Duration is a time in seconds; NaN: unknown.
type Duration float64

func (d Duration) String() string {
	if !Ratio(d).Known() {
		return "-"
	}
	t := time.Duration(float64(d) * 1e9)
	for unit := time.Nanosecond; unit <= time.Second; unit *= 10 { // three digits
		if t < 1000*unit {
			return t.Round(unit).String()
		}
	}
	return t.Round(time.Second).String()
}

func (d Duration) MarshalJSON() ([]byte, error) { return Ratio(d).MarshalJSON() }

// Percent is a part of a whole, in percent for people; NaN: unknown.
type Percent float64

func (s Percent) String() string {
	if !Ratio(s).Known() {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", float64(s)*100)
}

func (s Percent) MarshalJSON() ([]byte, error) { return Ratio(s).MarshalJSON() }

// List is several values in one place: "a, b" for people, an array for programs.
type List[T any] []T

func (l List[T]) String() string {
	if len(l) == 0 {
		return "-"
	}
	parts := make([]string, len(l))
	for k, v := range l {
		parts[k] = Text(v)
	}
	return strings.Join(parts, ",")
}

func (l List[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}

// Number returns a value as a number; NaN: it is none, or unknown.
func Number(v any) float64 {
	switch n := v.(type) {
	case Bytes:
		return float64(n)
	case Count:
		return float64(n)
	case Ratio:
		return float64(n)
	case PerSecond:
		return float64(n)
	case BytesPerSecond:
		return float64(n)
	case Duration:
		return float64(n)
	}
	return math.NaN()
}

// Text writes a value for people. Text from a segment (labels, fingerprints, names of fields) or
// from a server cannot move the cursor of a terminal.
func Text(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		if v == "" {
			return "-"
		}
		return quoted(v)
	case bool:
		if v {
			return "yes"
		}
		return "no"
	}
	return quoted(fmt.Sprint(v))
}

// quoted quotes text that contains control characters.
func quoted(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) || r == utf8.RuneError }) {
		return strconv.QuoteToGraphic(text)
	}
	return text
}
