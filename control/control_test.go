package control_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
)

// every is a frame of each type, and its parsed form.
var every = []struct {
	frame []byte
	parse func(body []byte) (any, error)
	want  any
}{
	{control.AppendHello(nil, 1, control.HelloBody{Version: 1, Kind: 3, Label: "train.py"}),
		func(b []byte) (any, error) { return control.ParseHello(b) },
		control.HelloBody{Version: 1, Kind: 3, Label: "train.py"}},
	{control.AppendWelcome(nil, 2, control.WelcomeBody{Version: 1, MaxIndices: 100, Boot: [16]byte{7}}),
		func(b []byte) (any, error) { return control.ParseWelcome(b) },
		control.WelcomeBody{Version: 1, MaxIndices: 100, Boot: [16]byte{7}}},
	{control.AppendAttach(nil, 3, "pets"), func(b []byte) (any, error) { return control.ParseAttach(b) }, "pets"},
	{control.AppendAttached(nil, 4, control.AttachedBody{Cache: 5, UUID: [16]byte{9}}),
		func(b []byte) (any, error) { return control.ParseAttached(b) },
		control.AttachedBody{Cache: 5, UUID: [16]byte{9}}},
	{control.AppendFetch(nil, control.Fetch, 5,
		control.FetchBody{Cache: 5, Flags: control.SlotsOnly, Indices: []int64{3, -1, 1 << 40}}),
		func(b []byte) (any, error) { return control.ParseFetch(control.Fetch, b) },
		control.FetchBody{Cache: 5, Flags: 1, Indices: []int64{3, -1, 1 << 40}}},
	{append(control.AppendSampleHeader(nil, 6, 12, 3), "abc"...),
		func(b []byte) (any, error) { return control.ParseSample(b) }, uint32(12)},
	{control.AppendFetched(nil, 7, []control.Failure{{1, control.CodeRead, "disk on fire"}, {0, control.CodeIndex, ""}}),
		func(b []byte) (any, error) { return control.ParseFetched(b, 2) },
		[]control.Failure{{1, control.CodeRead, "disk on fire"}, {0, control.CodeIndex, ""}}},
	{control.AppendFetch(nil, control.Prefetch, 8, control.FetchBody{Cache: 5, Indices: []int64{3}}),
		func(b []byte) (any, error) { return control.ParseFetch(control.Prefetch, b) },
		control.FetchBody{Cache: 5, Indices: []int64{3}}},
	{control.AppendPrefetched(nil, 9, 77), func(b []byte) (any, error) { return control.ParsePrefetched(b) }, 77},
	{control.AppendCancel(nil, 10), func(b []byte) (any, error) { return len(b), nil }, 0},
	{control.AppendError(nil, 11, control.CodeLimit, "too much"),
		func(b []byte) (any, error) { return control.ParseError(b) },
		&control.RemoteError{Code: control.CodeLimit, Text: "too much"}},
	{control.AppendAnnounce(nil, 12, announced), func(b []byte) (any, error) { return control.ParseAnnounce(b) }, announced},
	{control.AppendAnnounced(nil, 13, true), func(b []byte) (any, error) { return control.ParseAnnounced(b) }, true},
	{control.AppendOffer(nil, 14, control.OfferBody{Cache: 1, Index: 1 << 40, Sample: []byte("abc")}),
		func(b []byte) (any, error) { return control.ParseOffer(b) },
		control.OfferBody{Cache: 1, Index: 1 << 40, Sample: []byte("abc")}},
	{control.AppendOffered(nil, 15, true), func(b []byte) (any, error) { return control.ParseOffered(b) }, true},
}

// announced has another value in each field.
var announced = control.AnnounceBody{Cache: 1, Owner: 2, Kind: 3, Ends: 4, Seed: 5, Window: 6, Block: 7, Epoch: 8,
	Position: 9, Rank: 10, Ranks: 11, Samples: 12, Reads: 13, Batch: 14, Flags: control.Withdraw}

