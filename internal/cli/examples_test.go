package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
)

// smaller makes caches, datasets and timelines of examples small enough for a test, and gives a busy
// machine time.
var smaller = strings.NewReplacer("64GiB", "64MiB", "120GB", "120MB", "8GiB", "32MiB", "1281167", "12811",
	"100000", "1000", "--from 2.5 --to 3", "--from 0.25 --to 0.3", "--timeout 1s", "--timeout 30s")

// around is what an example of the help runs in: a folder with the files that examples name, and
// functions for programs that a test must not run. Commands that run until they are ended get a
// second.
const around = `
export HOME=$PWD
mkdir -p pictures/cat pictures/dog shards
for k in 10 11 12 13 14 15 16 17 18 19; do echo cat $k > pictures/cat/$k.jpg; echo dog $k > pictures/dog/$k.jpg; done
tar -cf shards/train-0.tar -C pictures/cat 10.jpg
tar -cf shards/train-1.tar -C pictures/dog 11.jpg
head -c 301056 /dev/zero > train.bin
touch train.py
cp "$RECORDING" run.json
cp run.json rank0.json
sed 's/"rank": 0,/"rank": 1,/' run.json > rank1.json
printf 'caches: [{name: letters, dir: %s, source: {kind: dir, path: pictures}}]\nsockets: {dir: run}\n' "$SEGMENTS" > config.yaml
stocached() {
    case $1 in create | stats | top | web | advise) set -- "$@" --dir "$SEGMENTS" ;; esac
    case "$*" in
    *--check* | *--once*) command stocached "$@" ;;
    "top "*) timeout 1 script -qec "stocached $*" /dev/null || [ $? = 124 ] ;; # on a terminal
    web* | *--watch* | "serve "*) timeout 1 stocached "$@" || [ $? = 124 ] ;;
    *) command stocached "$@" ;;
    esac
}
man() { [ -s ".local/share/man/man1/$1.1" ]; }
python() { [ -e "$1" ]; }
systemctl() { echo "no server answered; $*" >&2; false; }
`

// beforeExample are commands that the example of a command needs, and betweenLines those between its
// lines.
var beforeExample = map[string]string{
	"source cat": "command stocached pack ./pictures train --source 'glob=**/*.jpg,labels=folders' > /dev/null",
	"advise":     "command stocached warm pets > /dev/null",
	"serve":      "unset STOCACHED_SOCKETS_DIR", // another server has this folder
}

var betweenLines = map[string]string{"pack": "rm -rf train train.blocks"}

// Ensure that the examples in the help of each command work.
func TestExamples(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	d := newServedCaches(t, warmRecords(t, 20), warmCache("pets", "", ", policy: cost, size: 8MiB"), warmCache("imagenet", "", ""))
	bin := commandFolder(t)
	file := fatal.Value(filepath.Abs(recording))(t)
	found, examples := 0, map[string]bool{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, c := range c.Commands() {
			visit(c)
		}
		if c.Example == "" {
			return
		}
		found++
		for line := range strings.Lines(c.Example) {
			examples[strings.TrimSpace(line)] = true
		}
		name := strings.TrimPrefix(c.CommandPath(), "stocached ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			segments := tmpfs.Folder(t)
			if name != "create" {
				segments = d.segments
			}
			script := around + beforeExample[name] + "\n"
			for line := range strings.Lines(c.Example) {
				script += smaller.Replace(strings.TrimSpace(line)) + "\n" + betweenLines[name] + "\n"
			}
			cmd := exec.Command(bash, "--norc", "-eu", "-o", "pipefail", "-c", script)
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "RECORDING="+file, "SEGMENTS="+segments,
				"STOCACHED_SOCKETS_DIR="+d.sockets)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s\n%s", err, c.Example, out)
			}
		})
	}
	visit(newRoot())
	if found < 14 {
		t.Errorf("%d commands with examples", found)
	}
	guide := fatal.Value(os.ReadFile("../../docs/guides/advise.md"))(t)
	_, block, _ := strings.Cut(string(guide), "```sh by internal/cli/examples_test.go\n")
	if command, _, _ := strings.Cut(block, "\n```"); !examples[command] {
		t.Errorf("the guide's %q is no example of a command's help", command)
	}
}
