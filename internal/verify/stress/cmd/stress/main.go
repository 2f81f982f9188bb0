// Command stress kills processes at random while they use one cache, and then checks the cache. Or
// it runs many workers that fill caches larger than their memory. Package stress describes it.
//
//	stress drive [-kills n] [-seconds n] [-seed n] [-c command] [-python command]
//	stress memory [-limits MiB,...] [-rounds n] [-seed n] [-c command] [-python command]
//	stress work <cache> <samples> <seconds> <seed>
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/stocached/stocached/internal/verify/cgroup"
	"github.com/stocached/stocached/internal/verify/stress"
)

func main() {
	switch {
	case len(os.Args) == 6 && os.Args[1] == "work":
		os.Exit(work(os.Args[2:]))
	case len(os.Args) >= 2 && os.Args[1] == "drive":
		os.Exit(drive(os.Args[2:]))
	case len(os.Args) >= 2 && os.Args[1] == "memory":
		os.Exit(memory(os.Args[2:]))
	}
	fmt.Fprintln(os.Stderr, "usage: stress drive [flags] | stress memory [flags] | stress work <cache> <samples> "+
		"<seconds> <seed>")
	os.Exit(2)
}

func work(args []string) int {
	samples, err1 := strconv.Atoi(args[1])
	seconds, err2 := strconv.Atoi(args[2])
	seed, err3 := strconv.ParseUint(args[3], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || samples < 1 {
		fmt.Fprintln(os.Stderr, "ERROR samples, seconds and seed are numbers, not", args[1:])
		return stress.ExitError
	}
	return stress.Work(args[0], samples, time.Duration(seconds)*time.Second, seed)
}

// drive splits the kills among caches of several kinds.
func drive(args []string) int {
	flags := flag.NewFlagSet("drive", flag.ExitOnError)
	kills := flags.Int("kills", 2000, "SIGKILLs in all")
	seconds := flags.Int("seconds", 240, "give up after this number of seconds")
	kinds := flags.String("kinds", "slots,arena,evicting,chains", "of caches")
	given := addWorkers(flags)
	flags.Parse(args)
	workers, err := given.workers(6)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	failed := 0
	all := strings.Split(*kinds, ",")
	for part, kind := range all {
		d := stress.Drive{Kills: (*kills + part) / len(all), Lasts: time.Duration(*seconds) * time.Second / time.Duration(len(all)),
			Seed: *given.seed + uint64(part), Kind: stress.Kind(kind), Workers: workers, Log: os.Stdout}
		r, err := d.Run()
		fmt.Printf("%s, seed %d: %d kills in %v, %d claims of the dead reclaimed; %d stored, %d hits, %d clears; "+
			"killed by language: %v\n",
			kind, d.Seed, r.Kills, r.Took, r.InWriting, r.Stored, r.Reads, r.Clears, r.Killed)
		if err != nil {
			fmt.Println(kind, "FAILED:", err)
			failed = 1
			continue
		}
		fmt.Printf("%s: 0 torn reads, 0 corrupt READY samples, 0 claims left by the dead\n", kind)
	}
	return failed
}

// memory runs 16 workers that fill caches in cgroups of several sizes.
func memory(args []string) int {
	flags := flag.NewFlagSet("memory", flag.ExitOnError)
	limits := flags.String("limits", "256,512", "of the cgroups, in MiB")
	rounds := flags.Int("rounds", 2, "caches in each cgroup")
	given := addWorkers(flags)
	flags.Parse(args)
	workers, err := given.workers(16)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, text := range strings.Split(*limits, ",") {
		mebibytes, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			fmt.Fprintf(os.Stderr, "-limits: %q is not a number of MiB\n", text)
			return 2
		}
		m := stress.Memory{Limit: mebibytes << 20, Rounds: *rounds, Seed: *given.seed, Workers: workers,
			Log: os.Stdout}
		r, err := m.Run()
		if errors.Is(err, cgroup.ErrNone) {
			fmt.Printf("SKIPPED [1] writers in a memory cgroup: %v\n", err)
			return 0
		}
		fmt.Printf("16 writers in %d MiB, %d rounds, seed %d: %d samples stored, %d sets refused, at most %d MiB "+
			"taken, %v\n", mebibytes, *rounds, m.Seed, r.Stored, r.Full, r.Peak>>20, r.Took)
		if err != nil {
			fmt.Println("FAILED:", err)
			return 1
		}
	}
	return 0
}

// given are the flags of both kinds of stress.
type given struct {
	seed      *uint64
	c, python *string
}

func addWorkers(flags *flag.FlagSet) given {
	return given{
		flags.Uint64("seed", uint64(time.Now().UnixNano()), "of the random choices"),
		flags.String("c", "", "command of a worker in C; \"\": none"),
		flags.String("python", "", "command of a worker in Python; \"\": none"),
	}
}

// workers returns n workers, with languages in turn.
func (g given) workers(n int) ([]stress.Worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	languages := []stress.Worker{{Language: "Go", Command: []string{self, "work"}}}
	for _, other := range []struct{ language, command string }{{"C", *g.c}, {"Python", *g.python}} {
		if other.command == "" {
			fmt.Printf("no worker in %s was given: others replace it\n", other.language)
			continue
		}
		languages = append(languages, stress.Worker{Language: other.language, Command: strings.Fields(other.command),
			Forks: other.language == "Python"})
	}
	workers := make([]stress.Worker, n)
	for k := range workers {
		workers[k] = languages[k%len(languages)]
	}
	return workers, nil
}
