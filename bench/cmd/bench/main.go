// Bench measures every row of the project's table of speed and memory, and writes the results with
// verdicts.
//
// The rows have several groups: by default clients without a server, and one group for each flag
// (-server, -order, -loader, ...). For the clients it measures the Go client itself, compiles and
// runs the C programs in bench/c, and runs bench/python. For the server it compiles stocached and
// runs `stocached serve`, redis-server and memcached, each with its own folder and socket.
//
// It runs one part at a time, and keeps finished parts in build/bench, so that -resume continues with
// the next one. Caches are in a folder on /dev/shm, up to 8 GB. The files of the server's sources are
// in a folder in build/bench, up to 2 GB.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stocached/stocached/bench/measure"
	"github.com/stocached/stocached/bench/report"
)

const usage = `Usage: bench [flags]

Measures speed and memory and writes DATE-DESCRIPTION.json.gz, its page of tables (.md) and README.md into
bench/results (with -quick: build/bench). Parts, in this order:
%s
With -server it writes DATE-DESCRIPTION-server.json.gz, .md and README.md, and has these parts:
%s
With -order it writes DATE-DESCRIPTION-order.json.gz, .md and README.md, and has these parts:
%s
With -loader it writes DATE-DESCRIPTION-loader.json.gz, .md and README.md, and has these parts:
%s
With -dataloader it writes DATE-DESCRIPTION-dataloader.json.gz, .md and README.md, and has these parts:
%s
With -others it writes DATE-DESCRIPTION-others.json.gz, .md and README.md, and has these parts:
%s
Exit status: 0 measured, even if requirements were missed; 1 something failed; 2 wrong flags.

Flags:
`

func main() {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := measure.Worker(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench worker:", err)
			os.Exit(1)
		}
		return
	}
	r := &runner{}
	var only string
	var render, server, order, loader, dataLoader, others bool
	flag.BoolVar(&r.quick, "quick", false,
		"tiny sizes and 2 runs: shows that everything works, the numbers mean nothing")
	flag.BoolVar(&r.peers, "peers", false, "compare with stocaching and torch too, which must be installed; of the "+
		"server: with redis-server and memcached")
	flag.IntVar(&r.runs, "runs", 0,
		"runs of each subject (default 9, with -quick 2; at least 7 for numbers to be shown)")
	flag.StringVar(&only, "parts", "", "only these, separated by commas")
	flag.BoolVar(&r.resume, "resume", false, "keep the parts that an earlier run with the same flags has finished")
	flag.StringVar(&r.description, "description", "", "short, becomes part of the file's name (default: processor)")
	flag.StringVar(&r.out, "out", "", "folder of the results")
	flag.BoolVar(&server, "server", false, "measure the server, instead of what needs none")
	flag.BoolVar(&order, "order", false, "measure the order of an epoch")
	flag.BoolVar(&loader, "loader", false, "measure the loader in Go")
	flag.BoolVar(&dataLoader, "dataloader", false, "measure the loader in Python beside torch's and stocaching")
	flag.BoolVar(&others, "others", false, "measure the loaders of other projects, which must be installed, beside it")
	flag.StringVar(&r.stocached, "stocached", "",
		"with -server: measure this program (default: one built from this checkout)")
	flag.BoolVar(&render, "render", false,
		"only write the pages and README.md again, from the newest results in the folder")
	flag.Usage = func() {
		list := func(parts []part) string {
			var b strings.Builder
			for _, p := range parts {
				fmt.Fprintf(&b, "  %-10s %s\n", p.name, p.what)
			}
			return b.String()
		}
		fmt.Fprintf(flag.CommandLine.Output(), usage, list(clientParts), list(serverParts), list(orderParts),
			list(loaderParts), list(dataLoaderParts), list(othersParts))
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || count(server, order, loader, dataLoader, others) > 1 || r.runs < 0 || r.runs > 99 {
		flag.Usage()
		os.Exit(2)
	}
	r.group, r.all = &report.Clients, clientParts
	if server {
		r.group, r.all = &report.Server, serverParts
	}
	if order {
		r.group, r.all, r.peers = &report.Order, orderParts, true // it has no peers
	}
	if loader {
		r.group, r.all, r.peers = &report.Loader, loaderParts, true // as above
	}
	if dataLoader {
		r.group, r.all, r.peers = &report.DataLoader, dataLoaderParts, true
	}
	if others {
		r.group, r.all, r.peers = &report.Others, othersParts, true
	}
	if err := r.start(only, render); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// count returns the number of true values.
func count(all ...bool) int {
	n := 0
	for _, one := range all {
		if one {
			n++
		}
	}
	return n
}

// runner is one run of the program.
type runner struct {
	quick, peers, resume bool
	runs                 int
	description, out     string
	stocached            string

	root   string // of the repository
	state  string // finished parts and compiled programs
	dir    string // on the tmpfs
	python string
	cc     string
	group  *report.Group
	all    []part // of the group
	parts  []part // to run
	clean  folders
}

// folders are removed when the program is interrupted.
type folders struct {
	mu    sync.Mutex
	paths []string
}

func (f *folders) add(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paths = append(f.paths, path)
}

func (f *folders) all() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, path := range f.paths {
		os.RemoveAll(path)
	}
}

