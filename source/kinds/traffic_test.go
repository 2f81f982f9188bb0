package kinds_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/block"
	"github.com/stocached/stocached/source/kinds"
	"github.com/stocached/stocached/source/s3/s3test"
	"github.com/stocached/stocached/source/sourcetest"
)

// noise returns samples of 110 KiB, as usual pictures have.
func noise(n int) (all [][]byte) {
	for i := range n {
		all = append(all, sourcetest.Noise(i, 110<<10))
	}
	return all
}

// shardOf makes a tar file of samples with two fields: the data, and a label. between, if not 0, is the size of a third
// member that lies between them.
func shardOf(t *testing.T, samples [][]byte, between int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, sample := range samples {
		for k, data := range [][]byte{sample, make([]byte, between), fmt.Appendf(nil, "%d", i)} {
			if k == 1 && between == 0 {
				continue
			}
			name := fmt.Sprintf("%06d.%s", i, []string{"jpg", "json", "cls"}[k])
			fatal.If(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o600}))
			fatal.Value(w.Write(data))(t)
		}
	}
	w.Close()
	return b.Bytes()
}

// Ensure, counted at the server, that a sample costs one request, and at most 1.02 of its bytes, in any order.
// The fields of a sample in a shard are read together: if others lie between them, with at most source.RemoteGap more
// bytes. The index of the shard costs its bytes once, and nothing the next time.
func TestBytesOfASampleInABucket(t *testing.T) {
	samples := noise(60)
	folder := t.TempDir()
	schema, err := shm.NewSchema([]shm.Field{{Name: "data", DType: shm.Uint8, Dims: []uint64{110 << 10}}}, false)
	fatal.If(t, err)
	w := fatal.Value(block.Create(t.Context(), folder+"/packed", block.Options{Schema: schema, BlockBytes: 1 << 20}))(t)
	objects := map[string][]byte{"raw": bytes.Join(samples, nil), "train.tar": shardOf(t, samples, 0),
		"x.npy": arrayOf(samples)}
	var small [][]byte
	for i, sample := range samples {
		objects[fmt.Sprintf("files/%03d.jpg", i)] = sample
		fatal.If(t, w.Write(sample))
		small = append(small, sample[:5000])
	}
	objects["apart.tar"] = shardOf(t, small, 50_000)
	fatal.If(t, w.Finish())
	packed, _ := filepath.Glob(folder + "/packed/*")
	for _, path := range packed {
		objects["packed/"+filepath.Base(path)] = read(t, path)
	}
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			for key, data := range objects {
				b.put(t, key, data)
			}
			for _, c := range []struct {
				kind, path string
				more       source.Settings
				want       [][]byte
				apart      int64 // bytes of other members between the fields of a sample
			}{
				{"dir", "files", nil, samples, 0},
				{"raw", "raw", source.Settings{"sample_bytes": 110 << 10}, samples, 0},
				{"npy", "x.npy", nil, samples, 0},
				{"block", "packed", nil, samples, 0},
				{"tar", "train.tar", source.Settings{"int64": []any{"cls"}}, samples, 0},
				{"tar", "apart.tar", source.Settings{"fields": []any{"jpg", "cls"}, "int64": []any{"cls"}}, small, source.RemoteGap},
			} {
				t.Run(c.path, func(t *testing.T) {
					t.Setenv("XDG_CACHE_HOME", t.TempDir()) // another server has the same shards
					total := int64(0)
					for _, sample := range c.want {
						total += int64(len(sample))
					}
					remote := maps.Clone(b.remote)
					if remote == nil {
						remote = map[string]any{}
					}
					remote["hedge"] = false // a slow machine may get second requests
					for round := range 2 {
						before, opened := b.server.Bytes.Load(), int64(0)
						src := fatal.Value(b.open(b.at+"/"+c.path, mergedWith(mergedWith(c.more, "kind", c.kind), "remote", remote)))(t)
						defer src.Close()
						b.server.Settle()
						most := total * 11 / 10
						if c.apart > 0 {
							most += c.apart * int64(len(c.want))
						}
						if opened = b.server.Bytes.Load() - before; c.kind == "tar" && (round == 0) != (opened > total/2) || opened > most {
							t.Errorf("opened for the time %d, it read %d bytes of %d", round+1, opened, total)
						}
						for _, i := range rand.Perm(len(c.want)) {
							n := fatal.Value(src.Size(i))(t)
							b.server.Settle()
							requests, sent := b.server.Requests.Load(), b.server.Bytes.Load()
							got := make([]byte, n)
							if _, err := src.Read(t.Context(), i, got); err != nil || !bytes.Contains(got, c.want[i]) {
								t.Fatalf("sample %d: %v", i, err)
							}
							b.server.Settle()
							if requests, sent = b.server.Requests.Load()-requests, b.server.Bytes.Load()-sent; requests != 1 ||
								sent > int64(n)*102/100+c.apart {
								t.Errorf("sample %d took %d requests and %d bytes for %d", i, requests, sent, n)
							}
						}
						b.server.Settle()
						traffic := src.Info().Traffic
						// The source asks for an index beside the shard. It does not count the answer that there is none. Other
						// servers than those of S3 answer questions for attributes with bytes.
						if got, want := int64(traffic.Bytes.Load()), b.server.Bytes.Load()-before; strings.HasPrefix(b.at, "s3:") &&
							(got > want || got+500*int64(one(c.kind == "tar")) < want) {
							t.Errorf("the source counted %d bytes, the server %d", got, want)
						}
					}
				})
			}
		})
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Ensure, counted at the server, that the index of a shard of large members costs a request for each, and not
// the bytes of their data. Small members among them are found, too.
func TestIndexOfLargeMembersSkipsTheirData(t *testing.T) {
	s3test.Environment(t)
	var large [][]byte
	for k := range 24 {
		large = append(large, bytes.Repeat([]byte{byte(k)}, 3<<20/2+k*1000))
	}
	small := noise(40) // 4.4 MB, which are read
	s := s3test.Fake(t)
	s.Put(t, "train.tar", shardOf(t, append(append(slices.Clone(large[:12]), small...), large[12:]...), 0))
	requests, sent := s.Requests.Load(), s.Bytes.Load()
	src := opened(t, source.Settings{"kind": "tar", "path": "s3://" + s3test.Bucket + "/train.tar",
		"remote": map[string]any{"endpoint": s.URL, "hedge": false}})
	s.Settle()
	requests, sent = s.Requests.Load()-requests, s.Bytes.Load()-sent
	if most := int64(len(large)*64<<10 + 40*112<<10 + 4<<20); sent > most || requests > int64(len(large)+12) {
		t.Errorf("the index took %d requests and %d bytes, want at most %d and %d", requests, sent, len(large)+12, most)
	}
	expect.Equal(t, src.Info().Samples, len(large)+len(small), "samples")
	for i, want := range map[int][]byte{0: large[0], 11: large[11], 12: small[0], 51: small[39], 52: large[12], 63: large[23]} {
		got := make([]byte, len(want)+1024)
		if n, err := src.Read(t.Context(), i, got); err != nil || !bytes.Contains(got[:n], want) {
			t.Errorf("sample %d: %v", i, err)
		}
	}
}

