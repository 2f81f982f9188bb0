//go:build faultpoints

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source/sourcetest"
)

// packPoints are the points at which a pack dies in these tests; @n: at the n-th pass.
var packPoints = []string{"pack.begin", "pack.block", "pack.block@3", "pack.block@4", "pack.block@5", "pack.block@8",
	"pack.block@11", "pack.footer", "pack.footer@2", "pack.footer@3",
	"pack.synced", "pack.synced@2", "pack.synced@3", "pack.file", "pack.file@2", "pack.file@3", "pack.described",
	"pack.dataset", "pack.whole"}

// Ensure that a pack dies at every fault point of the document.
func TestEveryPackPointIsTested(t *testing.T) {
	text := fatal.Value(os.ReadFile("../../docs/spec/block.md"))(t)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`(pack\\.[a-z]+)`").FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = true
	}
	tested := map[string]bool{}
	for _, p := range packPoints {
		point, _, _ := strings.Cut(p, "@")
		tested[point] = true
	}
	if !maps.Equal(documented, tested) || len(tested) < 8 {
		t.Errorf("documented are %v, tested %v", slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(tested)))
	}
	passed := map[string]bool{}
	fault.SetHook(func(point string) { passed[point] = true }) // all in one goroutine
	defer fault.SetHook(nil)
	path, flags := rawSource(t, 92)
	ok(t, args("pack", path, filepath.Join(t.TempDir(), "out"), flags, smallBlocks)...)
	if !maps.Equal(passed, tested) {
		t.Errorf("passed are %v, tested %v", slices.Sorted(maps.Keys(passed)), slices.Sorted(maps.Keys(tested)))
	}
}

// faulty runs stocached as a process that obeys a fault order.
func faulty(order string, args ...string) *process {
	cmd := program(args...)
	cmd.Env = append(cmd.Env, "STOCACHED_FAULT="+order)
	return &process{Cmd: cmd}
}

// Ensure that a pack that was killed at any point leaves nothing that looks complete. The same
// command then gives the same bytes as an undisturbed pack, and keeps what was complete.
func TestPackKilledAtEveryPoint(t *testing.T) {
	for _, compress := range []string{"none", "zstd"} {
		const samples = 92 // 8 a block, 4 blocks a file: three files, the last short
		path, flags := rawSource(t, samples)
		pack := func(out string) []string {
			return args("pack", path, out, flags, smallBlocks, "--compress", compress, "--json")
		}
		if compress == "zstd" {
			// incompressible: as many blocks
			fatal.If(t, os.WriteFile(path, sourcetest.Noise(1, samples*recordBytes), 0o600))
		}
		undisturbed := filepath.Join(t.TempDir(), "out")
		ok(t, pack(undisturbed)...)
		want := sourcetest.Tree(t, undisturbed)
		for _, point := range packPoints {
			t.Run(point+" "+compress, func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out")
				p := faulty(point+"=kill", pack(out)...)
				err := p.Run()
				if status, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
					t.Fatalf("it was not killed: %v", err)
				}
				_, statErr := os.Stat(out)
				expect.Equal(t, point == "pack.whole", (statErr == nil), "%s: %v", out, statErr)
				left := 0
				if entries, err := os.ReadDir(out + ".part"); err == nil {
					for _, e := range entries {
						if filepath.Ext(e.Name()) == ".stocblk" {
							left++
						}
					}
				}
				if info, _, _ := cli(t, "source", "info", out+".part",
					"--kind", "block"); (info == exitOK) != (point == "pack.dataset") {
					t.Errorf("what is left opens: exit %d", info)
				}
				got := decode[jsonObject](t, ok(t, pack(out)...))
				kept := min(left*32, samples)
				if point == "pack.whole" {
					kept = samples
				}
				wantFields(t, got, jsonObject{"samples": samples, "kept_samples": kept,
					"bytes": (samples - kept) * recordBytes})
				if files := sourcetest.Tree(t, out); !maps.Equal(files, want) {
					t.Errorf("%v, want %v: or other bytes", slices.Sorted(maps.Keys(files)),
						slices.Sorted(maps.Keys(want)))
				}
				expect.Fails(os.Stat(out+".part"))(t, os.ErrNotExist)
			})
		}
	}
}

// Ensure that Ctrl-C ends a pack with an error that says how far it was and how to go on. A second
// pack at the same time is refused, and the first goes on later.
func TestPackInterrupted(t *testing.T) {
	const samples = 8000 // these take much longer than a signal
	path, flags := rawSource(t, samples)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		out := filepath.Join(t.TempDir(), "out")
		pack := args("pack", path, out, flags, smallBlocks)
		p := faulty("pack.block@6=stop", pack...)
		var stderr, stdout bytes.Buffer
		p.Cmd.Stderr, p.Cmd.Stdout = &stderr, &stdout
		fatal.If(t, p.Start())
		t.Cleanup(p.kill)
		stopped(t, p.Process.Pid)
		fails(t, exitExists, []string{"another writer is at work there: " + out + ".part; wait until it has ended"}, pack...)
		fatal.If(t, errors.Join(p.Process.Signal(sig), p.Process.Signal(syscall.SIGCONT)))
		p.Wait()
		if code := p.ProcessState.ExitCode(); code != exitFailed || stdout.Len() != 0 {
			t.Errorf("exit %d, %q", code, stdout.String())
		}
		contains(t, stderr.String(), "samples are complete in "+out+".part, and the same command goes on from there")
		var done, of, whole int
		if _, err := fmt.Sscanf(stderr.String(), "stocached: interrupted after %d of %d samples; %d samples", &done,
			&of, &whole); err != nil || done < whole || whole < 32 || whole%32 != 0 || done == samples {
			t.Errorf("%q, %v", stderr.String(), err)
		}
		expect.Fails(os.Stat(out))(t, os.ErrNotExist)
		got := decode[jsonObject](t, ok(t, append(pack, "--resume", "--json")...))
		wantFields(t, got, jsonObject{"kept_samples": whole})
		wantRecords(t, out, samples)
	}
}

// stopped waits until a process has stopped itself.
func stopped(t *testing.T, pid int) {
	t.Helper()
	fatal.Until(t, "it stops", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(b[bytes.LastIndexByte(b, ')'):]), ") T ")
	})
}
