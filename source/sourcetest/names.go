package sourcetest

import (
	_ "embed"
	"net/url"
	"strings"
)

//go:embed odd_names.txt
var oddNames string

// OddNames returns names of files, without their end, that another grammar must quote. Tests of each way to a file
// take all of them.
func OddNames() (names []string) {
	for line := range strings.Lines(oddNames) {
		if _, quoted, found := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); found && line[0] != '#' {
			name, err := url.PathUnescape(quoted)
			if err != nil {
				panic(err) // the table is a part of the program
			}
			names = append(names, name)
		}
	}
	return names
}
