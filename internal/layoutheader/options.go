package main

import (
	"cmp"
	"fmt"
	"log"
	"reflect"
	"regexp"
	"strings"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source/decode"
)

const origin = "Generated from shm/option_table.go by go generate ./shm; do not edit."

// generated makes each file from its present text, by its path from package shm.
var generated = map[string]func(old string) string{
	"../cclient/stocached_layout.h": func(string) string { return string(header()) },
	"../cimage/src/kinds.h": func(string) string {
		var b strings.Builder
		b.WriteString("/* Generated from source/decode/kinds.go by go generate ./shm; do not edit. */\n")
		for _, k := range decode.Beginnings {
			b.WriteString("KIND(\"" + k.Kind + "\", \"")
			for _, c := range []byte(k.Bytes) {
				if c > ' ' && c < 127 && c != '?' { // ?? may begin a trigraph
					b.WriteByte(c)
				} else {
					fmt.Fprintf(&b, "\\%03o", c)
				}
			}
			b.WriteString("\")\n")
		}
		return b.String()
	},
	"../cclient/src/protocol/option_rows.h": func(string) string {
		return "/* " + origin + " */\n" + rows(func(p *shm.Option) string {
			if p.Most == 0 || p.C == "" {
				return ""
			} else if p.In(&shm.Options{}).Kind() == reflect.String {
				return fmt.Sprintf("TEXT(%q, %s, %d, %q)\n", p.Name, p.C, p.Most, p.Wanted())
			}
			return fmt.Sprintf("NUMBER(%q, %s, %t, %d, %d, %q)\n", p.Name, p.C, p.Default == "", p.Least, p.Most, p.Wanted())
		})
	},
	"../python/src/stocached/_cache/option_table.py": func(string) string {
		return `"""` + origin + `"""` + "\n\n# fmt: off\n# numbers by keyword: member of struct stoc_options, range, what an " +
			"error says that it takes\nNUMBERS: dict[str, tuple[str, int, int, str]] = {\n" + rows(func(p *shm.Option) string {
			if p.Least == 0 {
				return ""
			}
			return fmt.Sprintf("    %q: (%q, %d, %d, %q),\n", p.Name, p.C, p.Least, p.Most, p.Wanted())
		}) + "}\n"
	},
	"../python/src/stocached/_cache/cache.py": func(old string) string {
		return between(old, "\"int64\"\\)}`\\.\n", "        progress: while ", rows(func(p *shm.Option) (text string) {
			if p.C == "" || p.Name == "fields" { // explained before
				return ""
			}
			line := "       "
			for _, word := range strings.Fields(p.Name + ": " + p.Help() + ".") {
				if len(line)+1+len(word) > 100 {
					text, line = text+line+"\n", "           "
				}
				line += " " + word
			}
			return text + line + "\n"
		}))
	},
	"../docs/spec/options.md": func(old string) string {
		return between(old, "\\|---.*?\n", "\nThe members", rows(func(p *shm.Option) string {
			takes := ""
			if p.Most > 0 {
				takes, _, _ = strings.Cut(p.Wanted(), ";")
			}
			return fmt.Sprintf("| `%s` | `%s` | `%s` | %s | %s | %s |\n", p.Name, cmp.Or(p.C, "-"), p.Go, takes,
				cmp.Or(p.Default, "an error"), p.Doc)
		}))
	},
}

// rows joins what one makes of each option.
func rows(one func(*shm.Option) string) (all string) {
	for k := range shm.OptionTable {
		all += one(&shm.OptionTable[k])
	}
	return all
}

// between replaces what stands between two patterns in a text.
func between(text, begin, end, with string) string {
	parts := regexp.MustCompile("(?s)^(.*?" + begin + ").*?(" + end + ".*)$").FindStringSubmatch(text)
	if parts == nil {
		log.Fatalf("no %q and %q", begin, end)
	}
	return parts[1] + with + parts[2]
}