// Ensure that an index beside a shard in a bucket is written once by index: beside, that each other machine takes
// it from there instead of reading the shard, also from a web server, and that one of another state is not used.
func TestIndexBesideAShardInABucket(t *testing.T) {
	for name, start := range s3test.Servers(t) {
		t.Run(name, func(t *testing.T) {
			s, samples := start(t), noise(60)
			shard := shardOf(t, samples, 0)
			s.Put(t, "train.tar", shard)
			address := "s3://" + bucket + "/train.tar"
			open := func(path string, more source.Settings) (src source.Source, sent int64) {
				t.Helper()
				settings := mergedWith(more, "path", path)
				settings["kind"], settings["fields"] = "tar", []any{"jpg"}
				if strings.HasPrefix(path, "s3:") {
					settings["remote"] = map[string]any{"endpoint": s.URL, "hedge": false}
				}
				s.Settle()
				before := s.Bytes.Load()
				src = fatal.Value(kinds.Open(t.Context(), settings))(t)
				t.Cleanup(func() { src.Close() })
				s.Settle()
				return src, s.Bytes.Load() - before
			}
			anotherMachine := func() { t.Setenv("XDG_CACHE_HOME", t.TempDir()) }
			check := func(what string, src source.Source, sent, most int64, note string) {
				t.Helper()
				advised := slices.ContainsFunc(src.Info().Notes, func(n source.Note) bool {
					return n.Name == "shards read" && n.Advice && strings.Contains(n.Text, address+"' --source index=beside")
				})
				if wanted := strings.HasPrefix(note, "indexes made") && what != "without indexes"; advised != wanted {
					t.Errorf("%s: notes %+v; advised %v", what, src.Info().Notes, advised)
				}
				got := make([]byte, len(samples[7]))
				if _, err := src.Read(t.Context(), 7, got); err != nil || !bytes.Equal(got, samples[7]) {
					t.Errorf("%s: %v", what, err)
				}
				if sent > most || !slices.ContainsFunc(src.Info().Notes, func(n source.Note) bool { return n.Name == note }) {
					t.Errorf("%s: %d bytes, at most %d; notes %v, want %q", what, sent, most, src.Info().Notes, note)
				}
			}
			whole, index := int64(len(shard))*11/10, int64(20_000)
			anotherMachine() // it reads the same shard
			src, sent := open(address, nil)
			check("the first", src, sent, whole, "indexes made")
			if names := s.Names(t, "train"); len(names) != 1 {
				t.Errorf("without the setting, the objects are %v", names)
			}
			src, sent = open(address, source.Settings{"index": "beside"}) // it has the index on its disk
			check("the writer", src, sent, index, "indexes written")
			expect.Slice(t, s.Names(t, "train"), []string{"train.tar", "train.tar.stocached-index"}, "the objects are")
			anotherMachine()
			src, sent = open("s3://"+bucket+"/train*", nil)
			check("another machine", src, sent, index, "indexes taken")
			src, sent = open(address, nil)
			check("its second start", src, sent, 0, "indexes kept")
			anotherMachine()
			src, sent = open(address, source.Settings{"index": "beside"})
			check("another writer", src, sent, index, "indexes taken")
			src, sent = open(address, source.Settings{"index": t.TempDir()})
			check("with a folder", src, sent, index, "indexes taken")
			src, sent = open(address, source.Settings{"index": "none"})
			check("without indexes", src, sent, whole, "indexes made")
			if name == "gofakes3" { // the other one gives no web server anything
				src, sent = open(s.URL+"/"+bucket+"/train.tar", nil)
				check("over the web", src, sent, index, "indexes taken")
			}
			anotherMachine()
			samples[7] = slices.Clone(samples[8])
			s.Put(t, "train.tar", shardOf(t, samples, 0))
			src, sent = open(address, nil)
			check("another shard", src, sent, whole, "indexes made again")
			anotherMachine()
			s.Put(t, "train.tar.stocached-index", bytes.Repeat([]byte("no index"), 1<<20))
			src, sent = open(address, source.Settings{"index": "beside"})
			check("damaged", src, sent, whole, "indexes written")
			s.Spoil(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method == http.MethodPut {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				next.ServeHTTP(w, r)
			})
			s.Remove(t, "train.tar.stocached-index")
			_, err := kinds.Open(t.Context(), source.Settings{"kind": "tar", "path": address, "index": "beside",
				"remote": map[string]any{"endpoint": s.URL}})
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "index: beside") {
				t.Errorf("a bucket that may not be written: %v", err)
			}
		})
	}
}

