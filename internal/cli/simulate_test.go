package cli

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// Ensure that simulate shows a line for each policy.
func TestSimulate(t *testing.T) {
	args := []string{"simulate", "--samples", "4000", "--costs", "lognormal:0.6", "--policy", "first-come,cost", "--size",
		"25%"}
	out := ok(t, args...)
	contains(t, out, "POLICY      SIZE  SLOTS  EPOCH  HIT RATE  TIME SAVED  REPLACED\n",
		"first-come  25%   1,000  8      0.2500    0.2", "\ncost        25%   1,000  8      0.24")
	for _, line := range lines(out) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	expect.Equal(t, ok(t, args...), out, "another result")
}

// Ensure that each policy has a line for each size.
func TestSimulateSizes(t *testing.T) {
	out := ok(t, "simulate", "--samples", "1000", "--sample-bytes", "1MiB", "--size", "10%, 50%", "--size", "750MiB",
		"--policy", "first-come,lru", "--epochs", "2")
	contains(t, out, "\nfirst-come  10%     100    2      0.1000  ", "\nfirst-come  50%     500    2      0.5000  ",
		"\nfirst-come  750MiB  750    2      0.7500  ", "\nlru         750MiB  750 ")
}

// Ensure that programs get hit_rate and time_saved of each policy, size and epoch.
func TestSimulateJSON(t *testing.T) {
	rows := decode[[]jsonObject](t, ok(t, "simulate", "--samples", "1000", "--sample-bytes", "1KiB", "--size",
		"50%,100KiB", "--policy", "first-come,fifo", "--policy", "cost", "--epochs", "3", "--jobs", "2", "--json"))
	fatal.Equal(t, len(rows), 3*2*3, "")
	wantFields(t, rows[0], jsonObject{"policy": "first-come", "size": "50%", "slots": 500, "size_bytes": 512000,
		"epoch": 1, "reads": 2000, "replaced": 0})
	wantFields(t, rows[2], jsonObject{"policy": "first-come", "epoch": 3, "hits": 1000, "hit_rate": 0.5})
	wantFields(t, rows[5], jsonObject{"policy": "first-come", "size": "100KiB", "slots": 100, "hit_rate": 0.1})
	if saved := rows[5]["time_saved"].(float64); math.Abs(saved-0.1) > 1e-9 {
		t.Error(saved)
	}
	rows = decode[[]jsonObject](t, ok(t, "simulate", "--samples", "100", "--epochs", "1", "--json"))
	wantFields(t, rows[0], jsonObject{"size_bytes": nil, "hit_rate": 0, "time_saved": 0})
	rows = decode[[]jsonObject](t, ok(t, "simulate", "--samples", "1000", "--weights", "zipf:1.0", "--size", "10%",
		"--policy", "clock", "--epochs", "1", "--json"))
	if rate := rows[0]["hit_rate"].(float64); rate < 0.3 {
		t.Error(rate)
	}
}