func (r *runner) start(only string, render bool) error {
	if err := r.find(); err != nil {
		return err
	}
	if render {
		return r.render()
	}
	r.parts = r.all
	if only != "" {
		r.parts = nil
		for name := range strings.SplitSeq(only, ",") {
			k := slices.IndexFunc(r.all, func(p part) bool { return p.name == name })
			if k < 0 {
				return fmt.Errorf("no part %q; -help lists them", name)
			}
			r.parts = append(r.parts, r.all[k])
		}
	}
	if err := r.prepare(); err != nil {
		return err
	}
	dir, remove, err := measure.Dir()
	if err != nil {
		return err
	}
	defer remove()
	r.dir = dir
	r.clean.add(dir)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		r.clean.all()
		os.Exit(130)
	}()
	return r.measure()
}

// find fills in paths and defaults.
func (r *runner) find() error {
	at, err := os.Getwd()
	if err != nil {
		return err
	}
	for ; r.root == ""; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "bench", "go.mod")); err == nil {
			r.root = at
		} else if at == filepath.Dir(at) {
			return errors.New("not within a checkout of stocached")
		}
	}
	if r.state == "" {
		r.state = filepath.Join(r.root, "build", "bench")
	}
	if r.out == "" {
		r.out = filepath.Join(r.root, "bench", "results")
		if r.quick {
			r.out = r.state
		}
	}
	r.python = cmp.Or(os.Getenv("BENCH_PYTHON"), filepath.Join(r.root, ".venv", "bin", "python"))
	r.cc = cmp.Or(os.Getenv("CC"), "cc")
	if r.runs == 0 {
		r.runs = map[bool]int{true: 2, false: 9}[r.quick]
	}
	return errors.Join(os.MkdirAll(r.state, 0o755), os.MkdirAll(r.out, 0o755))
}

// render writes the page of the newest whole result of each group in the folder, and README.md over
// all of them.
func (r *runner) render() error {
	files, err := filepath.Glob(filepath.Join(r.out, "*.json.gz"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	var results []*report.Result
	for _, group := range report.Groups {
		var newest *report.Result
		for _, path := range files {
			var one report.Result
			if err := one.Load(path); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if one.InGroup(group) && !one.Partial && (newest == nil || one.Date >= newest.Date) {
				newest = &one
			}
		}
		if newest == nil {
			continue
		}
		// apply the present requirements
		if newest.Verdicts, err = report.Judge(group.Requirements, newest.Measurements, true); err != nil {
			return err
		}
		results = append(results, newest)
	}
	if len(results) == 0 {
		return fmt.Errorf("no results in %s", r.out)
	}
	return r.write(results...)
}

func (r *runner) write(results ...*report.Result) error {
	for _, result := range results {
		if err := os.WriteFile(filepath.Join(r.out, result.PageFile()), []byte(result.Page()), 0o644); err != nil {
			return err
		}
	}
	others, err := r.otherPages()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "README.md"), []byte(report.Overview(results...)+others), 0o644)
}

