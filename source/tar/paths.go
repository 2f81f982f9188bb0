package tar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/stocached/stocached/source"
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
	folder := cleaned[:strings.LastIndex(cleaned[:strings.IndexAny(cleaned, "*?[")], "/")+1]
	f := finder{parts: parts}
	if err = f.below(folder, []int{strings.Count(folder, "/")}, nil); err != nil {
		return nil, fmt.Errorf("path %q: %w", pattern, err)
	}
	return shardsOf(parts, f.names), nil
}

// finder finds the files of a pattern, as Python's wildcards.found does.
type finder struct {
	parts []string
	names []string // names of files that were found
}

// below adds the files below a folder. places: the parts that names in it may match. above: folders that it lies in.
func (f *finder) below(folder string, places []int, above []os.FileInfo) error {
	anywhere := false
	for k := 0; k < len(places); k++ {
		if f.parts[places[k]] == "**" {
			anywhere = true
			if !slices.Contains(places, places[k]+1) {
				places = append(places, places[k]+1)
			}
		}
	}
	here, err := os.Stat(cmp.Or(folder, "."))
	if err == nil && anywhere {
		if slices.ContainsFunc(above, func(one os.FileInfo) bool { return os.SameFile(one, here) }) {
			return nil // a link back, which would never end
		}
		above = append(slices.Clip(above), here)
	}
	var entries []os.DirEntry
	if err == nil && here.IsDir() {
		entries, err = os.ReadDir(cmp.Or(folder, "."))
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		var inside []int
		fits := false
		for _, place := range places {
			part := f.parts[place]
			if !fitsPart(part, e.Name()) {
				continue
			}
			if part != "**" {
				place++
			}
			if place == len(f.parts) {
				fits = true
			} else if !slices.Contains(inside, place) {
				inside = append(inside, place)
			}
		}
		if !fits && inside == nil {
			continue
		}
		name, mode := folder+e.Name(), e.Type()
		if mode&fs.ModeSymlink != 0 {
			if info, err := os.Stat(name); err == nil {
				mode = info.Mode().Type()
			} else {
				mode = 0 // who reads it gets the error
			}
		}
		if mode.IsRegular() && fits {
			f.names = append(f.names, name)
		}
		if mode.IsDir() && inside != nil {
			if err := f.below(name+"/", inside, above); err != nil {
				return err
			}
		}
	}
	return nil
}
