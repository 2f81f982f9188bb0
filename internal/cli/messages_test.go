package cli

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
	"github.com/stocached/stocached/source/sourcetest"
)

// internals are words of Go, its libraries and cobra that mean nothing to users.
var internals = regexp.MustCompile(`strconv\.|<nil>|%!|map\[|interface ?\{|unconvertible|unmarshal|mapstructure|reflect\.|runtime error|goroutine|expected type|error\(s\)|flag\(s\)|\btime: |(^|[ (])json: |` +
	`0x[0-9a-f]{8}|\bparsing "|invalid syntax|(invalid argument|invalid source|invalid tier|no such cache|invalid configuration): .*(invalid argument|invalid configuration): |group \[|\[[a-z]+ [a-z]+\]|\b1 [a-z]+s\b, expected|` +
	`source data|got int|another kind of value`)

// wantOurWords checks the message of a failed command.
func wantOurWords(t *testing.T, what, stderr string) {
	t.Helper()
	expect.Equal(t, internals.FindString(stderr), "", "%s: words in %s", what, stderr)
	if !strings.HasPrefix(stderr, "stocached: ") ||
		strings.ContainsFunc(stderr, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }) {
		t.Errorf("%s: %q", what, stderr)
	}
}

// badValues are bad values for flags of any kind.
var badValues = []string{"", "-1", "0", "1.5", "99999999999999999999", "a:b:c", "\x1b[31m", "-5s"}

// Ensure that every flag of every command accepts a bad value, or refuses it in our words: with the
// flag's name if the value is bad.
func TestMessagesOfFlags(t *testing.T) {
	dir, segments := t.TempDir(), tmpfs.Folder(t)
	records, config := filepath.Join(dir, "records"), filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("caches: [{name: pets, dir: %s, source: {kind: raw, path: records, sample_bytes: "+
		"10}}]\nsockets: {dir: %s/run}\n", segments, dir)
	fatal.If(t, os.WriteFile(records, make([]byte, 100), 0o600))
	fatal.If(t, os.WriteFile(config, []byte(text), 0o600))
	ok(t, "create", "there", "--dir", segments, "--samples", "10", "--sample-bytes", "10")
	taken, err := net.Listen("tcp", "127.0.0.1:0") // a page that listened would not end
	fatal.If(t, err)
	defer taken.Close()
	raw, at := []string{records, "--kind", "raw", "--source", "sample_bytes=10"}, []string{"--sockets", dir + "/run"}
	arguments := map[string][]string{ // commands that need some
		"create": {"new", "--dir", segments, "--samples", "10"}, "stats": {"there", "--dir", segments},
		"inspect": {"there", "--dir", segments}, "verify": {"there", "--dir", segments},
		"rm": {"nothing", "--dir", segments}, "gc": {"--dir", segments}, "ls": {"--dir", segments},
		"serve": {"-c", config, "--check"}, "config print": {"-c", config}, "man": {filepath.Join(dir, "man")},
		"warm":   append([]string{"pets", "--timeout", "1ms"}, at...),
		"health": append([]string{"pets"}, at...), "trace": {records}, "simulate": {"--samples", "100"}, "pack": append([]string{records, dir + "/packed"}, raw[1:]...),
		"web":         {"--listen", taken.Addr().String()},
		"source info": raw, "source verify": raw, "source cat": append([]string{records, "1"}, raw[1:]...),
	}
	tried, refused := 0, 0
	var walk func(c *cobra.Command, path string)
	walk = func(c *cobra.Command, path string) {
		for _, sub := range c.Commands() {
			walk(sub, strings.TrimSpace(path+" "+sub.Name()))
		}
		if c.HasSubCommands() || path == "completion" {
			return
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "check" || f.Name == "watch" { // a good value would not end
				return
			}
			for _, bad := range badValues {
				args := slices.Concat(strings.Fields(path), arguments[path], []string{"--" + f.Name + "=" + bad})
				watch := time.AfterFunc(time.Minute, func() { panic(fmt.Sprintf("%q does not end", args)) })
				code, _, stderr := cli(t, args...)
				watch.Stop()
				if tried++; code == exitOK {
					continue
				}
				refused++
				wantOurWords(t, fmt.Sprintf("%q", args), stderr)
				if code == exitUsage && f.Value.Type() != "string" && f.Value.Type() != "stringArray" &&
					strings.Contains(stderr, "is not ") &&
					!strings.Contains(strings.ReplaceAll(stderr, " ", "-"), f.Name) {
					t.Errorf("%q: %s does not name the flag", args, stderr)
				}
			}
		})
	}
	walk(newRoot(), "")
	if tried < 500 || refused < tried/2 {
		t.Errorf("%d command lines were tried, %d refused", tried, refused)
	}
}

