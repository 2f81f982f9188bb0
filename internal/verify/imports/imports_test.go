// Package imports holds one test: that imports point one way.
package imports

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stocached/stocached/internal/verify/fatal"
)

const module = "github.com/stocached/stocached"

// rule says what the packages of a folder (and its subfolders) may import beside the standard
// library and themselves.
type rule struct {
	ours   []string // folders of this module
	others []string // module paths; "*": any but cloud SDKs
	why    string
}

var (
	system = []string{"golang.org/x/sys"}
	low    = []string{"policy", "shm", "internal/fault"}
)

// rules is the direction: cmd -> server -> order, source, cache -> policy, shm; loader -> order,
// source, client; client -> cache, shm; nothing points up.
var rules = map[string]rule{
	"shm": {[]string{"internal/fault"}, []string{"golang.org/x/sys", "github.com/edsrzf/mmap-go"},
		"the segment is the lowest layer: anything may be built on it, so it builds on no other"},
	"shm/memory": {nil, system,
		"memory is counted below the segment: it is told which caches there are"},
	"shm/diskfile": {[]string{"shm"}, system, "a file on a disk backs a segment, which knows it only as a backing"},
	"policy": {nil, nil,
		"policies are pure decisions: no locks, clock or I/O, so that a simulator runs the same code"},
	"internal/size": {nil, nil, "sizes are written the same way everywhere, so reading them needs nothing"},
	"internal/sockets": {[]string{"control", "shm"}, system,
		"clients and servers look at each other the same way, so it knows neither"},
	"internal/simulate": {[]string{"policy", "order", "internal/timeline", "internal/verify/arena"},
		[]string{"github.com/hashicorp/golang-lru"},
		"a simulator runs policies over reads, and needs no cache"},
	"internal/advise":  {[]string{"cache", "policy", "shm", "order", "internal/simulate", "internal/timeline"}, nil, "advice follows from what caches and loaders have measured"},
	"internal/palette": {nil, nil, "colours are the same everywhere, so the table of them needs nothing"},
	"internal/loadtime": {nil, system,
		"sources, servers, clients and loaders measure loads the same way, so it knows none"},
	"internal/poll":       {nil, nil, "tiers and clients wait for the loads of others the same way, so it knows neither"},
	"internal/clock":      {nil, nil, "a clock is the same everywhere, so it needs nothing"},
	"internal/fewlines":   {nil, nil, "logs are bounded the same way everywhere, so it needs nothing"},
	"internal/breaker":    {[]string{"internal/clock"}, nil, "tiers and clients leave out what fails the same way, so it knows neither"},
	"internal/writequeue": {nil, nil, "servers and clients write in the background the same way, so it knows neither"},
	"internal/fault":      {nil, system, "fault points are passed in every layer, so they may know none"},
	"cache": {low, system,
		"the protocol joins segment and policy, and knows nothing of sources, servers and users"},
	"source": {[]string{"shm", "internal/fault", "internal/loadtime", "internal/size"}, []string{"*", "cloud"},
		"a source knows what samples are made of, and nothing of caches; cloud SDKs live here and nowhere else"},
	"source/sourcetest": {[]string{"source", "shm", "internal/verify"}, []string{"golang.org/x/sys", "go.uber.org/goleak"}, "only tests use what tests of sources share"},
	"source/s3/s3test":  {[]string{"source", "internal/verify"}, []string{"*", "cloud"}, "only tests start a server of their own"},
	"tier": {[]string{"source", "shm", "internal/loadtime", "internal/breaker", "internal/writequeue", "internal/poll", "internal/size"}, system,
		"a tier lies around a source, and knows nothing of caches, servers and engines"},
	"tier/cluster": {[]string{"tier", "source", "shm", "internal/breaker", "internal/clock", "internal/size"}, []string{"github.com/redis/go-redis", "engine"},
		"a tier knows its engine; other packages know it only as a tier"},
	"internal/verify/redistest": {[]string{"internal/verify"}, []string{"github.com/redis/go-redis", "engine"}, "tests start an engine, and talk to it"},
	"tier/disk": {[]string{"tier", "source", "cache", "shm", "internal/breaker", "internal/size"}, system,
		"a tier on a disk is a segment in a file, which the cache package reads and fills"},
	"tier/kinds": {[]string{"tier", "source", "internal/size"}, nil, "the list of all kinds of tier"},
	"order":      {nil, nil, "an order is a function of numbers, the same in three languages"},
	"loader": {[]string{"client", "order", "source", "internal/loadtime"}, nil,
		"a loader reads sources, and caches as every program does; it works without a server"},
	"server/fill": {append([]string{"source", "cache", "control", "internal/loadtime", "internal/fewlines"}, low...), nil,
		"a filler knows who asks for samples only as an interface"},
	"server/jobs": {append([]string{"order"}, low...), nil,
		"what jobs read is a matter of orders and counters"},
	"server/prefetch": {append([]string{"server/fill", "server/jobs", "order", "cache", "control"}, low...), nil,
		"a schedule asks a filler for samples, and knows a served cache only as an interface"},
	"server/served": {append([]string{"server/fill", "server/jobs", "server/prefetch", "source", "cache",
		"internal/advise", "tier"}, low...), nil,
		"a served cache knows no clients and no sockets"},
	"server/session": {append([]string{"server/fill", "server/jobs", "server/served", "control", "order", "internal/fewlines"}, low...), system,
		"a connection knows its server only by what it needs of it"},
	"server/admin": {append([]string{"server/fill", "server/prefetch", "server/served", "server/session", "order",
		"source", "cache", "tier", "internal/fewlines"}, low...), []string{"*"},
		"the handlers of operators know their server only by what they need of it"},
	"server": {append([]string{"order", "source", "cache", "control", "tier", "internal/size", "internal/sockets", "internal/fewlines"},
		low...), []string{"*"}, "the daemon is above all but the command line, and clients do not need it"},
	"control": {nil, nil,
		"the protocol of the data socket is bytes: server and clients share it, and it knows neither"},
	"client": {append([]string{"cache", "control", "order", "internal/breaker", "internal/clock", "internal/writequeue", "internal/loadtime",
		"internal/poll", "internal/sockets"}, low...), system,
		"what a training program imports must stay small: no server, no sources, no SDKs"},
	"demo": {[]string{"client"}, nil,
		"the demo shows what a user writes, who has the client and nothing else"},
	"examples": {[]string{"client", "loader", "order", "source"}, nil,
		"an example shows what a user of the packages writes"},
	"cclient": {nil, nil, "the C client is C: the only Go beside it is the folder of its conformance tests"},
	"cclient/conform": {append([]string{"cache", "client"}, low...), system,
		"the conformance tests drive Go and C side by side"},
	"cmd": {[]string{"internal/cli"}, nil, "a program is its command line"},
	"internal/cli": {append([]string{"server", "client", "order", "loader", "source", "cache", "control",
		"internal/size", "internal/sockets", "internal/timeline", "internal/simulate", "internal/advise",
		"tier", "internal/clock"}, low...),
		[]string{"*"},
		"the command line is on top"},
	"internal/cli/table": {[]string{"control"}, nil, "a table knows nothing of what is in it"},
	"internal/cli/live": {[]string{"internal/cli/table", "internal/palette"}, nil,
		"what top and the page show is given to them: they read no caches"},
	"internal/cli/top": {[]string{"internal/cli/live", "internal/cli/table"}, append([]string{"screen"}, screens...),
		"a screen shows frames, and reads no caches"},
	"internal/cli/web": {[]string{"internal/cli/live", "internal/cli/table", "internal/palette", "internal/timeline"}, nil,
		"a page shows frames and timelines, and reads no caches"},
}

