//go:build faultpoints

package model_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/model"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// Ensure that the C code does what the model does: cclient/ctest/replay.c imposes the same
// schedules on threads, and prints all words after each move. No C client knows plans, so the world of a client
// that does is Go's alone.
func TestReplayC(t *testing.T) {
	program := buildReplay(t)
	for n, s := range model.Schedules() {
		if w := worldNamed(t, s.World); w.KnowsPlans() {
			continue
		}
		t.Run(fmt.Sprintf("%s-%d", s.World, n), func(t *testing.T) {
			t.Parallel()
			replayC(t, program, s)
		})
	}
}

// buildReplay compiles the program together with the library, with fault points.
func buildReplay(t *testing.T) string {
	t.Helper()
	cc := cmp.Or(os.Getenv("CC"), "cc")
	if _, err := exec.LookPath(cc); err != nil {
		t.Skipf("no C compiler to replay the model's schedules on the C code: %v", err)
	}
	program := filepath.Join(t.TempDir(), "replay")
	build := exec.Command(cc, "-std=c11", "-Wall", "-Wextra", "-O0", "-g", "-pthread", "-DSTOC_FAULT_POINTS",
		"-o", program, "../../../cclient/ctest/replay.c", "../../../cclient/stocached.c")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
	return program
}

// expectation is the expected output for a line of the script.
type expectation struct {
	line, event string
	want        model.Snapshot
}

func replayC(t *testing.T, program string, s model.Schedule) {
	w := worldNamed(t, s.World)
	sc := scaleOf(w)
	head, expected := script(t, w, sc, s, 0) // no move depends on the seed
	var in strings.Builder
	in.WriteString(head)
	for _, e := range expected {
		if in.WriteString(e.line); strings.HasPrefix(e.line, "run ") {
			in.WriteString(" " + e.event)
		}
		in.WriteByte('\n')
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*moveTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Stdin = strings.NewReader(in.String())
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, runErr := cmd.Output()

	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) > 1 {
		if raw, err := parseWords(w, lines[1]); err == nil {
			_, expected = script(t, w, sc, s, raw.seed)
		}
	}
	var told strings.Builder
	for k, e := range expected {
		fmt.Fprintf(&told, "%s: %s\n", e.line, e.event)
		if 2*k+1 >= len(lines) {
			t.Fatalf("after\n%sthe program ends: %v %s", told.String(), runErr, complaint.String())
		}
		if lines[2*k] != e.event {
			t.Fatalf("after\n%sthe real code does %q", told.String(), lines[2*k])
		}
		raw := fatal.Value(parseWords(w, lines[2*k+1]))(t)
		got, err := raw.snapshot(w, sc)
		if err != nil {
			t.Fatalf("after\n%s%v", told.String(), err)
		}
		if fmt.Sprint(got) != fmt.Sprint(e.want) {
			t.Fatalf("after\n%sthe segment has\n%s\nand the model\n%s", told.String(), pretty(got), pretty(e.want))
		}
	}
	if runErr != nil {
		t.Fatalf("%v: %s", runErr, complaint.String())
	}
}

