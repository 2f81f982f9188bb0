//go:build cgo

package conform

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	stocached "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/shm/diskfile"
)

const (
	diskSamples, diskBytes = 96, 5000
	diskLimit              = 4 << 20
	diskChild              = "STOCACHED_TEST_DISK" // language,path,log,number of the child
)

func diskSample(i int) []byte {
	return bytes.Repeat([]byte{byte(i), byte(i >> 8), 7, byte(i * 3)}, diskBytes/4)
}

// useDisk is a program in Go or C: it stores what the file lacks of its third, notes that in the log, and reads all.
func useDisk() {
	args := strings.Split(os.Getenv(diskChild), ",")
	number, _ := strconv.Atoi(args[3])
	var get func(i int, dst []byte) bool
	var set func(i int, data []byte) bool
	if args[0] == "Go" {
		d, err := stocached.OpenDisk(args[1], stocached.DiskOptions{Samples: diskSamples, SampleBytes: diskBytes, Size: diskLimit, Fingerprint: "shared"})
		if err != nil {
			panic(err)
		}
		defer d.Close()
		get = func(i int, dst []byte) bool { n, hit, err := d.Get(i, dst); return hit && n == diskBytes && err == nil }
		set = func(i int, data []byte) bool { r, err := d.Set(i, data); return r == stocached.Stored && err == nil }
	} else {
		c, _, message := openDiskC(args[1], shm.Options{Samples: diskSamples, SampleBytes: diskBytes, Limit: diskLimit, Fingerprint: "shared"})
		if c == nil {
			panic(message)
		}
		defer c.close()
		get = func(i int, dst []byte) bool { code, n := c.get(i, dst); return code == 1 && n == diskBytes }
		set = func(i int, data []byte) bool { return c.set(i, [][]byte{data}, 0) == 0 }
	}
	log, err := os.OpenFile(args[2], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	dst, seen := make([]byte, diskBytes), 0
	for range 2 {
		for i := range diskSamples {
			if !get(i, dst) {
				if i%3 == number && set(i, diskSample(i)) {
					fmt.Fprintf(log, "%d\n", i)
				}
				continue
			}
			if seen++; !bytes.Equal(dst, diskSample(i)) {
				panic(fmt.Sprintf("sample %d has wrong bytes", i))
			}
		}
	}
	fmt.Println(seen)
}

// usePython is the same program in Python.
const usePython = `
import sys, types
import numpy as np
from stocached._cache.disk import Disk
path, log, number = sys.argv[1], open(sys.argv[2], "a"), int(sys.argv[3])
class Values:
    def decode(self, raw, copy): return raw
    def parts(self, value): return [value]
cache = types.SimpleNamespace(variable=False, sample_bytes=5000, read_only=True, _values=Values())
disk, seen = Disk(path, 96, 5000, False, 4 << 20, "shared"), 0
for _ in range(2):
    for i in range(96):
        want = np.frombuffer(bytes([i & 255, i >> 8, 7, i * 3 & 255]) * 1250, np.uint8)
        got = disk.take(cache, i)
        if got is None:
            if i % 3 == number and disk.put(cache, i, want):
                log.write(f"{i}\n"); log.flush()
            continue
        seen += 1
        assert got.tobytes() == want.tobytes(), i
print(seen)
`

func startDisk(t *testing.T, language, path, log string, number int) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	c := exec.Command(os.Args[0])
	if language == "Python" {
		c = exec.Command(os.Getenv("STOCACHED_TEST_PYTHON"), "-c", usePython, path, log, strconv.Itoa(number))
	}
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%s,%s,%d", diskChild, language, path, log, number))
	out := &bytes.Buffer{}
	c.Stdout, c.Stderr = out, os.Stderr
	fatal.If(t, c.Start())
	return c, out
}

func logged(t *testing.T, log string) (all []int) {
	t.Helper()
	text, _ := os.ReadFile(log)
	for line := range strings.FieldsSeq(string(text)) {
		i, err := strconv.Atoi(line)
		fatal.If(t, err)
		all = append(all, i)
	}
	slices.Sort(all)
	return all
}

