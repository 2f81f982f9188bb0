package tar

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"
)

// Wildcards of shards are those of a shell: * and ? and [ ] match within a name, [!a] and [^a] are every character but
// a, and a hidden name needs a pattern with its dot. Python's image.Shards has the same:
// testdata/wildcards.json has cases of both.

// wild says whether a path has wildcards.
func wild(path string) bool { return strings.ContainsAny(path, "*?[") }

// goPattern returns a pattern for package path. It returns ErrInvalid if it is none.
func goPattern(pattern string) (string, error) {
	if strings.Contains(pattern, "**") {
		return "", fmt.Errorf("%w: path %q: ** is not supported; name the folders, as in {train,val}/*.tar", source.ErrInvalid,
			pattern)
	}
	translated := strings.ReplaceAll(pattern, "[!", "[^")
	if _, err := path.Match(translated, ""); err != nil {
		return "", fmt.Errorf("%w: path %q is no pattern: [ needs a ] with characters or ranges before it", source.ErrInvalid,
			pattern)
	}
	return translated, nil
}

// sees says whether a pattern may match a name that fits it: the hidden parts of the name need parts with a dot.
func sees(pattern, name string) bool {
	parts := strings.Split(pattern, "/")
	for k, part := range strings.Split(name, "/") {
		if strings.HasPrefix(part, ".") && !strings.HasPrefix(parts[k], ".") {
			return false
		}
	}
	return true
}

// shardsOf returns the names that are shards, in byte order: no index files.
func shardsOf(pattern string, names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool {
		return strings.HasSuffix(name, indexSuffix) || strings.HasSuffix(name, indexSuffix+newSuffix) || !sees(pattern, name)
	})
	slices.Sort(names)
	return slices.Compact(names)
}
