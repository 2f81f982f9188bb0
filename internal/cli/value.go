package cli

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

// Types of what commands print. String is for people, MarshalJSON for programs; where there is nothing to say people get "-" and programs null.

// byteCount is a size: "1.4 GiB" for people, a number of bytes for programs.
type byteCount uint64

func (n byteCount) String() string {
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

// count is a number of things: "1,000,000" for people.
type count uint64

func (n count) String() string {
	s := strconv.FormatUint(uint64(n), 10)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// ratio is a fraction or rate; NaN: unknown.
type ratio float64

// fraction is part of whole; unknown when whole is 0.
func fraction(part, whole uint64) ratio { return ratio(float64(part) / float64(whole)) }

func (r ratio) known() bool { return !math.IsNaN(float64(r)) && !math.IsInf(float64(r), 0) }

func (r ratio) String() string {
	if !r.known() {
		return "-"
	}
	return fmt.Sprintf("%.4f", float64(r))
}

func (r ratio) MarshalJSON() ([]byte, error) {
	if !r.known() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(r))
}

// perSecond is a rate over an interval; NaN: unknown.
type perSecond float64

func (r perSecond) String() string {
	switch {
	case !ratio(r).known():
		return "-"
	case r < 100:
		return fmt.Sprintf("%.1f", float64(r))
	}
	return count(math.Round(float64(r))).String()
}

func (r perSecond) MarshalJSON() ([]byte, error) { return ratio(r).MarshalJSON() }

// bytesPerSecond is a rate of bytes; NaN: unknown.
type bytesPerSecond float64

func (r bytesPerSecond) String() string {
	if !ratio(r).known() {
		return "-"
	}
	return byteCount(r).String() + "/s"
}

func (r bytesPerSecond) MarshalJSON() ([]byte, error) { return ratio(r).MarshalJSON() }

// moment is a point in time, in local time for people; zero: unknown.
type moment time.Time

func (m moment) String() string {
	if time.Time(m).UnixNano() == 0 || time.Time(m).IsZero() {
		return "-"
	}
	return time.Time(m).Local().Format("2006-01-02 15:04:05")
}

func (m moment) MarshalJSON() ([]byte, error) {
	if m.String() == "-" {
		return []byte("null"), nil
	}
	return json.Marshal(time.Time(m).UTC())
}

// clock is a moment of today.
type clock time.Time

func (c clock) String() string               { return time.Time(c).Format("15:04:05") }
func (c clock) MarshalJSON() ([]byte, error) { return moment(c).MarshalJSON() }

// list is several values in one place: "a, b" for people, an array for programs.
type list[T any] []T

func (l list[T]) String() string {
	if len(l) == 0 {
		return "-"
	}
	parts := make([]string, len(l))
	for k, v := range l {
		parts[k] = text(v)
	}
	return strings.Join(parts, ",")
}

func (l list[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}

// text writes a value for people. What others wrote into a segment (labels, fingerprints, names of fields), or a server said, cannot move the cursor of a terminal.
func text(v any) string {
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

// quoted quotes text that would do something to a terminal.
func quoted(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) || r == utf8.RuneError }) {
		return strconv.QuoteToGraphic(text)
	}
	return text
}