// Ensure that processes in Go, C and Python share one file at the same time, and that kills lose nothing.
func TestDiskOfAllLanguages(t *testing.T) {
	all := []string{"Go", "C", "Python"}
	if os.Getenv("STOCACHED_TEST_PYTHON") == "" {
		t.Log("without Python: STOCACHED_TEST_PYTHON is not set; make test-languages sets it")
		all = []string{"Go", "C", "Go"}
	}
	dir := t.TempDir()
	path, log := filepath.Join(dir, "shared.tier"), filepath.Join(dir, "log")
	random, target := rand.New(rand.NewPCG(3, 4)), 0
	for range 4 { // programs that are killed at any moment
		var running []*exec.Cmd
		for number, language := range all {
			c, _ := startDisk(t, language, path, log, number)
			running = append(running, c)
		}
		// The thirds of two programs at most: the third one may not have begun.
		target = min(target+1+random.IntN(12), 2*diskSamples/3)
		for len(logged(t, log)) < target {
			time.Sleep(100 * time.Microsecond)
		}
		for _, c := range running {
			c.Process.Kill()
			c.Wait()
		}
	}
	killed := logged(t, log)
	for _, language := range append(all, all...) { // one after the other, each as each third
		for number := range 3 {
			c, out := startDisk(t, language, path, log, number)
			if err := c.Wait(); err != nil {
				t.Fatalf("%s: %v, %s", language, err, out)
			}
		}
	}
	stored := logged(t, log)
	if len(stored) < diskSamples-3*4 || len(slices.Compact(slices.Clone(stored))) != len(stored) {
		t.Errorf("%d samples were stored, some twice: %v", len(stored), stored)
	}
	t.Logf("%d samples were stored before kills, %d after them", len(killed), len(stored)-len(killed))
	var running []*exec.Cmd
	var outs []*bytes.Buffer
	for number, language := range all {
		c, out := startDisk(t, language, path, log, number)
		running, outs = append(running, c), append(outs, out)
	}
	for k, c := range running {
		if err := c.Wait(); err != nil || strings.TrimSpace(outs[k].String()) != strconv.Itoa(2*diskSamples) {
			t.Errorf("%s: %v, %s hits", all[k], err, outs[k])
		}
	}
}

// Ensure that both languages refuse a file that another one uses in another way, and that each may have made it.
func TestDiskInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.tier")
	o := shm.Options{Samples: 10, SampleBytes: 100, Limit: 4 << 20, Fingerprint: "one"}
	other := o
	other.Fingerprint = "two"
	c, _, message := openDiskC(path, o)
	if c == nil {
		t.Fatal(message)
	}
	if _, _, err := diskfile.OpenShared(path, other); shm.Code(err) != -8 || !strings.Contains(err.Error(), "use it") {
		t.Error(err)
	}
	if _, _, err := diskfile.Open(path, o); shm.Code(err) != -5 || !strings.Contains(err.Error(), "C) and perhaps others use it") {
		t.Error(err)
	}
	c.close()
	server, _, err := diskfile.Open(path, o)
	fatal.If(t, err)
	if _, code, message := openDiskC(path, o); code != -5 || !strings.Contains(message, "a server) has it for itself") {
		t.Error(code, message)
	}
	if _, _, err := diskfile.OpenShared(path, o); shm.Code(err) != -5 || !strings.Contains(err.Error(), "a server) has it for itself") {
		t.Error(err)
	}
	server.Close()
	seg, replaced, err := diskfile.OpenShared(path, other)
	if err != nil || !strings.Contains(replaced, "another dataset") {
		t.Fatal(replaced, err)
	}
	if _, code, message := openDiskC(path, o); code != -8 || !strings.Contains(message, "Go) and perhaps others use it") {
		t.Error(code, message)
	}
	seg.Close()
}