// script writes a schedule in the format of replay.c: lines without an answer, and lines with one.
func script(t *testing.T, w model.Config, sc scale, s model.Schedule, seed uint64) (string, []expectation) {
	t.Helper()
	var head strings.Builder
	limit, kind := uint64(0), "first-come"
	if w.Variable {
		limit, kind = sc.limit(t, w), "arena"
		if w.Chains {
			kind = "chains"
		}
	}
	if w.Indices {
		kind = "first-indices"
	} else if w.Evicts && !w.Chains {
		kind = "fifo"
		if w.Policy != policy.None {
			kind = w.Policy.String()
		}
	}
	fmt.Fprintf(&head, "cache %s %d %d %d %d %d\n", kind, w.Samples, w.Places, w.Records, sc.place, limit)
	var clientOf []int
	for c, cl := range w.Clients {
		kind := "joined"
		if cl.ReadOnly {
			kind = "reader"
		} else if cl.Threads[0][0].Kind == model.Register {
			kind = "late"
		}
		fmt.Fprintln(&head, "client", kind)
		for range cl.Threads {
			clientOf = append(clientOf, c)
		}
	}
	for c, cl := range w.Clients {
		for _, program := range cl.Threads {
			fmt.Fprintf(&head, "thread %d%s\n", c, operations(program))
		}
	}
	run := fatal.Value(model.NewRun(s.World, seed))(t)
	expected := []expectation{{"setup" + operations(w.Setup) + " -", "ready", run.Snapshot()}}
	pending := map[int]model.Result{} // operations at their last fault point
	settle := func(thread int) {
		if r, ok := pending[thread]; ok {
			expected = append(expected, expectation{fmt.Sprintf("run %d", thread), "end " + r.String(), run.Snapshot()})
			delete(pending, thread)
		}
	}
	for _, text := range s.Moves {
		m := fatal.Value(model.ParseMove(text))(t)
		e := expectation{line: fmt.Sprintf("run %d", m.Thread), event: "at " + m.Point}
		if m.Dies {
			e.line, e.event = fmt.Sprintf("die %d", m.Thread), "dead"
			for thread, c := range clientOf {
				if c == m.Thread {
					delete(pending, thread)
				}
			}
		} else {
			settle(m.Thread)
			switch {
			case m.Point == "" && m.Result == model.Hit:
				e.event = fmt.Sprintf("end HIT %d", m.Value)
			case m.Point == "":
				e.event = "end " + m.Result.String()
			case m.Result != 0:
				pending[m.Thread] = m.Result
			}
		}
		fatal.If(t, run.Do(m))
		e.want = run.Snapshot()
		expected = append(expected, e)
	}
	for thread := range clientOf {
		settle(thread)
	}
	return head.String(), expected
}

// operations formats a program for replay.c.
func operations(program []model.Op) string {
	var b strings.Builder
	for _, o := range program {
		switch o.Kind {
		case model.Register:
			b.WriteString(" register")
		case model.Recover:
			b.WriteString(" recover")
		case model.Clear:
			b.WriteString(map[bool]string{false: " clear", true: " clear-now"}[o.GiveUp])
		case model.Get:
			fmt.Fprintf(&b, " get:%d", o.Sample)
		case model.Set:
			name := "set"
			if o.GiveUp {
				name = "abort"
			} else if o.Overwrite {
				name = "overwrite"
			}
			fmt.Fprintf(&b, " %s:%d:%d:%d:%d", name, o.Sample, o.Value, max(1, o.Units), o.Took.Nanoseconds())
		}
	}
	return b.String()
}

// parseWords reads the line of words that replay.c prints.
func parseWords(w model.Config, line string) (*rawSegment, error) {
	fields := strings.Fields(line)
	next := func() uint64 {
		if len(fields) == 0 {
			return 0
		}
		v, err := strconv.ParseUint(fields[0], 16, 64)
		if err != nil {
			return 1<<64 - 1
		}
		fields = fields[1:]
		return v
	}
	raw := &rawSegment{seed: next(), spread: next(), phase: next(), freeFrom: next(), arenaNext: next(), high: next(), hand: next()}
	for range w.Samples {
		raw.words, raw.metas = append(raw.words, next()), append(raw.metas, next())
	}
	for range w.Samples {
		if w.Variable {
			raw.sums = append(raw.sums, next())
		}
	}
	if w.Chains {
		for range w.Places {
			l := shm.Link(next())
			raw.table = append(raw.table, l.Sample()|l.Next()<<3)
		}
	} else if !w.Variable && !w.Indices {
		for range w.Places {
			raw.table = append(raw.table, next())
		}
	}
	for range w.Places {
		if w.Policy.NeedsHits() {
			raw.references = append(raw.references, uint8(next()))
		}
	}
	for range int(w.Records) * 3 * shm.ClaimsPerClient {
		raw.claims = append(raw.claims, next())
	}
	if len(fields) != 1 {
		return nil, fmt.Errorf("a line of words with %d fields too many or few: %s", len(fields)-1, line)
	}
	var err error
	raw.payload, err = hex.DecodeString(fields[0])
	return raw, err
}
