package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// bashWords replaces the part of package bash-completion that our script needs, if the package is
// not installed.
const bashWords = `_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }`

// commandFolder returns a folder whose program stocached runs this test's command.
func commandFolder(t *testing.T) string {
	bin := t.TempDir()
	program := fmt.Sprintf("#!/bin/sh\n%s=main exec %s \"$@\"\n", childVariable, os.Args[0])
	fatal.If(t, os.WriteFile(filepath.Join(bin, "stocached"), []byte(program), 0o700))
	return bin
}

// Ensure that our script completes commands, flags and the names of caches in bash: those in a
// folder, and those of a server.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	d := newServedCaches(t, warmRecords(t, 20), warmCache("pets", "", ""), warmCache("plants", "", ""))
	bin := commandFolder(t)
	words := bashWords
	if library := "/usr/share/bash-completion/bash_completion"; exists(library) {
		words = "source " + library
	}
	script := words + `
compopt() { :; } # it works only while a key completes
source <(stocached completion bash) || exit 1
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
__start_stocached
printf '%s\n' "${COMPREPLY[@]}"
`
	complete := func(words ...string) []string {
		t.Helper()
		cmd := exec.Command(bash, append([]string{"--norc", "-c", script, "bash", "stocached"}, words...)...)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		cmd.Stderr = os.Stderr
		out := fatal.Value(cmd.Output())(t)
		var offered []string
		for _, line := range strings.Fields(string(out)) {
			offered = append(offered, strings.TrimSpace(line))
		}
		slices.Sort(offered)
		return offered
	}
	for _, c := range []struct{ words, want []string }{
		{[]string{"wa"}, []string{"warm"}},
		{[]string{"stats", "--dir", d.segments, ""}, []string{"pets", "plants"}},
		{[]string{"rm", "--dir", d.segments, "pe"}, []string{"pets"}},
		{[]string{"inspect", "--dir", d.segments, "pl"}, []string{"plants"}},
		{[]string{"verify", "--dir", d.segments, "x"}, nil},
		{[]string{"warm", "--sockets", d.sockets, ""}, []string{"pets", "plants"}},
		{[]string{"warm", "--sockets", d.sockets, "pl"}, []string{"plants"}},
		{[]string{"warm", "--sockets", d.sockets, "pets", ""}, nil},
		{[]string{"health", "--sockets", d.sockets, "p"}, []string{"pets", "plants"}},
		{[]string{"health", "--sockets", "/nowhere", ""}, nil},
	} {
		got := complete(c.words...)
		for tries := 2; !slices.Equal(got, c.want) && tries > 0; tries-- { // a busy machine may answer too late
			got = complete(c.words...)
		}
		expect.Slice(t, got, c.want, "%v", c.words)
	}
	if got := complete("warm", "--"); !slices.Contains(got, "--parallel") || !slices.Contains(got, "--sockets") {
		t.Errorf("flags: %q", got)
	}
	pause(t, d.process) // a key press must not hang
	if got := complete("warm", "--sockets", d.sockets, ""); got != nil {
		t.Errorf("of a stopped server: %q", got)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Ensure that each shell that is installed can read its script, and that each command that takes a
// name completes it.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := ok(t, "completion", shell)
		contains(t, script, "__complete", "stocached")
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("%s is not installed: its script was not read", shell)
			continue
		}
		cmd := exec.Command(path, "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
	d := newServedCaches(t, warmRecords(t, 20), warmCache("pets", "", ""))
	for _, c := range newRoot().Commands() {
		if !strings.Contains(c.Use, "NAME") || c.Name() == "create" { // create needs a new name
			continue
		}
		args := []string{"__complete", c.Name()}
		for flag, value := range map[string]string{"dir": d.segments, "sockets": d.sockets} {
			if c.Flags().Lookup(flag) != nil {
				args = append(args, "--"+flag, value)
			}
		}
		if out := ok(t, append(args, "")...); !strings.HasPrefix(out, "pets\n") {
			t.Errorf("%s: %q", c.Name(), out)
		}
	}
}