// Ensure that keys which name local files refuse addresses, and show nothing of them that is private.
func TestAddressesWhereFilesAreWanted(t *testing.T) {
	for _, c := range []source.Settings{{"kind": "tar", "path": "s3://b/x.tar", "index": "s3://b/indexes"},
		{"kind": "tar", "path": "https://127.0.0.1/x.tar", "index": "beside"},
		{"kind": "dir", "path": "s3://b/x", "index": "https://127.0.0.1/index?key=secret"},
		{"kind": "dir", "path": "https://127.0.0.1/x", "manifest": "https://me:secret@127.0.0.1/list.txt"}} {
		_, err := kinds.Open(t.Context(), c)
		want := "must be a local path"
		if c["index"] == "beside" {
			want = "a web server takes no files"
		}
		if !errors.Is(err, source.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %v", c, err)
		}
	}
	if _, err := os.Stat("s3:"); err == nil {
		t.Error("there is a folder named s3:")
	}
}

// Ensure that samples of a shard that lie side by side are read by one request, as blocks are, with few bytes more,
// and that fields which lie far apart are not.
func TestNeighboursOfAShard(t *testing.T) {
	s3test.Environment(t)
	samples := noise(200) // 22 MB: three blocks of 8 MiB
	s := s3test.Fake(t)
	s.Put(t, "train.tar", shardOf(t, samples, 0))
	open := func(fields ...any) source.Blocks {
		t.Helper()
		src, err := kinds.Open(t.Context(), source.Settings{"kind": "tar", "path": "s3://" + s3test.Bucket + "/train.tar",
			"fields": fields, "remote": map[string]any{"endpoint": s.URL, "hedge": false}})
		fatal.If(t, err)
		t.Cleanup(func() { src.Close() })
		return src.(source.Blocks)
	}
	src := open("jpg", "cls")
	expect.Equal(t, src.Blocks(), 3, "blocks")
	next, requests, sent, bytesRead := 0, s.Requests.Load(), s.Bytes.Load(), int64(0)
	for b := range src.Blocks() {
		first, n := src.Block(b)
		if first != next || src.BlockOf(first) != b || src.BlockOf(first+n-1) != b {
			t.Errorf("block %d has %d samples from %d on, want %d", b, n, first, next)
		}
		err := src.ReadBlock(t.Context(), b, func(i int, sample []byte) error {
			expect.Equal(t, i, next, "sample")
			next++
			bytesRead += int64(len(sample))
			alone := make([]byte, len(sample))
			if i%20 == 0 {
				before := s.Requests.Load()
				if _, err := src.Read(t.Context(), i, alone); err != nil || !bytes.Equal(alone, sample) || !bytes.Contains(sample, samples[i]) {
					t.Errorf("sample %d differs in its block: %v", i, err)
				}
				requests += s.Requests.Load() - before
				sent += int64(len(sample)) + 4096 // what that read takes
			}
			return nil
		})
		fatal.If(t, err)
	}
	s.Settle()
	if got := s.Requests.Load() - requests; next != len(samples) || got != 3 {
		t.Errorf("%d samples by %d requests", next, got)
	}
	if got := s.Bytes.Load() - sent; got > bytesRead*102/100 {
		t.Errorf("%d bytes were sent for %d", got, bytesRead)
	}
	if labels := open("cls"); labels.Blocks() != len(samples) {
		t.Errorf("%d blocks of %d labels that lie 110 KiB apart", labels.Blocks(), len(samples))
	}
}

