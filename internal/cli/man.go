package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/stocached/stocached/shm"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write the manual pages",
		Long: paragraphs(`Writes a manual page for each command into the folder DIR: stocached.1, stocached-warm.1 and so on, with the
text that --help prints. It makes DIR if needed, and overwrites existing pages. The date on them is today's,
or $SOURCE_DATE_EPOCH.`,
			exitStatus(exitPermission)),
		Example: `  stocached man ~/.local/share/man/man1
  man stocached-warm`,
		Args: arguments(1, 1, "the folder to write into"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := newRoot()
			addCompletion(root)
			markdownAll(root)
			return doc.GenManTreeFromOpts(root, doc.GenManTreeOptions{Path: args[0], CommandSeparator: "-",
				Header: &doc.GenManHeader{Section: "1", Source: "stocached " + version, Manual: "stocached"}})
		},
	}
}

// anyUser replaces what holds for the present user only by what holds for all users.
var anyUser = strings.NewReplacer(shm.DefaultDir(), "/dev/shm/stocached-UID")

// markdownAll turns the texts of all commands into Markdown, the input of the pages.
func markdownAll(c *cobra.Command) {
	c.DisableAutoGenTag = true
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	if c.HasSubCommands() {
		c.Use += " COMMAND"
	}
	c.Use += " [flags]"
	long := c.Long + "\n\nOPTIONS\n" + c.LocalFlags().FlagUsages()
	c.Long = markdown(fitted(anyUser.Replace(long), 72))             // man indents them by 7
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Hidden = true }) // cobra would write --json[=false]
	for _, c := range c.Commands() {
		markdownAll(c)
	}
}

// markdown turns a help text into Markdown. Indented lines stay as they are; a line of capitals
// alone is a heading.
func markdown(help string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t")
		if indented != inside && (indented || line != "" || inside) {
			b.WriteString("\n```\n")
			inside = indented
		}
		switch {
		case indented:
			b.WriteString(line)
		case line == "EXIT STATUS", line == "OPTIONS":
			b.WriteString("# " + line)
		default:
			b.WriteString(prose(line))
		}
		b.WriteByte('\n')
	}
	if inside {
		b.WriteString("```\n")
	}
	return b.String()
}

// prose escapes the special characters of Markdown.
func prose(text string) string {
	var b strings.Builder
	for _, r := range text {
		if strings.ContainsRune("\\`*_{}[]<>#|~", r) {
			b.WriteByte('\\')
		}
		fmt.Fprint(&b, string(r))
	}
	return b.String()
}
