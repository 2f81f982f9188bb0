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

	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
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
	for _, labels := range [][]int64{{0, 0}, {0, 1}} {
		l := &listing{rest: rest{Fingerprint: "dir-x", Folders: []folder{{"", 1}, {"a", 2}, {"b", 3}}}}
		labelled := labels[1] > 0
		made := newBuilder("")
		err := errors.Join(made.add("a/1", source.Stamp{Bytes: 3, ModifiedNs: 5}, labels[0]),
			made.add("b/2", source.Stamp{Bytes: 4, ModifiedNs: 6}, labels[1]))
		if err == nil {
			l.files, err = made.done(labelled)
		}
		if labelled {
			l.Classes = []string{"a", "b"}
		}
		path := filepath.Join(f.TempDir(), "index")
		to, errTo := os.Create(path)
		if err = errors.Join(err, errTo); err == nil {
			err = errors.Join(writeIndex(context.Background(), to, l, key), to.Close())
		}
		fatal.If(f, err)
		b := fatal.Value(os.ReadFile(path))(f)
		f.Add(b)
		for _, bad := range []string{"/b2", "b//", "../", "b/.", "\x002/"} { // in place of b/2
			f.Add(bytes.Replace(b, []byte("b/2"), []byte(bad), 1))
		}
		got := fatal.Value(parseIndex(context.Background(), b, key))(f)
		if name, r, err := got.files.look(1); name != "b/2" || r.modifiedNs != 6 || r.label != labels[1] || err != nil {
			f.Errorf("%q, %+v, %v", name, r, err)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)         // at a multiple of 8, and ours to change
		if len(b) >= indexHeader { // passes checks that random bytes fail
			copy(b, indexMagic)
			copy(b[16:48], key[:])
			binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], shm.Castagnoli))
		}
		l, err := parseIndex(context.Background(), b, key)
		if err != nil {
			return
		}
		if len(l.files.records) == 0 {
			t.Fatalf("%+v", l)
		}
		for i := range l.files.records {
			name, r, err := l.files.look(i)
			if err != nil || !below(name) || r.size < 0 {
				t.Fatalf("%q, %+v, %v", name, r, err)
			}
			if l.Classes != nil && l.files.labelled {
				_ = l.Classes[r.label]
			}
		}
		l.notes()
	})
}