// otherPages returns a list of the pages in the folder that have no raw numbers: other programs wrote them.
func (r *runner) otherPages() (string, error) {
	pages, err := filepath.Glob(filepath.Join(r.out, "*.md"))
	if err != nil {
		return "", err
	}
	var list strings.Builder
	for _, page := range pages {
		_, err := os.Stat(strings.TrimSuffix(page, ".md") + ".json.gz")
		if filepath.Base(page) == "README.md" || err == nil {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			return "", err
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		fmt.Fprintf(&list, "- [%s](%s)\n", title, filepath.Base(page))
	}
	if list.Len() == 0 {
		return "", nil
	}
	return "\n## Pages of single programs\n\n" + list.String(), nil
}

// prepare compiles the programs and checks that Python has the needed packages, before the first
// part.
func (r *runner) prepare() error {
	if r.group == &report.Server {
		return r.prepareServer()
	}
	if err := r.shell("make", "--no-print-directory", "-s", "-C", "cclient"); err != nil {
		return fmt.Errorf("the C library: %w", err)
	}
	sources, err := filepath.Glob(filepath.Join(r.root, "bench", "c", "*.c"))
	if err != nil {
		return err
	}
	compile := []string{"-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-Icclient", "-Ibench/c", "-o",
		r.program()}
	compile = append(append(compile, sources...), "-Lbuild", "-lstocached", "-Wl,-rpath,$ORIGIN/..")
	if err := r.shell(r.cc, compile...); err != nil {
		return fmt.Errorf("the C programs: %w", err)
	}
	static := slices.Replace(slices.Clone(compile), len(compile)-3, len(compile), "build/libstocached.a")
	static[slices.Index(static, r.program())] = r.program() + "-static"
	if err := r.shell(r.cc, static...); err != nil {
		return fmt.Errorf("the C programs, linked statically: %w", err)
	}
	if err := r.shell(r.cc, "-O2", "-shared", "-fPIC", "-pthread", "-o", r.loops(), "bench/c/loops.c"); err != nil {
		return fmt.Errorf("the C loops: %w", err)
	}
	if !slices.ContainsFunc(r.parts, func(p part) bool { return p.python }) {
		return nil
	}
	needs := "import stocached"
	if r.peers {
		needs += ", torch, stocaching"
	}
	if err := r.shell(r.python, "-c", needs); err != nil {
		return fmt.Errorf("%s: %w; `make bench` and `make bench-peers` install what is missing", needs, err)
	}
	return nil
}

func (r *runner) program() string { return filepath.Join(r.state, "bench") }
func (r *runner) loops() string   { return filepath.Join(r.state, "libloops.so") }

// shell runs a command in the root of the repository.
func (r *runner) shell(name string, arguments ...string) error {
	c := exec.Command(name, arguments...)
	c.Dir, c.Stdout, c.Stderr = r.root, os.Stderr, os.Stderr
	return c.Run()
}

// measure runs the parts and writes the result.
func (r *runner) measure() error {
	began := time.Now()
	result := report.Result{Group: r.group.Name, Partial: len(r.parts) < len(r.all) ||
		!r.peers, Date: began.Format("2006-01-02 15:04"), Quick: r.quick, Commit: r.commit(),
		Machine: report.DescribeMachine(r.python, r.cc)}
	if r.group == &report.Clients {
		result.Group = ""
	}
	if r.group == &report.Server && r.peers {
		result.Machine.Peers()
	}
	result.Description = cmp.Or(r.description, strings.Trim(result.Machine.CPU, " "))
	for _, p := range r.parts {
		all, err := r.part(&p)
		if err != nil {
			return fmt.Errorf("part %s: %w", p.name, err)
		}
		result.Measurements = append(result.Measurements, all...)
	}
	for _, m := range result.Measurements {
		if m.Case == measure.C2CCase {
			result.C2C = cmp.Or(m.Note, m.Missing)
		}
	}
	result.Seconds = time.Since(began).Seconds()
	result.Machine.LoadEnd = report.Load()
	var err error
	if result.Verdicts, err = report.Judge(r.group.Requirements, result.Measurements, r.peers); err != nil {
		return err
	}
	path := filepath.Join(r.out, result.File())
	if err := result.Save(path); err != nil {
		return err
	}
	fmt.Print(summary(&result))
	fmt.Printf("%.0f seconds. Written: %s", result.Seconds, relative(path))
	if !result.Partial {
		write := r.render
		if r.quick { // its folder has other files than results
			write = func() error { return r.write(&result) }
		}
		if err := write(); err != nil {
			return err
		}
		fmt.Printf(", its page and README.md beside it.\n")
		return nil
	}
	fmt.Printf(". Only runs of all parts with -peers make pages and README.md.\n")
	return nil
}

func (r *runner) commit() string {
	git := func(arguments ...string) string {
		out, _ := exec.Command("git", append([]string{"-C", r.root}, arguments...)...).Output()
		return strings.TrimSpace(string(out))
	}
	commit := git("rev-parse", "--short", "HEAD")
	if commit != "" && git("status", "--porcelain", "--untracked-files=no") != "" {
		commit += "+"
	}
	return commit
}

func relative(path string) string {
	if at, err := os.Getwd(); err == nil {
		if short, err := filepath.Rel(at, path); err == nil {
			return short
		}
	}
	return path
}

// summary shows each requirement on a line.
func summary(result *report.Result) string {
	var b strings.Builder
	for _, v := range result.Verdicts {
		fmt.Fprintf(&b, "%-28s %-24s %-6s %-32s %-30s %s\n", v.Row, v.Case, v.Size, v.Ours, v.Base, v.Line())
	}
	return b.String()
}