// Ensure that other invalid command lines are refused in our words, with the reason.
func TestMessagesOfCommandLines(t *testing.T) {
	dir := tmpfs.Folder(t)
	for _, c := range []struct{ line, want string }{
		{"create --samples 10 --sample-bytes 10", "needs a name"},
		{"create a b --samples 10 --sample-bytes 10", "2 names"},
		{"create a --samples 10", "--shape, --field, --sample-bytes or --variable"},
		{"create .hidden --samples 10 --sample-bytes 10", `".hidden" is not 1 to 100 of`},
		{"create a --samples 10 --sample-bytes 10 --size 8G", `"8G" is not a size`},
		{"create a --samples 10 --shape 3 --dtype float", `dtype "float" is none of`},
		{"create a --samples 10 --sample-bytes 8 --dtype float32", "give a --shape"},
		{"create a --samples 10 --field image", "name:dtype:shape"},
		{"create a --samples 10 --shape ?,3", "differs between samples"},
		{"create a --samples 10 --variable", "size: a variable-size cache needs one"},
		{"create a --samples 10 --variable --size 8MB --policy first-indices", "policy: first-indices needs samples of one size"},
		{"create a --samples 10 --variable --size 8MB --policy planned", "policy planned needs a server"},
		{"create a --samples 10 --sample-bytes 10 --policy planned", "policy planned needs a server"},
		{"create a --samples 10 --variable --size 1MB --policy lru", "one slot of 64 bytes for 10 samples needs 4.01 MiB"},
		{"create a --samples 10 --sample-bytes 10 --slots 20", "slots: 20 is more than"},
		{"create a --samples 10 --sample-bytes 10 --policy dearest", `"dearest" is not one of first-come, `},
		{"create a --samples 10 --sample-bytes 10 --unlink first", "neither never nor last"},
		{"create a --samples 10 --sample-bytes 10 --clients 9999", "clients: 9999 is not in 1..4095"},
		{"create a --samples 10 --sample-bytes 10 --fingerprint " + strings.Repeat("x", 65), "fingerprint"},
		{"create a --samples 10 --sample-bytes 10 --size 1000", "needs 4.01 MiB, more than the size of 1000 bytes; 4.01 MiB hold all samples"},
		{"create a --samples 1000000000 --sample-bytes 1MiB", "the cache needs"},
		{"create a --samples 10 --sample-bytes 10 --dir /nowhere", "no such file"},
		{"create a --samples 10 --sample-bytes 10 --dir /", "not on a tmpfs"},
		{"create a --samples 10 --shape 3 --field a:uint8", "--field and --shape: give one of them, not both"},
		{"create a --samples 10 --dtype uint8 --field a:uint8", "--field and --dtype: give one of them"},
		{"create a --shape 3", "--samples is needed: number of samples of the dataset"},
		{"create a --samples -1 --shape 3", `--samples: "-1" is not a whole number, 0 or above`},
		{"create a --samples 99999999999999999999 --shape 3", "--samples: 99999999999999999999 is too large"},
		{"create a --samples 10 --shape=", "--shape is empty"},
		{"create a --samples 10 --shape 3,,4", `"" is not a dimension`},
		{"create a --samples 10 --shape 3:4", `shape "3:4": "3:4" is not a dimension`},
		{"create a --samples 10 --shape 3 --size 0", "--size: 0 is not in 1.."},
		{"create a --samples 10 --shape 3 --size 1.5", `--size: "1.5" is not a size`},
		{"create a --samples 10 --shape 3 --slots 0", "--slots: 0 is not in 1.."},
		{"create a --samples 10 --shape 3 --clients 0", "--clients: 0 is not in 1.."},
		{"create a --samples 10 --shape 3 --reserve=perhaps", `--reserve: "perhaps" is not true or false`},
		{"create ../a --samples 10 --shape 3", `name: "../a" is not 1 to 100 of`},
		{"create a --samples 10 --shape 65536,65536,65536,65536", "bytes"},
		{"create a --samples 10 --shape 65536,65536,65536,65536 --variable --size 1GiB", "bytes"},
		{"gc --older-than -1h", "--older-than -1h0m0s is below 0"},
		{"gc --older-than 5", `--older-than: "5" is not a time with a unit`},
		{"gc --dir=", "--dir is empty"},
		{"web --listen=", "--listen is empty; leave it out"},
		{"ls x", "1 argument, expected none"},
		{"ls x y", "2 arguments, expected none"},
		{"inspect", "0 arguments, expected the name of a cache"},
		{"warm a -j 99999999999", "--parallel 99999999999 is not in 1..64"},
		{"stats a --watch --interval x", `--interval: "x" is not a time with a unit`},
		{"health --timeout", "flag needs an argument: --timeout"},
		{"health --nonsense", "unknown flag: --nonsense"},
		{"nonsense", `unknown command "nonsense"`},
		{"help nonsense", `unknown command "nonsense"`},
		{"pack a b --resume --restart", "--resume and --restart: give one of them"},
		{"source info /dev/null", "its name does not say what kind of source it is"},
		{"source info . --kind nonsense", `there is no kind "nonsense"; known are: block`},
		{"source info . --kind raw --source shape=5", "shape: a list is wanted, and there is a whole number"},
		{"source info x.tar --source int64=cls", "int64: a list is wanted, and there is a text; write [cls]"},
		{"source info . --decode resize=5", "resize: a list is wanted, and there is a whole number"},
		{"source info . --decode resize=[30,40]x", "resize: a list is wanted, and there is a text"},
		{"source cat . x", `index "x" is not a whole number`},
	} {
		args := strings.Fields(c.line)
		if args[0] == "create" && !strings.Contains(c.line, "--dir") {
			args = append(args, "--dir", dir)
		}
		code, _, stderr := cli(t, args...)
		if code != exitUsage && code != exitMemory || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit %d, want %q in %s", c.line, code, c.want, stderr)
		}
		wantOurWords(t, c.line, stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files were left: %v, %v", left, err)
	}
}

