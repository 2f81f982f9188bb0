package cli

import (
	"fmt"
	"hash/crc32"
	"os"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Ensure that inspect shows header, schema, geometry, control words and clients of the segment.
func TestInspect(t *testing.T) {
	_, path := newCache(t, shm.Options{Samples: 10, Slots: 4, Fingerprint: "f\x1b1", Limit: 8 << 20, ClientRecords: 5,
		Fields: []shm.Field{{Name: "image", DType: shm.Float32, Dims: []uint64{2, 3}},
			{Name: "label", DType: shm.Int64}}})
	c := newClient(t, path)
	fatal.Gives(c.Set(7, make([]byte, 32), 0))(t, cache.Stored)
	child := start(t, "use", path)
	child.kill()
	seg := c.Segment()
	type report struct {
		Header  jsonObject
		Fields  []jsonObject
		Regions []jsonObject
		Control jsonObject
		Clients []jsonObject
	}
	got := decode[report](t, ok(t, "inspect", path, "--json"))
	wantFields(t, got.Header, jsonObject{"name": "test", "path": path, "uuid": fmt.Sprintf("%x", seg.Header.UUID),
		"layout": 1, "creator_uid": os.Geteuid(), "samples": 10, "slots": 4,
		"sample_bytes": 32, "slot_stride": 32, "client_records": 5, "limit_bytes": 8 << 20, "variable": false,
		"policy": "first-come", "unlink": "never", "reserved": false, "fingerprint": "f\x1b1"})
	wantFields(t, got.Fields[0], jsonObject{"name": "image", "dtype": "float32", "shape": []any{2, 3}, "offset": 0,
		"bytes": 24})
	wantFields(t, got.Fields[1], jsonObject{"name": "label", "dtype": "int64", "shape": []any{}, "offset": 24,
		"bytes": 8})
	wantFields(t, got.Regions[len(got.Regions)-2],
		jsonObject{"name": "payload", "offset": int(seg.PayloadOffset), "bytes": 128})
	wantFields(t, got.Regions[len(got.Regions)-1],
		jsonObject{"name": "file", "offset": 0, "bytes": int(seg.SegmentBytes)})
	wantFields(t, got.Control,
		jsonObject{"phase": "OPEN", "clears": 0, "free_from": int(shm.FreeFrom(seg.FreeFrom().Load()).From()),
			"arena_next_unit": nil, "clients_high": 2})
	fatal.Equal(t, len(got.Clients), 2, "%v", got.Clients)
	wantFields(t, got.Clients[0], jsonObject{"owner": 1, "live": true, "pid": os.Getpid(), "kind": "go",
		"label": "test client", "registrations": 1, "claims": 0, "stored": 1,
		"other_pid_namespace": false})
	wantFields(t, got.Clients[1], jsonObject{"owner": 2, "live": false, "pid": child.Process.Pid, "label": "child use"})
	text := ok(t, "inspect", path)
	contains(t, text, "HEADER\n", "SCHEMA\n", "GEOMETRY\n", "CONTROL\n", "CLIENTS\n", `"f\x1b1"`,
		"image  float32  2,3", "test client")
}

// Ensure that inspect shows where the lengths of lists lie, and how many are known.
func TestInspectLengths(t *testing.T) {
	_, path := newCache(t, shm.Options{Samples: 10, Variable: true, Limit: 8 << 20, Lengths: true})
	seg := newClient(t, path).Segment()
	for sample, word := range []uint64{1, 7, shm.MaxItems + 1, shm.MaxItems + 2} {
		seg.Items(uint64(sample)).Store(word)
	}
	got := decode[struct {
		Regions []jsonObject
		Control jsonObject
	}](t, ok(t, "inspect", path, "--json"))
	wantFields(t, got.Regions[5], jsonObject{"name": "lengths", "offset": int(seg.LengthsOffset), "bytes": 80})
	wantFields(t, got.Control, jsonObject{"lengths": 3})
}

// Ensure that inspect NAME INDEX explains a sample's word: EMPTY, READY, claimed by a live and by a
// dead client, without a slot, corrupt.
func TestInspectSample(t *testing.T) {
	_, path := newCache(t, small())
	c := newClient(t, path)
	store(t, c, 5, 7)
	look := func(i string) jsonObject {
		t.Helper()
		return decode[jsonObject](t, ok(t, "inspect", path, i, "--json"))
	}
	payload := int(c.Segment().PayloadOffset)
	wantFields(t, look("0"), jsonObject{"state": "EMPTY", "owner": 0, "place": nil, "length": nil, "crc32c": nil,
		"file_offset": nil, "claimed_by": []any{}, "word": "0x0000000000000000"})
	wantFields(t, look("7"), jsonObject{"index": 7, "state": "READY", "owner": 0, "owner_live": nil, "place": 1,
		"file_offset": payload + 100, "length": 100,
		"crc32c": fmt.Sprintf("%08x", crc32.Checksum(content(7, 100), shm.Castagnoli)), "generation": 0})
	child := start(t, "claim", path)
	wantFields(t, look("3"), jsonObject{"state": "WRITING", "owner": 2, "owner_live": true, "claimed_by": []any{2},
		"length": nil})
	child.kill()
	wantFields(t, look("3"), jsonObject{"state": "WRITING", "owner": 2, "owner_live": false, "claimed_by": []any{2}})
	contains(t, ok(t, "inspect", path, "3"), "state        WRITING\n", "owner live   no\n")
	fatal.Gives(c.Recover())(t, 1)
	wantFields(t, look("3"), jsonObject{"state": "EMPTY", "generation": 1, "claimed_by": []any{}})
	c.Segment().Word(9).Store(1<<64 - 1)
	wantFields(t, look("9"), jsonObject{"state": "CORRUPT", "word": "0xffffffffffffffff"})

	fails(t, exitUsage, []string{"index 10", "0 to 9"}, "inspect", path, "10")
	fails(t, exitUsage, []string{"index -1", "0 to 9"}, "inspect", path, "--", "-1")
	fails(t, exitUsage, []string{"-1 is below 0: indices and numbers begin with 0"}, "inspect", path, "-1")
	fails(t, exitUsage, []string{`"x"`, "0 to 9"}, "inspect", path, "x")
	fails(t, exitUsage, []string{"0 arguments"}, "inspect")
	fails(t, exitUsage, []string{"3 arguments"}, "inspect", path, "1", "2")

	_, indices := newCache(t, shm.Options{Samples: 10, Slots: 4, SampleBytes: 100, Policy: shm.PolicyFirstIndices})
	wantFields(t, decode[jsonObject](t, ok(t, "inspect", indices, "4", "--json")), jsonObject{"state": "OUT"})
}

// Ensure that inspect NAME INDEX shows what a sample costs, and its place among all known costs.
func TestInspectCost(t *testing.T) {
	_, path, c := costly(t)
	look := func(i string) jsonObject {
		t.Helper()
		return decode[jsonObject](t, ok(t, "inspect", path, i, "--json"))
	}
	wantFields(t, look("2"), jsonObject{"state": "READY", "cost_is_average": false, "cost_rank": 1, "known_costs": 5})
	wantFields(t, look("1"), jsonObject{"cost_rank": 2})
	cheap := look("0")
	wantFields(t, cheap, jsonObject{"state": "EMPTY", "known_costs": 5, "cost_rank": 3}) // it has gone, and keeps its cost
	if cost := cheap["cost_seconds"].(float64); cost < 0.0096 || cost > 0.0144 {
		t.Error(cost)
	}
	wantFields(t, look("9"), jsonObject{"cost_seconds": nil, "cost_is_average": nil, "cost_rank": nil,
		"known_costs": nil})
	fatal.Value(c.SetLoaded(0, [][]byte{content(0, 100)}, 0, 20*time.Millisecond))(t)
	wantFields(t, look("0"), jsonObject{"cost_is_average": true})
	contains(t, ok(t, "inspect", path, "2"), "cost         ", "cost rank    1\n")
}
