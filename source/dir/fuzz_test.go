package dir

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stocached/stocached/source"
)

// Ensure that any text is a manifest of paths below the folder, or an error.
func FuzzManifest(f *testing.F) {
	for _, text := range []string{"a/1\nb/2\n", "path,label\na,1\nb,-2\n", "a\tx\n\"b\tc\"\ty\n",
		"\xEF\xBB\xBF\"a\"\"b\",\r\n", "../x\n", ",\n", "\"", "a,1\nb,x\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		lines, labelled, err := parseManifest(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(lines) == 0 {
			t.Fatal("no lines and no error")
		}
		for k, l := range lines {
			if !below(l.name) || l.number < 1 || k > 0 && l.number <= lines[k-1].number || l.label != "" && !labelled {
				t.Fatalf("%+v", l)
			}
		}
		labels, classes, err := labelsOf(lines)
		if err != nil {
			return
		}
		for k, label := range labels {
			if classes != nil && (label < 0 || label >= int64(len(classes)) || classes[label] != lines[k].label) {
				t.Fatalf("line %d: %d of %q", lines[k].number, label, classes)
			}
		}
	})
}

// Ensure that an index with a correct checksum is valid or refused: a user may have made it by
// hand.
func FuzzIndex(f *testing.F) {
	var key [32]byte
	for _, labels := range [][]int64{nil, {0, 1}} {
		names := []string{"a/1", "b/2"}
		l := &listing{rest: rest{Fingerprint: "dir-x", Folders: []folder{{"", 1}, {"a", 2}, {"b", 3}}}}
		made := newBuilder("", labels != nil)
		err := made.addAll(names, []source.Stamp{{Bytes: 3, ModifiedNs: 5}, {Bytes: 4, ModifiedNs: 6}}, labels)
		if err == nil {
			l.files, err = made.done()
		}
		if labels != nil {
			l.Classes, l.Numbers = []string{"a", "b"}, []int64{0, 1}
		}
		path := filepath.Join(f.TempDir(), "index")
		to, errTo := os.Create(path)
		if err = errors.Join(err, errTo); err == nil {
			err = errors.Join(writeIndex(context.Background(), to, l, key), to.Close())
		}
		if err != nil {
			f.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		for _, bad := range []string{"/b2", "b//", "../", "b/.", "\x002/"} { // in place of b/2
			f.Add(bytes.Replace(b, []byte("b/2"), []byte(bad), 1))
		}
		got, err := readIndex(context.Background(), content(b), int64(len(b)), key)
		if err == nil {
			err = got.files.look(1, func(e *entry) {
				if string(e.name) != "b/2" || e.stamp.ModifiedNs != 6 || labels != nil && e.label != 1 {
					f.Errorf("%q, %+v", e.name, e)
				}
			})
		}
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= indexHeader { // passes checks that random bytes fail
			copy(b, indexMagic)
			copy(b[16:48], key[:])
			sum := crc32.Checksum(b[indexHeader:], castagnoli)
			binary.LittleEndian.PutUint32(b[12:], crc32.Update(sum, castagnoli, b[16:indexHeader]))
		}
		l, err := readIndex(context.Background(), content(b), int64(len(b)), key)
		if err != nil {
			return
		}
		if l.files.n == 0 {
			t.Fatalf("%+v", l)
		}
		for i := range l.files.n {
			if err := l.files.look(i, func(e *entry) {
				if !below(e.name) || e.stamp.Bytes < 0 {
					t.Fatalf("%q, %+v", e.name, e.stamp)
				}
				if l.Classes != nil && l.files.labelled {
					_ = l.Classes[e.label]
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		l.notes()
	})
}

// content is a file in memory.
type content []byte

func (c content) ReadAt(_ context.Context, dst []byte, offset int64) error {
	_, err := bytes.NewReader(c).ReadAt(dst, offset)
	return err
}

func (c content) Close() error { return nil }
