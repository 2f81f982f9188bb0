package tar_test

import (
	stdtar "archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/sourcetest"
	"github.com/stocached/stocached/source/tar"
)

const suffix = ".stocached-index"

// userCache sets the user's cache directory to a folder of the test.
func userCache(t *testing.T) string {
	folder := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", folder)
	return folder
}

// files returns the names of all files in a folder.
func files(t *testing.T, folder string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, folder+"/"))
		}
		return err
	})
	fatal.If(t, err)
	return names
}

func threeSamples(t *testing.T) (path string) {
	members, _ := samplesOf(t, 0, 3, func(i int) int { return 10 * i })
	return shardOf(t, members...)
}

func TestWhereIndexesAreKept(t *testing.T) {
	user := userCache(t)
	path := threeSamples(t)
	folder := filepath.Dir(path)
	open := func(index string) source.Source { return mustOpen(t, source.Settings{"path": path, "index": index}) }

	sourcetest.WantNote(t, open("none"), "indexes made", "1")
	if all := append(files(t, folder), files(t, user)...); len(all) != 1 {
		t.Errorf("none: %q", all)
	}
	other := filepath.Join(t.TempDir(), "made", "for it")
	sourcetest.WantNote(t, open(other), "indexes made", "1")
	sourcetest.WantNote(t, open(other), "indexes kept", "1")
	if all := files(t, other); len(all) != 1 || !strings.HasPrefix(all[0], "shard.tar-") ||
		!strings.HasSuffix(all[0], suffix) || len(files(t, folder)) != 1 {
		t.Errorf("a folder: %q, %q", all, files(t, folder))
	}
	// Shards of one name have different indexes.
	same := threeSamples(t)
	sourcetest.WantNote(t, mustOpen(t, source.Settings{"path": same, "index": other}), "indexes made", "1")
	sourcetest.WantNote(t, open(other), "indexes kept", "1")

	file := filepath.Join(t.TempDir(), "mine"+suffix)
	sourcetest.WantNote(t, open(file), "indexes made", "1")
	sourcetest.WantNote(t, open(file), "indexes kept", "1")

	sourcetest.WantNote(t, open(""), "indexes made", "1")
	sourcetest.WantNote(t, open(""), "indexes kept", "1")
	if all := files(t, folder); len(all) != 2 || all[1] != "shard.tar"+suffix || len(files(t, user)) != 0 {
		t.Errorf("beside: %q, %q", all, files(t, user))
	}
}

// If the shard's folder is not writable, the index goes to the user's cache directory. If that
// fails too, samples can still be read, and a note says so.
func TestFolderThatCannotBeWrittenTo(t *testing.T) {
	user := userCache(t)
	path := threeSamples(t)
	// A folder in place of the new file stops root too, for whom permissions do not matter.
	fatal.If(t, os.Mkdir(path+suffix+".new", 0o700))
	s := mustOpen(t, source.Settings{"path": path})
	sourcetest.WantNote(t, s, "indexes made", "1")
	sourcetest.WantNote(t, s, "indexes not kept", "")
	if all := files(t, user); len(all) != 1 || !strings.HasPrefix(all[0], "stocached/tar/shard.tar-") {
		t.Fatalf("%q", all)
	}
	sourcetest.WantNote(t, mustOpen(t, source.Settings{"path": path}), "indexes kept", "1")

	t.Setenv("XDG_CACHE_HOME", path) // not a folder
	s = mustOpen(t, source.Settings{"path": path})
	sourcetest.WantNote(t, s, "indexes not kept", "made again next time")
	if got := sample(t, s, 2); got["jpg"] != string(bytesOf(2, 20)) {
		t.Errorf("%q", got)
	}
}