// Ensure that traces are read, and notes about them shown.
func TestSimulateTrace(t *testing.T) {
	code, out, stderr := cli(t, "simulate", "--trace", recording, "--size", "25%", "--epochs", "4", "--json")
	rows := decode[[]jsonObject](t, out)
	if code != exitOK || len(rows) != 8 {
		t.Fatal(code, out, stderr)
	}
	wantFields(t, rows[2], jsonObject{"policy": "first-come", "slots": 60, "reads": 240, "hit_rate": 0.25})
	contains(t, stderr,
		"stocached: the recording names all samples of 1 epochs: those from 2 on read the same samples in shuffled orders\n")
	ok(t, "simulate", "--trace", recording, "--size", "100KB") // the recording says how large a sample is
	const once = "stocached: this trace reads no sample twice, so no cache can hit"
	if strings.Contains(stderr, once) {
		t.Error(stderr)
	}
	_, _, stderr = cli(t, "simulate", "--trace", recording, "--epochs", "1")
	contains(t, stderr, once)
	file := filepath.Join(t.TempDir(), "indices")
	fatal.If(t, os.WriteFile(file, []byte("1\n2\n1\n3\n"), 0o600))
	rows = decode[[]jsonObject](t, ok(t, "simulate", "--trace", file, "--policy", "lru", "--size", "67%", "--json"))
	wantFields(t, rows[0], jsonObject{"slots": 2, "reads": 4, "hits": 1})
	if _, _, stderr = cli(t, "simulate", "--trace", file); stderr != "" {
		t.Error(stderr)
	}
	fails(t, exitUsage, []string{"--sample-bytes is needed"}, "simulate", "--trace", file, "--size", "1KiB")
	fails(t, exitUsage, []string{"4 reads cannot be divided into 5 epochs"}, "simulate", "--trace", file, "--epochs", "5")
	for content, want := range map[string]string{"": "empty", "one\n": `line 1 is "one"`, "\x00\x01\x02": "line 1",
		"{}": "not a timeline"} {
		fatal.If(t, os.WriteFile(file, []byte(content), 0o600))
		fails(t, exitCorrupt, []string{file, want}, "simulate", "--trace", file)
	}
	fails(t, exitNotFound, []string{"no such file"}, "simulate", "--trace", file+"x")
	fatal.If(t, os.WriteFile(file, []byte("1\n2\n"), 0o600))
	_, _, stderr = cli(t, "simulate", "--trace", file)
	contains(t, stderr, once)
	fails(t, exitUsage, []string{"--policy", "arc"}, "simulate", "--trace", file, "--policy", "arc")
}

// Ensure that a size above the dataset is fine, and said.
func TestSimulateLargeCache(t *testing.T) {
	code, out, stderr := cli(t, "simulate", "--samples", "1000", "--sample-bytes", "1KiB", "--size", "8GiB", "--epochs",
		"2")
	contains(t, stderr, "stocached: --size 8GiB holds all 1,000 samples: no policy is needed\n")
	contains(t, out, "first-come  8GiB  1,000  2      1.0000    1.0000      0\n")
	expect.Equal(t, code, exitOK, "")
}

// Ensure that simulate shows a bar on a terminal.
func TestSimulateTerminal(t *testing.T) {
	stderr, written := terminal(t)
	stdout, shown := terminal(t)
	expect.Equal(t, Run([]string{"simulate", "--samples", "1000", "--size", "100%"}, stdout, stderr), exitOK, "exit")
	contains(t, written(), "simulate", "100 %", "16000 / 16000")
	contains(t, shown(), "first-come  100%")
}

// Ensure that --batch and --ahead say how loaders read: a small cache that evicts hits more often. Without them there
// is a note, and a recording has batches of its own.
func TestSimulateBatches(t *testing.T) {
	rate := func(args ...string) (float64, string) {
		code, out, stderr := cli(t, append([]string{"simulate", "--policy", "fifo", "--size", "25%", "--epochs", "4", "--json"}, args...)...)
		rows := decode[[]jsonObject](t, out)
		fatal.Equal(t, code, exitOK, "%v", stderr)
		return rows[len(rows)-1]["hit_rate"].(float64), stderr
	}
	alone, _ := rate("--samples", "4000", "--batch", "0")
	batches, _ := rate("--samples", "4000", "--batch", "256", "--ahead", "0")
	ahead, _ := rate("--samples", "4000")
	if again, _ := rate("--samples", "4000", "--batch", "256", "--ahead", "2"); !(alone < batches && batches < 0.6*ahead) || again != ahead {
		t.Error(alone, batches, ahead, again)
	}
	for ahead, want := range map[string]float64{"2": 0.038, "0": 0.033} { // as python/tests/loader/test_loader_policies.py has it
		if got, _ := rate("--samples", "1000", "--seed", "1", "--batch", "16", "--ahead", ahead); got != want {
			t.Errorf("--ahead %s: %v", ahead, got)
		}
	}
	recorded, _ := rate("--trace", recording)
	single, _ := rate("--trace", recording, "--batch", "0")
	if recorded <= single {
		t.Error(recorded, single)
	}
}

