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
		Long: paragraphs(`Writes a manual page for each command into the folder DIR, which it makes if need be: stocached.1, stocached-warm.1 and so on, with the
text that --help prints. Pages that are there are written anew. The date on them is today's, or $SOURCE_DATE_EPOCH.`, exitStatus(exitPermission)),
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

// anybody says for all users what help texts say for the user who asks.
var anybody = strings.NewReplacer(shm.DefaultDir(), "/dev/shm/stocached-UID")

// markdownAll turns the texts of all commands into Markdown, which is what the pages are made from.
func markdownAll(c *cobra.Command) {
	c.DisableAutoGenTag = true
	c.Long = markdown(anybody.Replace(c.Long))
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = prose(anybody.Replace(f.Usage)) })
	for _, c := range c.Commands() {
		markdownAll(c)
	}
}

// markdown is a help text as Markdown: indented lines stay as they are, a line in capitals alone is
// a heading.
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
		case line == "EXIT STATUS":
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

// prose keeps what means something in Markdown from meaning it.
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
