package main

import (
	"path/filepath"
	"strconv"

	"github.com/stocached/stocached/bench/report"
)

// dataLoaderParts measure stocached.torch.DataLoader, othersParts the loaders of other projects
// beside it. The code is in bench/python/loaders.
var (
	dataLoaderParts = []part{
		inLoaders("hits", "everything cached, large samples"),
		inLoaders("step", "the same beside a training step"),
		inLoaders("small", "everything cached, small samples"),
		inLoaders("augment", "everything cached, random work for each sample"),
		inLoaders("cold", "JPEG files: nothing cached, a share, all"),
		inLoaders("first", "the first batch"),
		inLoaders("scale", "1 to 8 workers"),
		inLoaders("trace", "timelines"),
		inLoaders("memory", "memory of the process tree"),
		inLoaders("streams", "streams of items that cost nothing"),
		inLoaders("streams-workers", "streams of items that take their time"),
	}
	othersParts = []part{
		inLoaders("peers", "all of them, everything local and warm"),
		inLoaders("peers-memory", "memory of their process trees"),
	}
)

func inLoaders(name, what string) part {
	return part{name, what, true, func(r *runner, emit func(report.Measurement)) error {
		arguments := []string{filepath.Join("bench", "python"), "loaders", "--runs", strconv.Itoa(r.runs),
			"--folder", r.dir, "--loops", r.loops(), "--only", "loader-" + name}
		if r.quick {
			arguments = append(arguments, "--quick")
		}
		return r.run(emit, r.python, arguments...)
	}}
}
