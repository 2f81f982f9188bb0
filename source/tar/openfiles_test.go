package tar_test

import (
	stdtar "archive/tar"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"

	"golang.org/x/sys/unix"
)

// manyShards writes shards of 4 samples each.
func manyShards(t *testing.T, shards int) (folder string) {
	folder = t.TempDir()
	for k := range shards {
		members, _ := samplesOf(t, 4*k, 4, func(i int) int { return 100 + i })
		writeFile(t, filepath.Join(folder, fmt.Sprintf("%03d.tar", k)), archive(t, stdtar.FormatUnknown, members...))
	}
	return folder
}

// Readers of many shards keep at most the given number open, and no shard is closed during a read.
func TestOpenFilesAreBounded(t *testing.T) {
	const shards, limit, readers = 40, 3, 8
	folder := manyShards(t, shards)
	s := mustOpen(t, source.Settings{"path": filepath.Join(folder, "*.tar"), "open_files": limit})
	expect.Equal(t, len(sourcetest.Descriptors(t, folder)), 0, "open files before the first read")
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			buffer := make([]byte, s.Info().Schema.SampleBytes)
			for range 1500 {
				i := rand.IntN(4 * shards)
				n, err := s.Read(context.Background(), i, buffer)
				if err != nil {
					t.Errorf("sample %d: %v", i, err)
					return
				}
				if want := joined(t, []string{"cls", "jpg"}, cls(i), bytesOf(i, 100+i)); string(buffer[:n]) != string(want) {
					t.Errorf("sample %d: %d bytes", i, n)
				}
			}
		})
	}
	for range 200 {
		if n := len(sourcetest.Descriptors(t, folder)); n > limit+2*readers { // each reader uses one, or closes one that it has dropped
			t.Errorf("%d files are open", n)
		}
	}
	all.Wait()
	expect.Equal(t, len(sourcetest.Descriptors(t, folder)), limit, "open files")
	expect.NoError(t, s.Close())
	expect.Equal(t, len(sourcetest.Descriptors(t, folder)), 0, "files open after Close")
}

// A shard that was replaced while it was not open is refused.
func TestReplacedShard(t *testing.T) {
	folder := manyShards(t, 3)
	s := mustOpen(t, source.Settings{"path": filepath.Join(folder, "*.tar"), "open_files": 1})
	sample(t, s, 0)
	sample(t, s, 11) // shard 0 is closed now
	replaced := filepath.Join(folder, "000.tar")
	data := fatal.Value(os.ReadFile(replaced))(t)
	fatal.If(t, os.Remove(replaced))
	writeFile(t, replaced, data)
	if _, err := s.Read(context.Background(), 0, make([]byte, 1000)); !errors.Is(err, source.ErrChanged) || !strings.Contains(err.Error(), replaced) {
		t.Errorf("%v", err)
	}
	fatal.If(t, os.Remove(replaced))
	expect.Fails(s.Read(context.Background(), 0, make([]byte, 1000)))(t, os.ErrNotExist, replaced)
	sample(t, s, 11)
}

// A full table of descriptors is an error of the read that needs one, with the shard's name, and
// passes when descriptors are free again.
func TestNoDescriptorLeft(t *testing.T) {
	folder := manyShards(t, 3)
	s := mustOpen(t, source.Settings{"path": filepath.Join(folder, "*.tar")})
	sample(t, s, 0)
	var old unix.Rlimit
	fatal.If(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	fatal.If(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: old.Max}))
	var taken []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	_, err := s.Read(context.Background(), 5, make([]byte, 1000))
	sample(t, s, 1) // the shard is open
	for _, fd := range taken {
		unix.Close(fd)
	}
	fatal.If(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	expect.Error(t, err, unix.EMFILE, "001.tar")
	expect.Equal(t, sample(t, s, 5)["jpg"], string(bytesOf(5, 105)), "")
}
