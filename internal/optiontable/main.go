// Command optiontable writes what C, Python and the documents have of shm.OptionTable
// (go generate ./shm).
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"log"
	"os"
	"regexp"
	"strings"

	"github.com/stocached/stocached/shm"
)

const origin = "Generated from shm/option_table.go by go generate ./shm; do not edit."

// generated makes each file from its present text, by its path from package shm.
var generated = map[string]func(old string) string{
	"../cclient/src/protocol/option_rows.h":          func(string) string { return rowsOfC() },
	"../python/src/stocached/_cache/option_table.py": func(string) string { return numbersOfPython() },
	"../python/src/stocached/_cache/cache.py":        docstring,
	"../docs/spec/options.md":                        reference,
}

func main() {
	for path, write := range generated {
		old, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			log.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(write(string(old))), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

func rowsOfC() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "/* %s\n * Option: its member, its name in Python, how it is checked, its range, what an error "+
		"says that it takes. */\n", origin)
	for _, p := range shm.OptionTable {
		check, r := "NUMBER", p.Number
		switch {
		case p.C == "":
			continue
		case p.Bytes > 0:
			check, r.Most = "TEXT", uint64(p.Bytes)
		case p.Wanted() == "":
			check = "OTHERWISE"
		case p.Default == "":
			check = "NEEDED"
		case r.Power:
			check = "POWER"
		}
		fmt.Fprintf(&b, "ROW(%s, %q, %s, %d, %d, %q)\n", p.C, p.Name, check, r.Least, r.Most, p.Wanted())
	}
	return b.String()
}

func numbersOfPython() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\"\"\"%s\"\"\"\n\n# fmt: off\n# numbers by keyword: member of struct stoc_options, range, "+
		"what an error says that it takes\nNUMBERS: dict[str, tuple[str, int, int, str]] = {\n", origin)
	for _, p := range shm.OptionTable {
		if p.C != "" && p.Number.Least > 0 {
			fmt.Fprintf(&b, "    %q: (%q, %d, %d, %q),\n", p.Name, p.C, p.Number.Least, p.Number.Most, p.Wanted())
		}
	}
	return b.String() + "}\n"
}

// docstring writes the options into that of Cache.create, which explains fields before.
func docstring(old string) string {
	var b bytes.Buffer
	for _, p := range shm.OptionTable {
		if p.C == "" || p.Name == "fields" {
			continue
		}
		line := "       "
		for _, word := range strings.Fields(fmt.Sprintf("%s: %s.", p.Name, p.Help())) {
			if len(line)+1+len(word) > 100 {
				fmt.Fprintln(&b, line)
				line = "           "
			}
			line += " " + word
		}
		fmt.Fprintln(&b, line)
	}
	return between(old, "\"int64\"\\)}`\\.\n", "        progress: while ", b.String())
}

func reference(old string) string {
	var b bytes.Buffer
	fmt.Fprint(&b, "\n| option | C | Go | takes | without it | what it says |\n|---|---|---|---|---|---|\n")
	for _, p := range shm.OptionTable {
		takes, _, _ := strings.Cut(p.Wanted(), ";")
		fmt.Fprintf(&b, "| `%s` | `%s` | `%s` | %s | %s | %s |\n", p.Name, cmp.Or(p.C, "-"), p.Go, takes,
			cmp.Or(p.Default, "an error"), p.Doc)
	}
	return between(old, "<!-- "+origin+" -->\n", "<!-- end -->", b.String())
}

// between replaces what stands between two patterns in a text.
func between(text, begin, end, with string) string {
	parts := regexp.MustCompile("(?s)^(.*?" + begin + ").*?(" + end + ".*)$").FindStringSubmatch(text)
	if parts == nil {
		log.Fatalf("no %q and %q", begin, end)
	}
	return parts[1] + with + parts[2]
}
