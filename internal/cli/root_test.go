package cli

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/shm"
)

// Ensure that each command's help explains its exit codes and every field that its JSON has.
func TestHelp(t *testing.T) {
	for command, fields := range map[string][]string{
		"create": fieldsOf(createColumns), "ls": fieldsOf(lsColumns),
		"stats":  slices.Concat(fieldsOf(statsColumns), fieldsOf(comparedColumns), fieldsOf(serverColumns), fieldsOf(watchColumns)),
		"verify": fieldsOf(verifyColumns),
		"inspect": slices.Concat(fieldsOf(headerColumns), fieldsOf(fieldColumns), fieldsOf(regionColumns),
			fieldsOf(controlColumns), fieldsOf(clientColumns), fieldsOf(sampleColumns)),
		"rm": fieldsOf(rmColumns), "gc": fieldsOf(gcColumns), "version": fieldsOf(versionColumns),
		"warm": fieldsOf(warmColumns), "health": fieldsOf(healthColumns), "pack": fieldsOf(packColumns),
		"source info":   slices.Concat(fieldsOf(infoColumns), fieldsOf(fieldColumns), fieldsOf(noteColumns)),
		"source verify": fieldsOf(readThroughColumns), "source cat": nil,
		"trace": slices.Concat(fieldsOf(epochColumns), fieldsOf(stageColumns), fieldsOf(useColumns), fieldsOf(slowColumns)),
	} {
		text := ok(t, append(strings.Fields(command), "--help")...)
		contains(t, text, "EXIT STATUS\n  0  done\n", "--json")
		for _, field := range fields {
			contains(t, text, "  "+field+"  ")
		}
	}
	for _, c := range newRoot().Commands() {
		if c.Args == nil || c.ValidArgsFunction == nil || c.RunE == nil {
			t.Errorf("%s: arguments %v, completion %v, run %v", c.Name(), c.Args != nil, c.ValidArgsFunction != nil,
				c.RunE != nil)
		}
	}
	text := strings.Join(strings.Fields(ok(t)), " ")
	for _, e := range exits {
		contains(t, text, fmt.Sprintf(" %d %s ", e.code, e.help))
	}
	contains(t, ok(t, "completion", "bash"), "__stocached")
}

// Ensure that each sentinel of the packages has the exit code of the help, wrapped or not, and that
// usage has priority.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, 0}, {shm.ErrSystem, 1}, {shm.ErrTimeout, 1}, {shm.ErrUnsupported, 1}, {shm.ErrClients, 1},
		{fmt.Errorf("anything"), 1}, {shm.ErrInvalid, 2}, {shm.ErrIndex, 2},
		{usage("x"), 2}, {shm.ErrNotFound, 3}, {shm.ErrCorrupt, 4}, {shm.ErrFormat, 4}, {shm.ErrMemory, 5},
		{shm.ErrFull, 5}, {shm.ErrExists, 6}, {shm.ErrPermission, 7},
		{shm.ErrReadOnly, 7}, {shm.ErrVersion, 8},
		{stocclient.ErrNoServer, 9}, {fmt.Errorf("%w (%w)", stocclient.ErrNoServer, fs.ErrNotExist), 9},
	} {
		expect.Equal(t, exitCode(c.err), c.code, "exit for %v", c.err)
		if c.err == nil {
			continue
		}
		expect.Equal(t, exitCode(reported(fmt.Errorf("while: %w", c.err))), c.code, "exit for %v, reported", c.err)
	}
	if reported(nil) != nil {
		t.Error("nothing was reported")
	}
}

// Ensure that every invalid command line ends with exit code 2 and a hint.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"frob"}, {"stats", "--frob"}, {"stats", "--interval", "x"}, {"--frob"},
		{"version", "x"}, {"completion"}, {"completion", "tcsh"}, {"create", "a", "--samples", "-1"}, {"verify"}} {
		code, out, stderr := cli(t, args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(stderr, "stocached: ") ||
			!strings.Contains(stderr, "--help says more") {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, stderr)
		}
	}
}

// An error about a file cannot control a terminal, whatever the name of the file is.
func TestErrorsControlNoTerminal(t *testing.T) {
	fails(t, exitNotFound, []string{"none\ufffd[2J\ufffd2J"}, "source", "info",
		filepath.Join(t.TempDir(), "none\x1b[2J\u009b2J"))
}

// Ensure that the shell completes names of caches as arguments of commands that take them.
func TestCompletion(t *testing.T) {
	dir, _ := newCache(t, small())
	ok(t, "create", "train", "--dir", dir, "--samples", "10", "--sample-bytes", "100")
	complete := func(args ...string) []string {
		t.Helper()
		out := lines(ok(t, append([]string{"__complete"}, args...)...))
		for k := range out {
			out[k] = strings.TrimSpace(out[k])
		}
		return out
	}
	const noFiles, files = ":4", ":0"
	for _, c := range []struct{ args, want []string }{
		{[]string{"stats", "--dir", dir, ""}, []string{"test", "train", noFiles}},
		{[]string{"verify", "--dir", dir, "tr"}, []string{"train", noFiles}},
		{[]string{"inspect", "--dir", dir, "x"}, []string{noFiles}},
		{[]string{"inspect", "--dir", dir, "test", ""}, []string{noFiles}},
		{[]string{"rm", "--dir", dir, "test", "t"}, []string{"test", "train", noFiles}},
		{[]string{"stats", "/dev/"}, []string{files}},
		{[]string{"gc", ""}, []string{noFiles}},
		{[]string{"create", "--unlink", ""}, []string{"never", "last", noFiles}},
		{[]string{"create", "--policy", ""}, []string{"first-come", "first-indices", "cost", "random", "clock", "fifo", "lru",
			"lfu", noFiles}}, // planned needs a server
	} {
		expect.Slice(t, complete(c.args...), c.want, "%v", c.args)
	}
}
