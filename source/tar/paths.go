package tar

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/stocached/stocached/source"
)

var url = regexp.MustCompile(`^(pipe:|file:|[a-z][a-z0-9+.-]*://)`)

// shardPaths returns the paths of the setting path in their order. It takes a file of exactly this
// name. Otherwise it expands braces, and matches the wildcards of each result with the
// existing files, in byte order. It returns ErrInvalid when a pattern matches no file, when a path
// occurs twice, or when it is no path.
func shardPaths(ctx context.Context, place *source.Place, pattern string) ([]string, error) {
	remote := place.Objects() != nil
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
			if matches, err = globObjects(ctx, place.Objects(), one); err != nil {
				return nil, err
			}
		} else if !remote && wild(one) && !exists(one) {
			if matches, err = glob(one); err != nil {
				return nil, err
			}
		}
		for _, shard := range matches {
			key := shard
			if !remote {
				key = filepath.Clean(shard)
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
	return paths, nil
}

// globObjects returns the objects that match a pattern, in byte order. It returns ErrInvalid when there
// are none, or when the objects cannot be listed.
func globObjects(ctx context.Context, objects source.Objects, pattern string) ([]string, error) {
	translated, err := goPattern(pattern)
	if err != nil {
		return nil, err
	}
	var shards []string
	exact := false // as on a disk, an object of exactly this name counts alone
	prefix := pattern[:strings.IndexAny(pattern, "*?[")]
	err = objects.List(ctx, prefix, func(name string, _ source.Stamp) error {
		exact = exact || name == pattern
		matches, _ := path.Match(translated, name) // a valid pattern
		if matches && !source.StandsForFolder(name) {
			shards = append(shards, name)
		}
		return nil
	})
	if shards = shardsOf(pattern, shards); exact {
		shards = []string{pattern}
	}
	if err == nil && len(shards) == 0 {
		err = fmt.Errorf("%w: no object matches %s", source.ErrInvalid, pattern)
	}
	return shards, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// glob returns the sorted matches of one pattern, without index files. It returns ErrInvalid when
// there are none.
func glob(pattern string) ([]string, error) {
	translated, err := goPattern(pattern)
	if err != nil {
		return nil, err
	}
	all, err := filepath.Glob(translated)
	if err != nil {
		return nil, fmt.Errorf("%w: path %q: %w", source.ErrInvalid, pattern, err)
	}
	shards := shardsOf(filepath.Clean(pattern), all)
	if len(shards) == 0 {
		return nil, fmt.Errorf("%w: no file matches %s", source.ErrInvalid, pattern)
	}
	return shards, nil
}
