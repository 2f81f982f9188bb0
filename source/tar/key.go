package tar

import (
	"strings"
	"unicode/utf8"
)

// splitName splits the name of a member into the key of its sample and its field. ok is false for a
// name that is no part of a sample: see the package comment.
func splitName(name string) (key, field string, ok bool) {
	if isMeta(name) {
		return "", "", false
	}
	base := strings.LastIndexByte(name, '/') + 1
	dot := strings.IndexByte(name[base:], '.')
	if dot <= 0 || base+dot+1 == len(name) || !utf8.ValidString(name[base+dot+1:]) {
		return "", "", false
	}
	return name[:base+dot], strings.ToLower(name[base+dot+1:]), true
}

// isMeta says whether a name is reserved for webdataset: __name__, or a path in such a folder at
// the top.
func isMeta(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return len(top) >= 4 && strings.HasPrefix(top, "__") && strings.HasSuffix(top, "__")
}
