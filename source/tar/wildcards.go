package tar

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"

	"github.com/bmatcuk/doublestar/v4"
)

// Wildcards of shards are those of a shell: * and ? and [ ] match within a name, [!a] and [^a] are every character but
// a, ** any folders, and a hidden name needs a pattern with its dot. Python's source and image.Shards have the same:
// testdata/wildcards.json has cases of all.

// wild says whether a path has wildcards.
func wild(path string) bool { return strings.ContainsAny(path, "*?[") }

// bare makes braces and backslashes, which are expanded before, literal for package doublestar.
var bare = strings.NewReplacer(`\`, `\\`, "{", `\{`, "}", `\}`)

// partsOf returns the parts of a pattern, between slashes. It returns ErrInvalid if it is none.
func partsOf(pattern string) (parts []string, err error) {
	parts = strings.Split(pattern, "/")
	for k, part := range parts {
		if strings.Contains(part, "**") && part != "**" {
			return nil, fmt.Errorf("%w: path %q is no pattern: ** stands for folders, so it is a whole part, as in a/**/*.tar",
				source.ErrInvalid, pattern)
		}
		if parts[k] = bare.Replace(part); !doublestar.ValidatePattern(parts[k]) {
			return nil, fmt.Errorf("%w: path %q is no pattern: [ needs a ] with characters or ranges before it", source.ErrInvalid,
				pattern)
		}
	}
	if parts[len(parts)-1] == "**" {
		parts = append(parts, "*")
	}
	return parts, nil
}

// fits says whether the parts of a name fit those of a pattern.
func fits(parts, name []string) bool {
	switch {
	case len(parts) == 0 || len(name) == 0:
		return len(parts) == len(name)
	case parts[0] == "**" && fits(parts[1:], name):
		return true
	case !fitsPart(parts[0], name[0]):
		return false
	case parts[0] == "**":
		return fits(parts, name[1:])
	}
	return fits(parts[1:], name[1:])
}

// fitsPart says whether the name of a file or folder fits a part of a pattern.
func fitsPart(part, name string) bool {
	if strings.HasPrefix(name, ".") && !strings.HasPrefix(part, ".") {
		return false
	}
	return part == "**" || doublestar.MatchUnvalidated(part, name)
}

// shardsOf returns the names that are shards of a pattern, in byte order: no index files.
func shardsOf(parts, names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool {
		return strings.HasSuffix(name, indexSuffix) || strings.HasSuffix(name, indexSuffix+newSuffix) ||
			!fits(parts, strings.Split(name, "/"))
	})
	slices.Sort(names)
	return slices.Compact(names)
}