// An index is refused when its shard has changed, or when any byte of it has. It is made again, and
// the next open finds it complete.
func TestIndexesThatAreNotBelieved(t *testing.T) {
	path := threeSamples(t)
	index := path + suffix
	first := mustOpen(t, source.Settings{"path": path})
	whole := fatal.Value(os.ReadFile(index))(t)
	version := bytes.Clone(whole)
	version[8]++
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-20] ^= 1
	for want, data := range map[string][]byte{"checksum": flipped, "version 3": version, "not an index": whole[:50],
		"is not an index": {}} {
		if err := os.Remove(index); err != nil { // first still reads the old one
			t.Fatal(err)
		}
		writeFile(t, index, data)
		s := mustOpen(t, source.Settings{"path": path})
		sourcetest.WantNote(t, s, "indexes made again", want)
		expect.Equal(t, sample(t, s, 2)["jpg"], string(bytesOf(2, 20)), "%s", want)
		again := mustOpen(t, source.Settings{"path": path})
		sourcetest.WantNote(t, again, "indexes made again", "")
		sourcetest.WantNote(t, again, "indexes kept", "1")
	}
	// No check shows that an index lies with a right checksum, so it must be of someone who can write the shard.
	for who, change := range map[string]func() error{"any user": func() error { return os.Chmod(index, 0o666) },
		"another user": func() error { return os.Chown(index, 12345, -1) }} {
		if err := change(); err != nil && os.Geteuid() == 0 {
			t.Fatal(err)
		} else if err != nil {
			continue
		}
		s := mustOpen(t, source.Settings{"path": path})
		sourcetest.WantNote(t, s, "indexes made again", "the index is not trusted")
		expect.Equal(t, sample(t, s, 2)["jpg"], string(bytesOf(2, 20)), "an index of %s", who)
	}
	expect.Equal(t, sample(t, first, 1)["jpg"], string(bytesOf(1, 10)), "a source that has the old index")
	if os.Geteuid() == 0 { // the shard's owner may write an index for it anywhere
		elsewhere := source.Settings{"path": path, "index": filepath.Join(t.TempDir(), "a"+suffix)}
		mustOpen(t, elsewhere)
		fatal.If(t, errors.Join(os.Chown(path, 12345, -1), os.Chown(elsewhere["index"].(string), 12345, -1)))
		sourcetest.WantNote(t, mustOpen(t, elsewhere), "indexes kept", "1")
	}
	// Another shard of the same size and time of modification.
	members, _ := samplesOf(t, 3, 3, func(i int) int { return 10 * (i - 3) })
	sourcetest.Replace(t, path, archive(t, stdtar.FormatUnknown, members...))
	s := mustOpen(t, source.Settings{"path": path})
	sourcetest.WantNote(t, s, "indexes made again", "another version or shard")
	expect.Equal(t, sample(t, s, 2)["jpg"], string(bytesOf(5, 20)), "")
}

// An index that is truncated while it is mapped is an error of the readers, and does not end the
// process.
func TestIndexCutWhileInUse(t *testing.T) {
	members, _ := samplesOf(t, 0, 2000, func(i int) int { return i % 10 })
	path := shardOf(t, members...)
	s := mustOpen(t, source.Settings{"path": path})
	fatal.If(t, os.Truncate(path+suffix, 0))
	expect.Fails(s.Size(1999))(t, source.ErrChanged, path+suffix)
	expect.Fails(s.Read(context.Background(), 0, make([]byte, 1000)))(t, source.ErrChanged)
	expect.Equal(t, s.Where(3), path, "the place")
	expect.Equal(t, sample(t, mustOpen(t, source.Settings{"path": path}), 1999)["jpg"], string(bytesOf(1999, 9)), "opened again")
}

// Many processes that open the same shards at once make complete indexes, whichever is first.
func TestManyAtOnce(t *testing.T) {
	folder := t.TempDir()
	for k := range 4 {
		members, _ := samplesOf(t, 100*k, 100, func(i int) int { return i })
		writeFile(t, filepath.Join(folder, fmt.Sprintf("%d.tar", k)), archive(t, stdtar.FormatUnknown, members...))
	}
	var openers sync.WaitGroup
	for range 8 {
		openers.Go(func() {
			s, err := tar.Kind.Open(context.Background(),
				source.Settings{"path": filepath.Join(folder, "*.tar"), "int64": []string{"cls"}})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for i := range 400 {
				expect.Equal(t, sample(t, s, i)["jpg"], string(bytesOf(i, i)), "sample %d", i)
			}
		})
	}
	openers.Wait()
	// indexes are not shards, nor are leftover files
	s := mustOpen(t, source.Settings{"path": filepath.Join(folder, "*.tar*")})
	sourcetest.WantNote(t, s, "indexes kept", "4")
	if all := files(t, folder); len(all) != 8 {
		t.Errorf("%q", all)
	}
}