// Ensure that every key of a configuration accepts a bad value, or refuses it in our words with the
// key's name; and that the test knows all keys.
func TestMessagesOfConfigurations(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string][]byte{"records": make([]byte, 100), "files/a.png": []byte("no picture")} {
		path := filepath.Join(dir, name)
		fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
		fatal.If(t, os.WriteFile(path, data, 0o600))
	}
	var shard bytes.Buffer
	archive := tar.NewWriter(&shard)
	if err := errors.Join(archive.WriteHeader(&tar.Header{Name: "0.txt", Size: 1, Mode: 0o600}),
		func() error { _, err := archive.Write([]byte("7")); return err }(), archive.Close(),
		os.WriteFile(filepath.Join(dir, "shard.tar"), shard.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer refuses.Close()
	t.Setenv("STOCACHED_DECODE", sourcetest.Helper(t, "../.."))
	sources := map[string]string{"raw": "kind: raw, path: records, sample_bytes: 10", "dir": "kind: dir, path: files",
		"tar": "kind: tar, path: shard.tar", "npy": "kind: npy, path: records", "block": "kind: block, path: files",
		"none": "kind: none, samples: 10, fingerprint: version-1, fields: [{name: x}]"}
	cache := func(source, more string) string {
		return fmt.Sprintf("caches: [{name: pets, source: {%s}%s}]\n", source, more)
	}
	raw := cache(sources["raw"], "")
	configurations := map[string]string{} // by key: KEY stands for it, VALUE for its value
	for _, key := range []string{"sockets", "limits", "admin", "metrics", "web", "log", "caches"} {
		configurations[key] = map[bool]string{true: "KEY: VALUE", false: raw + "KEY: VALUE"}[key == "caches"]
	}
	for _, key := range []string{"sockets.dir", "limits.total", "limits.clients", "admin.group", "admin.pprof",
		"metrics.listen", "web.listen", "log.format", "log.level"} {
		section, _, _ := strings.Cut(key, ".")
		configurations[key] = raw + section + ": {KEY: VALUE}"
	}
	for _, key := range []string{"size", "policy", "parallel", "dir", "unnamed", "read_timeout", "remove_unused",
		"side_buffer", "decode"} {
		configurations["caches."+key] = cache(sources["raw"], ", KEY: VALUE")
	}
	configurations["caches.name"] = strings.Replace(raw, "name: pets", "KEY: VALUE", 1)
	configurations["caches.source"] = "caches: [{name: pets, KEY: VALUE}]"
	configurations["source.kind"] = cache("path: records, KEY: VALUE", "")
	for heading, keys := range sourcetest.Documented(t, "../..") {
		for _, key := range keys {
			of, where := sources[heading], heading+"."+key
			switch {
			case heading == "decode" && key == "resize":
				configurations[where] = cache(sources["dir"], ", decode: {KEY: VALUE}")
			case heading == "decode":
				configurations[where] = cache(sources["dir"], ", decode: {resize: [4, 4], KEY: VALUE}")
			case heading == "remote" && key == "endpoint":
				configurations[where] = cache("kind: raw, path: s3://bucket/records, sample_bytes: 10, "+
					"remote: {KEY: VALUE}", "")
			case heading == "remote":
				configurations[where] = cache("kind: raw, path: s3://bucket/records, sample_bytes: 10, "+
					`remote: {endpoint: "`+refuses.URL+`", KEY: VALUE}`, "")
			case of == "": // limits, and one of its kind
				configurations[where] = cache(sources["raw"]+", "+heading+": {KEY: VALUE}", "")
				configurations[heading] = cache(sources["raw"]+", KEY: VALUE", "")
			case strings.Contains(of, key+": "):
				configurations[where] = cache(regexp.MustCompile(key+`: [^,]*`).ReplaceAllString(of, "KEY: VALUE"), "")
			case key == "shape":
				configurations[where] = cache("kind: raw, path: records, KEY: VALUE", "")
			default:
				configurations[where] = cache(of+", KEY: VALUE", "")
			}
		}
	}
	if len(configurations) < 55 {
		t.Fatalf("%d keys", len(configurations))
	}
	path := filepath.Join(dir, "config.yaml")
	tried, refused := 0, 0
	for where, configuration := range configurations {
		key := where[strings.LastIndex(where, ".")+1:]
		for _, value := range []string{"x", "-1", "0", "1.5", "99999999999999999999", "[]", "{a: 1}", `"\x1b[31m"`,
			"2030-01-01", ".nan", "[99999999999, 99999999999]", "[65536, 65536, 65536, 65536]",
			`":99999"`, "[null]", "-8ms", "9999999999h", "999999999TiB"} {
			text := strings.NewReplacer("KEY", key, "VALUE", value).Replace(configuration)
			fatal.If(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
			code, _, stderr := cli(t, "serve", "-c", path, "--check")
			if tried++; code == exitOK {
				continue
			}
			refused++
			wantOurWords(t, text, stderr)
			named := slices.ContainsFunc(strings.Split(key, "_"),
				func(word string) bool { return strings.Contains(stderr, word) })
			if code == exitUsage && !named && key != "path" && key != "glob" && key != "manifest" && key != "kind" &&
				key != "verify" && value != "{a: 1}" {
				t.Errorf("%s: %s does not name the key", text, stderr)
			}
		}
	}
	if tried < 800 || refused < tried*2/3 {
		t.Errorf("%d configurations were tried, %d refused", tried, refused)
	}
	for text, want := range map[string]string{
		"- a\n- b\n": "not YAML with keys: line 1: expected keys with values",
		"a: [":       "not YAML with keys: line 1", "\t": "not YAML with keys", "": "caches: a server needs",
		"caches: {}\ncaches: []": "already defined",
	} {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
		_, _, stderr := cli(t, "serve", "-c", path, "--check")
		contains(t, stderr, want)
		wantOurWords(t, text, stderr)
	}
}
