package tar

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/stocached/stocached/source"
)

var url = regexp.MustCompile(`^(pipe:|file:|[a-z][a-z0-9+.-]*://)`)

// shardPaths returns the paths of the setting path in their order. It takes a file of exactly this
// name. Otherwise it expands braces, and matches * ? [ ] in each result with the
// existing files, sorted by name. It returns ErrInvalid when a pattern matches no file, when a path
// occurs twice, or when it is no path.
func shardPaths(pattern string) ([]string, error) {
	if pattern == "" {
		return nil, fmt.Errorf("%w: no path", source.ErrInvalid)
	}
	if st, err := os.Stat(pattern); err == nil {
		if st.IsDir() {
			return nil, fmt.Errorf("%w: %s is a folder; name its shards: path: %s", source.ErrInvalid, pattern,
				filepath.Join(pattern, "*.tar"))
		}
		return []string{pattern}, nil
	}
	if scheme := url.FindString(pattern); scheme != "" {
		return nil, fmt.Errorf("%w: path %q begins with %q; shards are read from local files: "+
			"download them, and name the files",
			source.ErrInvalid, pattern, scheme)
	}
	expanded, err := expandBraces(pattern)
	if err != nil {
		return nil, err
	}
	var paths []string
	seen := map[string]bool{}
	for _, one := range expanded {
		matches := []string{one}
		if strings.ContainsAny(one, "*?[") && !exists(one) {
			if matches, err = glob(one); err != nil {
				return nil, err
			}
		}
		for _, path := range matches {
			if seen[filepath.Clean(path)] {
				return nil, fmt.Errorf("%w: path %q names %s twice", source.ErrInvalid, pattern, path)
			}
			seen[filepath.Clean(path)] = true
			paths = append(paths, path)
		}
		if len(paths) > mostPaths {
			return nil, fmt.Errorf("%w: path %q has more than %d shards", source.ErrInvalid, pattern, mostPaths)
		}
	}
	return paths, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// glob returns the sorted matches of one pattern, without index files. It returns ErrInvalid when
// there are none.
func glob(pattern string) ([]string, error) {
	if strings.Contains(pattern, "**") {
		return nil, fmt.Errorf("%w: path %q: ** is not supported; name the folders, as in {train,val}/*.tar",
			source.ErrInvalid, pattern)
	}
	all, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: path %q: %w", source.ErrInvalid, pattern, err)
	}
	var shards []string
	for _, path := range all {
		if !strings.HasSuffix(path, indexSuffix) && !strings.HasSuffix(path, indexSuffix+newSuffix) {
			shards = append(shards, path)
		}
	}
	if len(shards) == 0 {
		return nil, fmt.Errorf("%w: no file matches %s", source.ErrInvalid, pattern)
	}
	return shards, nil
}