// shown are further folders that the tests of a folder may import: the packages of its users, so
// that examples are what a user writes.
var shown = map[string][]string{"loader": {"server", "shm"}, "server": {"client"}}

// helpers are what tests of any folder may import.
var helpers = []string{"go.uber.org/goleak", "golang.org/x/tools/txtar"}

// engines are the modules that talk to the engines of tiers.
var engines = []string{"github.com/redis/", "github.com/valkey-io/", "github.com/bradfitz/gomemcache"}

// screens are the modules for screens on terminals.
var screens = []string{"charm.land", "github.com/charmbracelet"}

// cloud SDKs, by the beginnings of their module paths.
var cloud = []string{"github.com/aws/", "github.com/minio/"}

// Ensure that no import of this module points up, that only the conformance tests use cgo, and that
// cloud SDKs stay under source/.
func TestDirection(t *testing.T) {
	violations, files, err := check(os.DirFS("../../.."))
	fatal.If(t, err)
	if files < 20 {
		t.Fatalf("only %d Go files found: is this run from the module?", files)
	}
	for _, v := range violations {
		t.Error(v)
	}
}

// Ensure that check finds each kind of violation, and accepts what is allowed. TestDirection tries the rules themselves.
func TestCheckSees(t *testing.T) {
	for _, c := range []struct {
		file, imports string
		want          string // part of the message; "": allowed
	}{
		{"shm/a.go", module + "/cache", "shm/a.go imports cache: the segment is the lowest layer"},
		{"shm/a_test.go", module + "/cache", "shm/a_test.go imports cache"},
		{"shm/a_test.go", module + "/internal/anything", ""},
		{"shm/a.go", "github.com/spf13/cobra", "shm/a.go imports github.com/spf13/cobra"},
		{"shm/a.go", "golang.org/x/sys/unix", ""},
		{"shm/a.go", "golang.org/x/sysevil", "imports golang.org/x/sysevil"},
		{"shm/a.go", "os", ""},
		{"shm/a.go", "C", "cgo"},
		{"shm/a.go", module + "/shm/memory", ""},
		{"shm/memory/a.go", module + "/shm", "memory is counted below the segment"},
		{"client/a.go", "github.com/redis/go-redis/v9", "engines of tiers"},
		{"tier/cluster/a.go", "github.com/redis/go-redis/v9", ""},
		{"loader/a_test.go", module + "/client", ""},
		{"loader/a_test.go", module + "/cmd/stocached", "it works without a server"},
		{"loader/a_test.go", "go.uber.org/goleak", ""},
		{"loader/a.go", "go.uber.org/goleak", "it works without a server"},
		{"server/a.go", "github.com/minio/minio-go/v7", "cloud SDK"},
		{"source/s3/a.go", "github.com/minio/minio-go/v7", ""},
		{"cclient/conform/a.go", "C", ""},
		{"internal/cli/a.go", "github.com/spf13/cobra", ""},
		{"client/a.go", "charm.land/lipgloss/v2", "screens on terminals"},
		{"internal/cli/top/a.go", "charm.land/bubbletea/v2", ""},
		{"internal/verify/model/a.go", module + "/cache", ""},
		{"tools/lint/a.go", "golang.org/x/tools", ""},
		{"shm/a.go", module + "/tools/lint", "shm/a.go imports tools/lint"},
		{"novel/a.go", "os", "novel/a.go lies in a folder without a rule"},
		{"bench/a.go", module + "/novel", ""}, // another module
	} {
		tree := fstest.MapFS{
			"go.mod":       {Data: []byte("module " + module)},
			"bench/go.mod": {Data: []byte("module bench")},
			c.file:         {Data: []byte(fmt.Sprintf("package p\nimport %q\n", c.imports))},
		}
		violations, _, err := check(tree)
		fatal.If(t, err)
		got := strings.Join(violations, "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s importing %s: got %q, want %q", c.file, c.imports, got, c.want)
		}
	}
}

