package dir

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"
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
		l := &listing{files: newFiles(names, []source.Stamp{{Bytes: 3, ModifiedNs: 5}, {Bytes: 4, ModifiedNs: 6}}, labels),
			rest: rest{Fingerprint: "dir-x", Folders: []folder{{"", 1}, {"a", 2}, {"b", 3}}}}
		if labels != nil {
			l.Classes = []string{"a", "b"}
		}
		parts, err := encodeIndex(l, key)
		if err != nil {
			f.Fatal(err)
		}
		b := slices.Concat(parts...)
		f.Add(b)
		for _, bad := range []string{"/b/2", "b//2", "../2", "b/./", "\x00/22"} { // in place of b/2, with the end of a/1
			f.Add(bytes.Replace(b, []byte("/1b/2"), []byte("/1" + bad)[:5], 1))
		}
		if got, err := decodeIndex(context.Background(), b, key); err != nil || got.files.name(1) != "b/2" {
			f.Fatal(got, err)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= indexHeader { // passes checks that random bytes fail
			copy(b, indexMagic)
			copy(b[16:48], key[:])
			binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
		}
		l, err := decodeIndex(context.Background(), b, key)
		if err != nil {
			return
		}
		n := l.files.len()
		if n == 0 || len(l.files.stamps) != 16*n || l.files.labelled() && len(l.files.labels) != 8*n {
			t.Fatalf("%+v", l)
		}
		for i := range n {
			if name := l.files.name(i); !below(name) || l.files.bytes(i) < 0 {
				t.Fatalf("%q, %+v", name, l.files.stamp(i))
			}
			if l.Classes != nil && l.files.labelled() {
				_ = l.Classes[l.files.label(i)]
			}
		}
		l.notes()
	})
}
