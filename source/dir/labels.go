package dir

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stocached/stocached/source"
)

// classes are the folders directly below a root, hidden and empty ones too. They are numbered in the
// order of Python's sorted, so that a model that was trained with torchvision's ImageFolder finds the
// same numbers.
type classes struct {
	names   []string // at first in the order in which they were found
	numbers map[string]int64
	used    []bool // whether a sample has the class
}

// classOf returns the folder directly below the root in which a path lies. ok is false if it lies in none.
func classOf(path string) (class string, ok bool) {
	class, _, ok = strings.Cut(path, "/")
	return class, ok && below(class)
}

// add adds a class, unless it is there, and returns its number.
func (c *classes) add(class string) int64 {
	number, ok := c.numbers[class]
	if !ok {
		if c.numbers == nil {
			c.numbers = map[string]int64{}
		}
		class = strings.Clone(class) // without the rest of a path
		number = int64(len(c.names))
		c.names, c.used, c.numbers[class] = append(c.names, class), append(c.used, false), number
	}
	return number
}

// sort gives all classes their final numbers. It returns these by the numbers that they had before.
func (c *classes) sort() (numbers []int64) {
	before, used := slices.Clone(c.names), slices.Clone(c.used)
	slices.SortFunc(c.names, inPythonsOrder)
	for number, class := range c.names {
		c.used[number], c.numbers[class] = used[c.numbers[class]], int64(number)
	}
	for _, class := range before {
		numbers = append(numbers, c.numbers[class])
	}
	return numbers
}

// label gives each file the number of its class, or -1 if it lies in none.
func (c *classes) label(names []string) (labels []int64) {
	labels = make([]int64, len(names))
	for i, name := range names {
		labels[i] = -1
		class, inside := classOf(name)
		if number, ok := c.numbers[class]; inside && ok {
			labels[i], c.used[number] = number, true
		}
	}
	return labels
}

// inPythonsOrder compares names as Python does: by characters. A byte that is not UTF-8 counts as the
// character that Python makes of it in names of files (surrogateescape).
func inPythonsOrder(a, b string) int {
	for a != "" && b != "" {
		x, bytesOfX := character(a)
		y, bytesOfY := character(b)
		if x != y {
			return cmp.Compare(x, y)
		}
		a, b = a[bytesOfX:], b[bytesOfY:]
	}
	return cmp.Compare(len(a), len(b))
}

func character(s string) (rune, int) {
	r, n := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && n == 1 {
		return 0xDC00 + rune(s[0]), 1
	}
	return r, n
}

// mostNamed is how many odd classes a note names.
const mostNamed = 5

// notes returns a note that names the classes that are hidden folders, or have no sample if these are all
// samples of the dataset. python/src/stocached/_image/folder.py says the same in the same words.
func (c *classes) notes(whole bool) []source.Note {
	var odd []string
	for number, class := range c.names {
		hidden, empty := class[0] == '.', whole && !c.used[number]
		if !hidden && !empty {
			continue
		}
		why := "no file"
		if hidden {
			why = "hidden"
		}
		odd = append(odd, fmt.Sprintf("%s (class %d, %s)", class, number, why))
	}
	if len(odd) == 0 {
		return nil
	}
	text := strings.Join(odd[:min(len(odd), mostNamed)], ", ")
	if len(odd) > mostNamed {
		text += fmt.Sprintf(" and %d more", len(odd)-mostNamed)
	}
	return []source.Note{{Name: "odd classes", Advice: true, Data: true, Text: "each folder counts as a class, as in torchvision's " +
		"ImageFolder, also " + text + "; remove folders that are no classes"}}
}

// labelsOf reads the labels of a manifest. If all are numbers, they are the labels. If all are
// names, their numbers follow their sorted order. A mix is ErrInvalid, because one typing error
// must not turn numbers into names.
func labelsOf(lines []line) (labels []int64, classes []string, err error) {
	labels = make([]int64, len(lines))
	var number, name *line
	for i := range lines {
		l := &lines[i]
		if l.label == "" {
			return nil, nil, fmt.Errorf("%w: line %d has no label", source.ErrInvalid, l.number)
		}
		n, err := strconv.ParseInt(l.label, 10, 64)
		switch {
		case err == nil:
			labels[i], number = n, l
		case strings.HasSuffix(err.Error(), strconv.ErrRange.Error()):
			return nil, nil, fmt.Errorf("%w: line %d: the label %s has more than 64 bits", source.ErrInvalid, l.number, l.label)
		default:
			name = l
		}
		if number != nil && name != nil {
			return nil, nil, fmt.Errorf("%w: the label of line %d is a number (%s), that of line %d is not (%q): "+
				"labels are all numbers or all names",
				source.ErrInvalid,
				number.number, number.label, name.number, name.label)
		}
	}
	if name == nil {
		return labels, nil, nil
	}
	for _, l := range lines {
		classes = append(classes, l.label)
	}
	slices.Sort(classes)
	classes = slices.Clip(slices.Compact(classes))
	for i, l := range lines {
		k, _ := slices.BinarySearch(classes, l.label)
		labels[i] = int64(k)
	}
	return labels, classes, nil
}
