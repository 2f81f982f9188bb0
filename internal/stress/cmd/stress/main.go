// Command stress kills processes at random while they use one cache, and checks what is left; package stress describes it.
//
//	stress drive [-kills n] [-seconds n] [-seed n] [-c command] [-python command]
//	stress work <cache> <samples> <seconds> <seed>
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/stocached/stocached/internal/stress"
)

func main() {
	switch {
	case len(os.Args) == 6 && os.Args[1] == "work":
		os.Exit(work(os.Args[2:]))
	case len(os.Args) >= 2 && os.Args[1] == "drive":
		os.Exit(drive(os.Args[2:]))
	}
	fmt.Fprintln(os.Stderr, "usage: stress drive [flags] | stress work <cache> <samples> <seconds> <seed>")
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

// drive splits the kills between a cache with slots and one with an arena.
func drive(args []string) int {
	flags := flag.NewFlagSet("drive", flag.ExitOnError)
	kills := flags.Int("kills", 2000, "SIGKILLs in all")
	seconds := flags.Int("seconds", 240, "give up after so many")
	seed := flags.Uint64("seed", uint64(time.Now().UnixNano()), "of the random choices")
	c := flags.String("c", "", "command of a worker in C; \"\": none")
	python := flags.String("python", "", "command of a worker in Python; \"\": none")
	flags.Parse(args)
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	languages := []stress.Worker{{Language: "Go", Command: []string{self, "work"}}}
	for _, other := range []struct{ language, command string }{{"C", *c}, {"Python", *python}} {
		if other.command == "" {
			fmt.Printf("no worker in %s was given: others take its place\n", other.language)
			continue
		}
		languages = append(languages, stress.Worker{Language: other.language, Command: strings.Fields(other.command)})
	}
	workers := make([]stress.Worker, 6)
	for k := range workers {
		workers[k] = languages[k%len(languages)]
	}
	failed := 0
	for part, variable := range []bool{false, true} {
		d := stress.Drive{Kills: (*kills + part) / 2, Lasts: time.Duration(*seconds) * time.Second / 2, Seed: *seed + uint64(part), Variable: variable, Workers: workers, Log: os.Stdout}
		r, err := d.Run()
		kind := map[bool]string{false: "slots", true: "arena"}[variable]
		fmt.Printf("%s, seed %d: %d kills in %v, %d of them while filling; %d stored, %d hits, %d clears; killed by language: %v\n",
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
