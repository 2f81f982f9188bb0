package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Ensure that each command has a manual page with the text of --help, word for word, and that man
// reports no problem.
func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man", "man1")
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	ok(t, "man", dir)
	man, err := exec.LookPath("man")
	if err != nil {
		t.Log("man is not installed: the pages are not shown, only made")
	}
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	pages := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, c := range c.Commands() {
			visit(c)
		}
		pages++
		page := filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
		source, err := os.ReadFile(page)
		if err != nil {
			t.Error(err)
			return
		}
		contains(t, string(source), ".TH ", "Sep 2001", "stocached "+version)
		if man == "" {
			return
		}
		cmd := exec.Command(man, "--warnings=w", "-E", "utf8", "-l", page)
		cmd.Env = append(os.Environ(), "MANWIDTH=10000", "LC_ALL=C.UTF-8", "MANPAGER=cat", "GROFF_NO_SGR=1")
		var shown, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &shown, &complaints
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", page, err, complaints.String())
		}
		if complaints.Len() > 0 {
			t.Errorf("%s:\n%s", page, complaints.String())
		}
		text := words(unstruck(shown.String()))
		contains(t, text, words(c.Short), words(anyUser.Replace(c.Long)), words(c.Example))
		synopsis := c.CommandPath()
		if c.HasSubCommands() {
			synopsis += " COMMAND"
		}
		c.InitDefaultHelpFlag()
		c.InitDefaultVersionFlag()
		contains(t, text, "SYNOPSIS "+synopsis, " [flags] DESCRIPTION",
			"OPTIONS "+words(anyUser.Replace(c.LocalFlags().FlagUsages())))
		if strings.Count(text, "OPTIONS ") != 1 || strings.Contains(text, "[=") || strings.Contains(text, `=""`) {
			t.Errorf("%s has options of another form than --help:\n%s", page, text)
		}
	}
	root := newRoot()
	addCompletion(root)
	visit(root)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != pages || pages < 20 {
		t.Errorf("%d pages, %d commands, %v", len(entries), pages, err)
	}
	ok(t, "man", dir) // again, over existing pages
	fails(t, exitUsage, []string{"0 arguments, expected the folder"}, "man")
	file := filepath.Join(dir, "stocached.1")
	fails(t, exitFailed, []string{"not a directory"}, "man", file)
}

// unstruck removes the backspaces that mark bold type for terminals.
func unstruck(text string) string {
	var out []rune
	for _, r := range text {
		if r == '\b' {
			out = out[:len(out)-1]
		} else {
			out = append(out, r)
		}
	}
	return string(out)
}
