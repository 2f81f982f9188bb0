package tar

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/stocached/stocached/source"

	"github.com/bmatcuk/doublestar/v4"
)

var url = regexp.MustCompile(`^(pipe:|file:|[a-z][a-z0-9+.-]*://)`)

// shardPaths returns the paths of the setting path in their order. It takes a file of exactly this name. Otherwise it
// expands braces, and matches the wildcards of each result with the existing files, in byte order. objects: nil: local
// files. sorted: all are in byte order, each once. It returns ErrInvalid when a pattern matches no file (sorted: when
// none does), when a path occurs twice, or when it is no path.
func shardPaths(ctx context.Context, objects source.Objects, pattern string, sorted bool) ([]string, error) {
	remote := objects != nil
	if st, err := os.Stat(pattern); !remote && err == nil {
		if st.IsDir() {
			return nil, fmt.Errorf("%w: %s is a folder; name its shards: path: %s", source.ErrInvalid, pattern,
				filepath.Join(pattern, "*.tar"))
		}
		return []string{pattern}, nil
	}
	if scheme := url.FindString(pattern); scheme != "" && !remote {
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
		if remote && wild(one) {
			if matches, err = globObjects(ctx, objects, one); err != nil {
				return nil, err
			}
		} else if !remote && wild(one) && !exists(one) {
			if matches, err = glob(one); err != nil {
				return nil, err
			}
		}
		if len(matches) == 0 && !sorted {
			return nil, nothing(remote, one)
		}
		for _, shard := range matches {
			key := shard
			if !remote {
				key = filepath.Clean(shard)
			}
			if seen[key] && sorted {
				continue
			}
			if seen[key] {
				return nil, fmt.Errorf("%w: path %q names %s twice", source.ErrInvalid, pattern, shard)
			}
			seen[key] = true
			paths = append(paths, shard)
		}
		if len(paths) > mostPaths {
			return nil, fmt.Errorf("%w: path %q has more than %d shards", source.ErrInvalid, pattern, mostPaths)
		}
	}
	if len(paths) == 0 {
		return nil, nothing(remote, pattern)
	}
	if sorted {
		slices.Sort(paths)
	}
	return paths, nil
}

func nothing(remote bool, pattern string) error {
	what := "file"
	if remote {
		what = "object"
	}
	return fmt.Errorf("%w: no %s matches %s", source.ErrInvalid, what, pattern)
}

// globObjects returns the objects that match a pattern, in byte order. It returns ErrInvalid when the objects cannot be
// listed.
func globObjects(ctx context.Context, objects source.Objects, pattern string) ([]string, error) {
	parts, err := partsOf(pattern)
	if err != nil {
		return nil, err
	}
	var shards []string
	exact := false // as on a disk, an object of exactly this name counts alone
	prefix := pattern[:strings.IndexAny(pattern, "*?[")]
	err = objects.List(ctx, prefix, func(name string, _ source.Stamp) error {
		exact = exact || name == pattern
		if !source.StandsForFolder(name) && fits(parts, strings.Split(name, "/")) {
			shards = append(shards, name)
		}
		return nil
	})
	if shards = shardsOf(parts, shards); exact {
		shards = []string{pattern}
	}
	return shards, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// glob returns the sorted matches of one pattern, without index files.
func glob(pattern string) ([]string, error) {
	cleaned := filepath.Clean(pattern)
	parts, err := partsOf(cleaned)
	if err != nil {
		return nil, err
	}
	all, err := doublestar.FilepathGlob(bare.Replace(cleaned), doublestar.WithFilesOnly())
	if err != nil {
		return nil, fmt.Errorf("%w: path %q: %w", source.ErrInvalid, pattern, err)
	}
	return shardsOf(parts, all), nil
}
