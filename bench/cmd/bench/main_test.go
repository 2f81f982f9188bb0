package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/bench/measure"
	"github.com/stocached/stocached/bench/report"
)

// The test binary is a worker too, like the program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := measure.Worker(os.Args[2:]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A quick run of every part whose programs are installed, and its output.
func TestQuick(t *testing.T) {
	r := &runner{quick: true, out: t.TempDir(), state: t.TempDir(), group: &report.Clients, all: clientParts}
	if err := r.find(); err != nil {
		t.Fatal(err)
	}
	only := "c,go"
	if exec.Command(r.python, "-c", "import stocached").Run() == nil {
		only = ""
	} else {
		t.Logf("only the parts %s: %s has no stocached", only, r.python)
	}
	// the program expects libstocached.so beside its own file; the test binary is elsewhere
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(r.root, "build"))
	result := quickly(t, r, only, "*.json.gz")
	for _, v := range result.Verdicts {
		if strings.HasPrefix(v.Case, "c/set") || strings.HasPrefix(v.Case, "go/") &&
			strings.Contains("go/view go/get go/gather go/set-new", v.Case) {
			if strings.HasPrefix(v.Result, "not measured") || v.OursValue.Median <= 0 {
				t.Errorf("%s %s: %s", v.Case, v.Size, v.Result)
			}
		}
	}
}

// quickly runs some parts, "" for all, and returns the one result that matches a pattern. The table
// must say that the run was quick, and contain no path.
func quickly(t *testing.T, r *runner, only, pattern string) *report.Result {
	t.Helper()
	if err := r.start(only, false); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(r.out, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	var result report.Result
	if err := result.Load(files[0]); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{report.Overview(&result), result.Page()} {
		if !strings.Contains(text, "the numbers mean nothing") || strings.Contains(text, r.root) {
			t.Error("the table does not say that the run was quick, or names a path")
		}
	}
	return &result
}

// A quick run of the order of an epoch: all of it is measured.
func TestQuickOrder(t *testing.T) {
	r := &runner{quick: true, peers: true, out: t.TempDir(), state: t.TempDir(), group: &report.Order, all: orderParts}
	if err := r.find(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(r.root, "build"))
	result := quickly(t, r, "", "*-order.json.gz")
	for _, v := range result.Verdicts {
		if strings.HasPrefix(v.Result, "not measured") || v.OursValue.Median <= 0 || v.Row == "memory of an order" &&
			!v.Reached {
			t.Errorf("%s %s, %s: %s", v.Case, v.Size, v.Ours, v.Result)
		}
	}
}

// A quick run of the loader: all of it is measured.
func TestQuickLoader(t *testing.T) {
	r := &runner{quick: true, peers: true, out: t.TempDir(), state: t.TempDir(), group: &report.Loader,
		all: loaderParts}
	if err := r.find(); err != nil {
		t.Fatal(err)
	}
	for _, v := range quickly(t, r, "", "*-loader.json.gz").Verdicts {
		if strings.HasPrefix(v.Result, "not measured") || v.OursValue.Median <= 0 {
			t.Errorf("%s %s, %s: %s", v.Case, v.Size, v.Ours, v.Result)
		}
	}
}

// A quick run of the server's parts, with redis-server and memcached if installed.
func TestQuickServer(t *testing.T) {
	r := &runner{quick: true, out: t.TempDir(), state: t.TempDir(), group: &report.Server, all: serverParts}
	_, err1 := exec.LookPath("redis-server")
	_, err2 := exec.LookPath("memcached")
	if r.peers = err1 == nil && err2 == nil; !r.peers {
		t.Log("without redis-server and memcached, which are not installed")
	}
	if err := r.find(); err != nil {
		t.Fatal(err)
	}
	result := quickly(t, r, "", "*-server*.json.gz")
	for _, v := range result.Verdicts {
		peer := strings.Contains(v.Ours+v.Base, "redis") || strings.Contains(v.Ours+v.Base, "memcached")
		if measured := !strings.HasPrefix(v.Result, "not measured"); measured != (r.peers || !peer) || measured &&
			v.OursValue.Median <= 0 {
			t.Errorf("%s %s, %s and %s: %s", v.Case, v.Size, v.Ours, v.Base, v.Result)
		}
	}
	if _, err := os.Stat(r.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was not removed: %v", r.dir, err)
	}
}

// A short run of the epochs of pictures: tables of all cached pictures, and of Python's own time.
func TestQuickPictures(t *testing.T) {
	r := &runner{quick: true, out: t.TempDir(), state: t.TempDir()}
	if err := r.find(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("STOCACHED_LIB_PATH", filepath.Join(r.root, "build"))
	t.Setenv("PYTHONPATH", filepath.Join(r.root, "python", "src"))
	t.Setenv("TMPDIR", t.TempDir())
	if exec.Command(r.python, "-c", "import torchvision, cv2, stocaching, stocached.image").Run() != nil {
		t.Skipf("%s has no torchvision, OpenCV, stocaching or stocached.image", r.python)
	}
	program := filepath.Join(r.root, "bench", "python", "picture_epochs.py")
	run := exec.Command(r.python, program, "warm", "python", "--rounds", "1", "--files", "70")
	run.Stderr = os.Stderr
	out, err := run.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"| ours |", "| torch, stocaching, v2 |", "| ours / the fused pass alone, 2 threads |",
		"| warm, batches of 64 |", "| warm, batches of 256 |"} {
		if !strings.Contains(string(out), row) {
			t.Errorf("no row %q in\n%s", row, out)
		}
	}
}