// Ensure that records and rows of an object that lie side by side are read by one request with read_ahead: blocks, or if
// they are announced, and else one by one, and that local files have no blocks.
func TestNeighboursOfRows(t *testing.T) {
	s3test.Environment(t)
	want := noise(100) // 11 MB: blocks of 74 and 26 samples
	s := s3test.Fake(t)
	s.Put(t, "raw", bytes.Join(want, nil))
	s.Put(t, "x.npy", arrayOf(want))
	for _, c := range []source.Settings{{"kind": "raw", "path": "raw", "sample_bytes": 110 << 10}, {"kind": "npy", "path": "x.npy"}} {
		name := c["path"].(string)
		c["path"], c["remote"] = "s3://"+s3test.Bucket+"/"+name, map[string]any{"endpoint": s.URL, "hedge": false}
		for _, how := range []struct {
			blocks, announced bool
			wanted            int64
		}{{true, false, 2}, {false, false, 100}, {false, true, 2}} {
			blocks, wanted := how.blocks, how.wanted
			src, ahead, err := kinds.Whole(t.Context(), kinds.Open, mergedWith(c, "read_ahead", map[string]any{"blocks": blocks}), nil)
			fatal.If(t, err)
			defer src.Close()
			if b, has := src.(source.Blocks); ahead == nil || !has || (b.Blocks() != 2 || b.BlockOf(73) != 0 || b.BlockOf(74) != 1 ||
				b.BlockOf(100) != -1 || !strings.Contains(src.Where(99), name)) {
				t.Errorf("%s, blocks: %v: %T", name, blocks, src)
			}
			s.Settle()
			requests, sent := s.Requests.Load(), s.Bytes.Load()
			if how.announced {
				indices := make([]int, len(want))
				for i := range indices {
					indices[i] = i
				}
				ahead.Prefetch(indices)
			}
			readAll(t, src, want)
			s.Settle()
			requests, sent = s.Requests.Load()-requests, s.Bytes.Load()-sent
			if requests != wanted || sent > 100*110<<10*102/100 {
				t.Errorf("%s, blocks: %v: %d requests and %d bytes", name, blocks, requests, sent)
			}
			if b, has := src.(source.Blocks); has {
				err := b.ReadBlock(t.Context(), 2, func(int, []byte) error { return nil })
				if first, n := b.Block(2); n != 0 || !errors.Is(err, source.ErrIndex) {
					t.Errorf("block 2 of %s has %d samples from %d on, %v", name, n, first, err)
				}
			}
		}
	}
	local := source.Settings{"kind": "raw", "path": write(t, t.TempDir()+"/raw", bytes.Join(want, nil)), "sample_bytes": 110 << 10,
		"read_ahead": map[string]any{"blocks": true}}
	if _, _, err := kinds.Whole(t.Context(), kinds.Open, local, nil); !errors.Is(err, source.ErrInvalid) {
		t.Errorf("blocks of a local file: %v", err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data := fatal.Value(os.ReadFile(path))(t)
	return data
}
