package tar

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/stocached/stocached/source"
)

// compressions are recognised by their first bytes, not by the name of a file.
var compressions = []struct {
	name, magic, command string
	suffixes             []string // ends of names; .tar replaces them in the name of the unpacked file
}{
	{"gzip", "\x1f\x8b", "gzip -dc", []string{".tar.gz", ".tgz", ".gz"}},
	{"zstd", "\x28\xb5\x2f\xfd", "zstd -dc", []string{".tar.zst", ".tzst", ".zst"}},
	{"xz", "\xfd7zXZ\x00", "xz -dc", []string{".tar.xz", ".txz", ".xz"}},
	{"bzip2", "BZh", "bzip2 -dc", []string{".tar.bz2", ".tbz2", ".tbz", ".bz2"}},
	{"lz4", "\x04\x22\x4d\x18", "lz4 -dc", []string{".tar.lz4", ".lz4"}},
	{"compress", "\x1f\x9d", "gzip -dc", []string{".tar.Z", ".Z"}},
}

// refuseCompressed returns ErrInvalid, with the command that unpacks the file, if head has the
// first bytes of a compressed file. A sample in such a file cannot be read without unpacking all
// before it.
func refuseCompressed(path string, head []byte) error {
	for _, c := range compressions {
		if !bytes.HasPrefix(head, []byte(c.magic)) {
			continue
		}
		plain := path
		for _, suffix := range c.suffixes {
			if stem, ok := strings.CutSuffix(path, suffix); ok {
				plain = stem + ".tar"
				break
			}
		}
		if plain == path { // the name does not show the compression: take another name
			plain = strings.TrimSuffix(path, ".tar") + ".plain.tar"
		}
		return fmt.Errorf("%w: %s is compressed with %s, so no sample can be read by itself; unpack it: %s %s > %s",
			source.ErrInvalid, path, c.name, c.command,
			shellQuote(path), shellQuote(plain))
	}
	return nil
}

// shellQuote quotes a path for a shell.
func shellQuote(path string) string {
	if strings.HasPrefix(path, "-") {
		path = "." + string(filepath.Separator) + path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