func TestRoundTrip(t *testing.T) {
	for k, c := range every {
		want := control.Type(k + 1)
		r := bytes.NewReader(c.frame)
		h, err := control.ReadHeader(r, want.FromClient())
		if err != nil || h.Type != want || h.Request != uint64(k+1) || int(h.Length) != r.Len() {
			t.Errorf("%v: header %+v of %d bytes, %v", want, h, r.Len(), err)
			continue
		}
		body, _ := io.ReadAll(r)
		if got, err := c.parse(body); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: %+v, %v; want %+v", want, got, err, c.want)
		}
		if _, err := control.ReadHeader(bytes.NewReader(c.frame), !want.FromClient()); !errors.Is(err, control.ErrProtocol) {
			t.Errorf("%v from the wrong side: %v", want, err)
		}
	}
}

// A body that is cut or has a byte too many is refused, unless its end is text or a sample.
func TestWrongLengths(t *testing.T) {
	open := map[control.Type]bool{control.Hello: true, control.Attach: true, control.Sample: true, control.Error: true,
		control.Cancel: true, control.Offer: true}
	for k, c := range every {
		name := control.Type(k + 1)
		body := c.frame[control.HeaderBytes:]
		if open[name] {
			continue
		}
		for n := range body {
			if got, err := c.parse(body[:n]); !errors.Is(err, control.ErrProtocol) && (name != control.Fetch || n != 16 && n != 24) {
				t.Errorf("%v cut to %d of %d bytes: %+v, %v", name, n, len(body), got, err)
			}
		}
		if got, err := c.parse(append(bytes.Clone(body), 0)); !errors.Is(err, control.ErrProtocol) {
			t.Errorf("%v with a byte after it: %+v, %v", name, got, err)
		}
	}
}

func TestHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		header     control.Header
		fromClient bool
		want       string // "": good
	}{
		"largest fetch": {control.Header{Length: control.MaxClientBody, Type: control.Fetch}, true, ""},
		"too long": {control.Header{Length: control.MaxClientBody + 1, Type: control.Fetch}, true,
			"at most 1048576"},
		"largest sample": {control.Header{Length: 1<<32 - 1, Type: control.Sample}, false, ""},
		"largest offer":  {control.Header{Length: 1<<32 - 1, Type: control.Offer}, true, ""},
		"too long an answer": {control.Header{Length: control.MaxServerBody + 1, Type: control.Fetched}, false,
			"at most 4194304"},
		"no type":      {control.Header{}, true, "type 0"},
		"unknown type": {control.Header{Type: 16}, true, "type 16"},
	} {
		_, err := control.ReadHeader(bytes.NewReader(control.AppendHeader(nil, c.header)), c.fromClient)
		if c.want == "" && err != nil || c.want != "" &&
			(!errors.Is(err, control.ErrProtocol) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for flags, good := range map[uint32]bool{control.Loads: true, control.Loads | control.Send: true,
		control.Loads | control.Unstored: true, control.Loads | control.SlotsOnly: false, control.File: true, control.File | control.Loads: false, 32: false} {
		body := control.AppendFetch(nil, control.Fetch, 1, control.FetchBody{Flags: flags, Indices: []int64{1}})
		if _, err := control.ParseFetch(control.Fetch, body[control.HeaderBytes:]); (err == nil) != good {
			t.Errorf("flags %d: %v", flags, err)
		}
	}
	failed := control.AppendOffer(nil, 1, control.OfferBody{Flags: control.Failed, Sample: []byte("a")})
	expect.Fails(control.ParseOffer(failed[control.HeaderBytes:]))(t, control.ErrProtocol)
	for n, good := range map[int]bool{0: true, control.MaxText: true, control.MaxText + 1: false} {
		damaged := control.AppendOffer(nil, 1, control.OfferBody{Flags: control.Damaged, Sample: make([]byte, n)})
		if _, err := control.ParseOffer(damaged[control.HeaderBytes:]); (err == nil) != good {
			t.Errorf("a reason of %d bytes: %v", n, err)
		}
	}
	expect.Fails(control.ParseOffer(make([]byte, 15)))(t, control.ErrProtocol)
	reserved := control.AppendHeader(nil, control.Header{Type: control.Fetch})
	reserved[6] = 1
	expect.Fails(control.ReadHeader(bytes.NewReader(reserved), true))(t, control.ErrProtocol)
}

// For any number of failed samples, the answer fits its limit and names each.
func TestManyFailures(t *testing.T) {
	failures := make([]control.Failure, control.MaxIndices)
	for k := range failures {
		failures[k] = control.Failure{Position: uint32(k), Code: control.CodeRead, Text: strings.Repeat("x", 2000)}
	}
	frame := control.AppendFetched(nil, 1, failures)
	got, err := control.ParseFetched(frame[control.HeaderBytes:], len(failures))
	if err != nil || len(got) != len(failures) || len(frame) > control.HeaderBytes+control.MaxServerBody {
		t.Fatalf("%d failures in %d bytes, %v", len(got), len(frame), err)
	}
	if len(got[0].Text) != control.MaxText || got[len(got)-1].Text != "" {
		t.Errorf("texts of %d and %d bytes", len(got[0].Text), len(got[len(got)-1].Text))
	}
}

// Text from another program cannot control a terminal.
func TestTextIsMadePrintable(t *testing.T) {
	e, err := control.ParseError(control.AppendError(nil, 1, control.CodeRead, "a\x1b[2Jb\xffc\nd\u009b2Je")[control.HeaderBytes:])
	if err != nil || e.Text != "a\ufffd[2Jb\ufffdc\ufffdd\ufffd2Je" {
		t.Errorf("%q, %v", e.Text, err)
	}
}

func TestSocketsDir(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	t.Setenv(control.SocketsVariable, "")
	expect.Equal(t, control.SocketsDir(), "/run/user/7/stocached", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	expect.Equal(t, control.SocketsDir(), fmt.Sprintf("/tmp/stocached-%d", os.Getuid()), "")
	t.Setenv(control.SocketsVariable, "/elsewhere")
	expect.Equal(t, control.SocketsDir(), "/elsewhere", "")
}

// Types, codes and limits in docs/spec/control.md are those of this package.
func TestDocument(t *testing.T) {
	text := fatal.Value(os.ReadFile(filepath.Join("..", "docs", "spec", "control.md")))(t)
	types, codes, _ := strings.Cut(string(text), "## Codes")
	row := regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Z_]+) \|`)
	found := regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Z_]+) \| (client|server) \|`).FindAllStringSubmatch(types, -1)
	expect.Equal(t, len(found), len(every), "types in the document and the code")
	for k, m := range found {
		name := control.Type(k + 1)
		if m[1] != fmt.Sprint(k+1) || m[2] != name.String() || (m[3] == "client") != name.FromClient() {
			t.Errorf("the document has %q, the code %d %v", m[0], k+1, name)
		}
	}
	found = row.FindAllStringSubmatch(codes, -1)
	expect.Equal(t, len(found), int(control.CodeKind), "codes in the document and the code")
	for k, m := range found {
		if code := control.Code(k + 1); m[1] != fmt.Sprint(k+1) || m[2] != code.String() {
			t.Errorf("the document has %q, the code %d %v", m[0], k+1, code)
		}
	}
	for _, number := range []string{"65,536", "at most 1 MiB", "at most 4 MiB", "64 requests", "262,144 indices",
		"64 MiB of SAMPLE"} {
		expect.Says(t, string(text), number)
	}
}

// FuzzFrames: any input causes no panic and only ErrProtocol, and an accepted frame is the same
// when it is encoded again.
func FuzzFrames(f *testing.F) {
	for _, c := range every {
		f.Add(c.frame)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, fromClient := range []bool{true, false} {
			h, err := control.ReadHeader(bytes.NewReader(data), fromClient)
			if err != nil {
				continue
			}
			body := data[control.HeaderBytes:]
			if uint64(h.Length) < uint64(len(body)) {
				body = body[:h.Length]
			}
			got, err := every[h.Type-1].parse(body)
			if err != nil {
				if !errors.Is(err, control.ErrProtocol) {
					t.Fatal(err)
				}
				continue
			}
			var again []byte
			switch m := got.(type) {
			case control.WelcomeBody:
				again = control.AppendWelcome(nil, h.Request, m)
			case control.AttachedBody:
				again = control.AppendAttached(nil, h.Request, m)
			case control.FetchBody:
				again = control.AppendFetch(nil, h.Type, h.Request, m)
			default:
				continue // text becomes printable
			}
			if !bytes.Equal(again[control.HeaderBytes:], body) {
				t.Fatalf("%v: %x, made again %x", h.Type, body, again[control.HeaderBytes:])
			}
		}
	})
}