// Ensure that bad settings are refused, with the reason.
func TestSimulateErrors(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"", "--samples or --trace is needed"},
		{"--samples 0", "0 samples are not in 1..4294967295"},
		{"--samples 10 --policy mru", `--policy: unknown policy "mru"`},
		{"--samples 10 --policy lru,,cost", `--policy: unknown policy ""`},
		{"--samples 10 --size 0%", "--size 0% holds no sample"},
		{"--samples 10 --size -5%", "not a part"},
		{"--samples 10 --size NaN%", "not a part"},
		{"--samples 10 --size 8Gi", `"8Gi" is not a size`},
		{"--samples 10 --size 8GiB", "--sample-bytes is needed"},
		{"--samples 10 --size 1%", "--size 1% holds no sample"},
		{"--samples 10 --size 1KiB --sample-bytes 2KiB", "--size 1KiB holds no sample"},
		{"--samples 10 --epochs -1", `"-1" is not a whole number, 0 or above`},
		{"--samples 10 --jobs 0", "8 epochs and 0 jobs; there is at least 1"},
		{"--samples 10 --nodes 2 --jobs 2", "give one of them"},
		{"--samples 10 --costs cheap", `--costs: "cheap" is not equal or lognormal:0.6`},
		{"--samples 10 --costs lognormal:-1", `"lognormal:-1" is not`},
		{"--samples 10 --weights zipf", `--weights: "zipf" is not zipf:1.0`},
		{"--samples 10 --weights zipf:NaN", `"zipf:NaN" is not`},
		{"--samples 10 --trace x", "give one of them, not both"},
		{"--trace x --jobs 2", "give one of them, not both"},
		{"--samples 99999999999", "samples are not in 1..4294967295"},
		{"--samples 999999999", "more than 536870912 reads; simulate a part"},
		{"--samples 999999999 --weights zipf:1", "more than 536870912 reads"},
		{"x", "1 argument, expected none"},
	} {
		fails(t, exitUsage, []string{"stocached: ", c.want}, append([]string{"simulate"}, strings.Fields(c.line)...)...)
	}
}

// Ensure that simulate shows a job on several nodes, without and with affinity.
func TestSimulateNodes(t *testing.T) {
	out := ok(t, "simulate", "--samples", "20000", "--nodes", "4", "--size", "25%", "--epochs", "3")
	contains(t, out, "AFFINITY  POLICY      SIZE  SLOTS  EPOCH  HIT RATE", "\nnone      first-come  25%   5,000  3      0.2",
		"\nnode      first-come  25%   5,000  3      0.9", "LINK")
	rows := decode[[]jsonObject](t, ok(t, "simulate", "--samples", "20000", "--sample-bytes", "1KiB", "--nodes", "3", "--size", "7MiB",
		"--tier", "100%", "--batch", "100", "--policy", "lru", "--epochs", "2", "--json"))
	fatal.Equal(t, len(rows), 4, "")
	wantFields(t, rows[0], jsonObject{"affinity": "none", "policy": "lru", "size": "7MiB", "epoch": 1, "reads": 19800, "source": 0.99})
	wantFields(t, rows[3], jsonObject{"affinity": "node", "epoch": 2})
	for want, args := range map[string][]string{
		"--tier are for a job on several nodes": {"--samples", "10", "--tier", "1%"},
		"--samples or --trace is needed":        {"--nodes", "2"},
		"together at most the 1000":             {"--samples", "1000", "--nodes", "4"},
		"asks a server":                         {"--samples", "10000", "--nodes", "4", "--policy", "planned"},
		"--tier: \"x%\" is not a part":          {"--samples", "10000", "--nodes", "4", "--tier", "x%"},
		"4 nodes and 2 names":                   {"--samples", "10000", "--nodes", "4", "--names", "a,b"},
		"--names and --tier are":                {"--samples", "10000", "--names", "a,b"},
	} {
		fails(t, exitUsage, []string{want}, append([]string{"simulate"}, args...)...)
	}
}
