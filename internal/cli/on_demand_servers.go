package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/stocached/stocached/shm"
)

// onDemandServers has a line for each server on demand of this user: process id, who started it, and its log; and a line for
// each thing that is wrong at it. Those that read parts of objects for programs have no cache.
func onDemandServers() (lines []string) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		info, err := entry.Info()
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue // it has ended, or is of another user
		}
		if folder := socketsOf(wordsOf(pid)); folder != "" {
			lines = append(lines, fmt.Sprintf("on demand: %d %s; log %s", pid, programOf(pid), filepath.Join(folder, "server.log")))
			ctx, cancel := context.WithTimeout(context.Background(), serverDeadline)
			_, state, err := admin{folder}.get(ctx, "/readyz")
			if err != nil && ctx.Err() != nil {
				state = fmt.Appendf(nil, "failing: no answer in %v: it is stopped or overloaded", serverDeadline)
			}
			cancel()
			for line := range strings.Lines(string(state)) {
				if problem, there := strings.CutPrefix(strings.TrimSpace(line), "failing: "); there {
					lines = append(lines, fmt.Sprintf("on demand: %d%s%s", pid, onDemandFails, problem))
				}
			}
		}
	}
	return lines
}

const onDemandFails = " fails: "

// sayOnDemand prints these lines.
func sayOnDemand(stderr io.Writer) {
	for _, line := range onDemandServers() {
		fmt.Fprintln(stderr, line)
	}
}

// socketsOf returns the folder of a server on demand, by its command line; "": it is another program.
func socketsOf(words []string) string {
	at := slices.Index(words, "--sockets")
	if at > 0 && at+1 < len(words) && slices.Contains(words, "--on-demand") {
		return words[at+1]
	}
	return ""
}

// onDemandOf returns the process of the server on demand that has a cache, and the folder of its sockets; 0: none has.
func onDemandOf(seg *shm.Segment) (pid int, folder string) {
	if seg.Header.Flags&shm.FlagNamed != 0 {
		return 0, ""
	}
	for r := range seg.RecordsUsed() {
		word := seg.ClientWord(r, shm.ClientPID).Load()
		if folder := socketsOf(wordsOf(int(uint32(word)))); folder != "" && uint32(word>>32) == shm.KindServer {
			return int(uint32(word)), folder
		}
	}
	return 0, ""
}
