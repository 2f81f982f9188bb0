package measure

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/stocached/stocached/bench/report"
)

// C2CCase is the case that C2C measures.
const C2CCase = "hits/perf-c2c"

// C2C runs `perf c2c` on two processes that view the same samples on two cores. Loads that find a
// line modified in the other core's cache (HITM) show a line that both write. Few cloud machines
// count such events; without them the measurement is missing, with the message of perf.
func C2C(z Size, path string, program []string, state string) (report.Measurement, error) {
	m := report.Measurement{Case: C2CCase, Size: z.Name}
	if _, err := exec.LookPath("perf"); err != nil {
		m.Missing = "no perf here (Debian: linux-perf)"
		return m, nil
	}
	data := filepath.Join(state, "c2c.data")
	defer os.Remove(data)
	workers, end, err := launchAll(program, 2,
		func(k int) []string { return []string{"hits", path, fmt.Sprint(k), fmt.Sprint(k + 1)} })
	if err != nil {
		return m, err
	}
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	record := exec.CommandContext(ctx, "perf", "c2c", "record", "-o", data, "-p",
		fmt.Sprintf("%d,%d", workers[0].command.Process.Pid, workers[1].command.Process.Pid),
		"--", "sleep", "1")
	said := make(chan string, 1)
	go func() {
		out, err := record.CombinedOutput()
		if err == nil {
			out = nil
		}
		said <- strings.TrimSpace(string(out))
	}()
	_, _, err = together(workers, time.Second)
	if err != nil {
		return m, err
	}
	if why := <-said; why != "" {
		m.Missing = "perf c2c record: " + lastLine(why)
		return m, nil
	}
	out, err := exec.CommandContext(ctx, "perf", "c2c", "report", "-i", data, "--stats").CombinedOutput()
	if err != nil {
		m.Missing = "perf c2c report: " + lastLine(string(out))
		return m, nil
	}
	count := func(what string) string {
		if found := regexp.MustCompile(what + `\s*:\s*(\d+)`).FindStringSubmatch(string(out)); found != nil {
			return found[1]
		}
		return "?"
	}
	m.Note = fmt.Sprintf("of %s sampled loads, %s found a line modified by the other core", count("Load Operations"),
		count("Load Local HITM"))
	return m, nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
