package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/stocached/stocached/bench/report"
	"github.com/stocached/stocached/client"

	"golang.org/x/sys/unix"
)

const copies = "copies" // of the stored bytes

// Filling measures the memory of the segment without its control part while the cache fills, in
// copies of the stored bytes.
func Filling(z Size, dir string) (report.Measurement, error) {
	m := report.Measurement{Case: "memory/filling", Size: z.Name,
		Note: "pages of the segment, control part and all, beside the bytes stored"}
	c, remove, err := fresh(dir, "filling", z.options(dir))
	if err != nil {
		return m, err
	}
	defer remove() //nolint:errcheck // a file that stays fails nothing
	empty, err := allocated(c.Info().Path)
	if err != nil {
		return m, err
	}
	m.Note = fmt.Sprintf("pages of the payload beside the bytes stored; the control part takes %d bytes, %.1f %% "+
		"of a full payload", empty, 100*float64(empty)/float64(z.Samples*z.Bytes))
	data := z.data()
	stored := 0
	for _, step := range []struct {
		name string
		upTo int
	}{{"a quarter filled", z.Samples / 4}, {"half filled", z.Samples / 2}, {"filled", z.Samples}} {
		for ; stored < step.upTo; stored++ {
			if r, err := c.Set(stored, data[stored%len(data)], 0); r != client.Stored || err != nil {
				return m, fmt.Errorf("sample %d: %v %w", stored, r, err)
			}
		}
		now, err := allocated(c.Info().Path)
		if err != nil {
			return m, err
		}
		m.Subjects = append(m.Subjects,
			report.Subject{Name: step.name, Unit: copies, Samples: stored,
				Value: []float64{float64(now-empty) / float64(stored*z.Bytes)}})
	}
	return m, nil
}

func allocated(path string) (int64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return st.Blocks * 512, err
}

// Workers measures the memory of a filled cache after n processes have read it completely: the sum
// of their shares (PSS), in copies.
func Workers(name string, z Size, path string, program []string, numbers ...int) (report.Measurement, error) {
	m := report.Measurement{Case: "memory/" + name, Size: z.Name,
		Note: "sum of the PSS of the segment in all workers, control part included"}
	for _, n := range numbers {
		sum, err := sumOfShares(n, path, program)
		if err != nil {
			return m, err
		}
		plural := map[bool]string{true: "s"}[n > 1]
		m.Subjects = append(m.Subjects, report.Subject{Name: fmt.Sprintf("%d worker%s", n, plural), Unit: copies,
			Samples: z.Samples,
			Value:   []float64{float64(sum) / float64(z.Samples*z.Bytes)}})
	}
	return m, nil
}

func sumOfShares(n int, path string, program []string) (int64, error) {
	workers, end, err := launchAll(program, n, func(int) []string { return []string{"memory", path} })
	if err != nil {
		return 0, err
	}
	defer end()
	var sum int64
	for _, w := range workers { // all have read it, and none ends before all have answered
		var share int64
		if err := w.tell("measure"); err != nil {
			return 0, err
		}
		if err := w.answer("%d", &share); err != nil {
			return 0, err
		}
		sum += share
	}
	return sum, nil
}

// share adds up the PSS of the mappings of a file in a process, in bytes; 0: it maps none of its
// pages. smaps has the inode of the file. A process that got the file as a descriptor may not see
// its name.
func share(smaps string, inode uint64) (int64, error) {
	var sum int64
	inside := false
	for line := range strings.Lines(smaps) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 5 && strings.Contains(f[0], "-"):
			inside = f[4] == strconv.FormatUint(inode, 10)
		case inside && len(f) == 3 && f[0] == "Pss:":
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("smaps: %q: %w", line, err)
			}
			sum += kb << 10
		}
	}
	return sum, nil
}

// shareOf returns the share of one of our processes in a file; 0: it maps none of its pages.
func shareOf(pid int, path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	return share(string(smaps), st.Ino)
}