// check reads the imports of every Go file, whatever its build tags.
func check(tree fs.FS) (violations []string, files int, err error) {
	err = fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if name != "." && (base[0] == '.' || base == "testdata" || base == "build" || base == "node_modules") {
				return fs.SkipDir
			}
			if _, err := fs.Stat(tree, path.Join(name, "go.mod")); err == nil && name != "." { // another module
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		files++
		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if v := violation(name, imported); v != "" {
				violations = append(violations, v)
			}
		}
		return nil
	})
	return violations, files, err
}

// violation describes what is wrong with a file's import; "": nothing.
func violation(file, imported string) string {
	folder, r, ok := ruleOf(path.Dir(file))
	if imported == "C" {
		if folder == "cclient/conform" {
			return ""
		}
		return file + " uses cgo: only cclient/conform may, everything else builds without a C compiler and must " +
			"not carry two runtimes"
	}
	if (within(file, "internal") || within(file, "tools")) && !ok {
		return "" // tools and tests may import everything; the importer's rule decides who may import them
	}
	if !ok {
		return fmt.Sprintf("%s lies in a folder without a rule: add one to internal/verify/imports, with its reason",
			file)
	}
	if rest, mine := strings.CutPrefix(imported, module+"/"); mine {
		if within(rest, folder) || slices.ContainsFunc(r.ours, func(f string) bool { return within(rest, f) }) {
			return ""
		}
		if strings.HasSuffix(file, "_test.go") &&
			(within(rest, "internal") || slices.ContainsFunc(shown[folder],
				func(f string) bool { return within(rest, f) })) {
			return ""
		}
		return fmt.Sprintf("%s imports %s: %s", file, rest, r.why)
	}
	if !strings.Contains(strings.Split(imported, "/")[0], ".") { // the standard library
		return ""
	}
	if slices.ContainsFunc(cloud, func(prefix string) bool {
		return strings.HasPrefix(imported, prefix)
	}) && !slices.Contains(r.others, "cloud") {
		return fmt.Sprintf("%s imports the cloud SDK %s: those live under source/ only", file, imported)
	}
	if slices.ContainsFunc(engines, func(prefix string) bool {
		return strings.HasPrefix(imported, prefix)
	}) && !slices.Contains(r.others, "engine") {
		return fmt.Sprintf("%s imports %s: engines of tiers are known under tier/ only", file, imported)
	}
	if slices.ContainsFunc(screens, func(m string) bool { return within(imported, m) }) &&
		!slices.Contains(r.others, "screen") {
		return fmt.Sprintf("%s imports %s: screens on terminals live in internal/cli/top only", file, imported)
	}
	if strings.HasSuffix(file, "_test.go") && slices.Contains(helpers, imported) {
		return ""
	}
	if slices.Contains(r.others, "*") ||
		slices.ContainsFunc(r.others, func(m string) bool { return within(imported, m) }) {
		return ""
	}
	return fmt.Sprintf("%s imports %s: %s", file, imported, r.why)
}

// ruleOf finds the rule of the nearest folder that has one.
func ruleOf(dir string) (folder string, r rule, ok bool) {
	for ; dir != "."; dir = path.Dir(dir) {
		if r, ok := rules[dir]; ok {
			return dir, r, true
		}
	}
	return "", rule{}, false
}

// within says whether a slash-separated path is folder or lies in it.
func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }
