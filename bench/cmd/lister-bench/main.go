// Command lister-bench measures how a bucket of many objects is opened: `stocached source info` lists a server
// that makes the list up, then reads the index that the first run has kept.
//
//	lister-bench -objects 10000000 bin/stocached
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stocached/stocached/source/s3/s3test"
)

func main() {
	objects := flag.Int("objects", 10_000_000, "in the bucket")
	mixed := flag.Bool("mixed", false, "list the objects in no order")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("give the program stocached")
	}
	if err := run(flag.Arg(0), *objects, *mixed); err != nil {
		log.Fatal(err)
	}
}

// prime brings the numbers of objects into another order.
const prime = 999_999_937

func run(program string, objects int, mixed bool) error {
	l := &s3test.Lister{Objects: objects}
	if mixed {
		l.Key = func(i int) string { return l.Name(i * prime % objects) } // each object once: the prime divides no such number
	}
	server := httptest.NewServer(l)
	defer server.Close()
	dir, err := os.MkdirTemp("", "lister-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	index := filepath.Join(dir, "index")
	for _, what := range []string{"listed", "from the index"} {
		before := l.Listed.Load()
		c := exec.Command(program, "source", "info", "s3://many/data", "--kind", "dir", "--source",
			fmt.Sprintf("labels=folders,index=%s,remote={endpoint: %s}", index, server.URL))
		c.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret")
		c.Stderr = os.Stderr
		began := time.Now()
		if err := c.Run(); err != nil {
			return err
		}
		used := c.ProcessState.SysUsage().(*syscall.Rusage)
		st, err := os.Stat(index)
		if err != nil {
			return err
		}
		fmt.Printf("%d objects, %s: %.1f s, %.1f s of processor, at most %d MB of memory; %d pages; the index has %d MB\n",
			objects, what, time.Since(began).Seconds(), (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(),
			used.Maxrss>>10, l.Listed.Load()-before, st.Size()>>20)
	}
	return nil
}
