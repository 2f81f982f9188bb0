package dir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stocached/stocached/source"
)

// classesOf returns the sorted names of the folders directly below the root, like torchvision's
// ImageFolder. The number of a class is its place in this list, even if a class has no files or its
// files are not read. folders are sorted.
func classesOf(folders []folder) (classes []string) {
	for _, f := range folders {
		if f.Name != "" && !strings.Contains(f.Name, "/") {
			classes = append(classes, f.Name)
		}
	}
	return classes
}

// labelsByFolder gives each file the number of the first folder of its path, or -1 if that is no
// class. It sets used for each class that has one of the files.
func labelsByFolder(names, classes []string, used []bool) (labels []int64) {
	labels = make([]int64, len(names))
	for i, name := range names {
		class, _, inside := strings.Cut(name, "/")
		k, ok := slices.BinarySearch(classes, class)
		if !inside || !ok {
			labels[i] = -1
			continue
		}
		labels[i], used[k] = int64(k), true
	}
	return labels
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
