package cli

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/policy"
	"github.com/stocached/stocached/shm"
)

// inspected is a segment and its words.
type inspected struct {
	*shm.Segment
	name string
}

var headerColumns = table.Columns[inspected]{
	table.Listed("name", "name", "in the header; none: a memfd", func(s inspected) any { return s.Header.Name }),
	table.Listed("path", "path", "by which the command found it", func(s inspected) any { return s.name }),
	table.Listed("uuid", "uuid", "of the segment", func(s inspected) any { return fmt.Sprintf("%x", s.Header.UUID) }),
	table.Listed("layout", "layout", "version of the format",
		func(s inspected) any { return s.Header.Version }),
	table.Listed("created", "created", "when, in local time (JSON: UTC)",
		func(s inspected) any { return table.Moment(s.Header.Created) }),
	table.Listed("creator_uid", "creator uid", "user id of the creator, as its own namespace numbers it",
		func(s inspected) any { return s.Header.UID }),
	table.Listed("samples", "samples", "of the dataset", func(s inspected) any { return table.Count(s.Samples) }),
	table.Listed("slots", "slots", "samples that fit; in a variable-size cache none, or if it evicts parts of samples",
		func(s inspected) any {
			if s.Chains() {
				return table.Count(s.Slots)
			}
			return slots(&s.Geometry)
		}),
	table.Listed("sample_bytes", "sample bytes", "of a sample; the largest accepted in a variable-size cache",
		func(s inspected) any { return table.Count(s.Header.SampleBytes) }),
	table.Listed("slot_stride", "slot stride",
		"bytes from slot to slot; of a unit of the arena in a variable-size cache that does not evict",
		func(s inspected) any { return table.Count(s.SlotStride) }),
	table.Listed("client_records", "client records", "clients at a time",
		func(s inspected) any { return table.Count(s.ClientRecords) }),
	table.Listed("limit_bytes", "limit", "that the creator asked for; 0: none",
		func(s inspected) any { return table.Bytes(s.Header.Limit) }),
	table.Listed("variable", "variable", "samples differ in size", func(s inspected) any { return s.Variable() }),
	table.Listed("policy", "policy", "which samples stay: docs/spec/policies.md",
		func(s inspected) any { return s.Policy.String() }),
	table.Listed("unlink", "unlink", "never: it stays until it is removed; last: its last user removes it",
		func(s inspected) any { return unlinkOf(&s.Header) }),
	table.Listed("reserved", "reserved", "all its pages were allocated at creation",
		func(s inspected) any { return s.Header.Flags&shm.FlagReserved != 0 }),
	table.Listed("programs", "programs", "programs load the samples, and its server knows which other programs have",
		func(s inspected) any { return s.Header.Flags&shm.FlagPrograms != 0 }),
	table.Listed("fingerprint", "fingerprint", "of dataset and transform",
		func(s inspected) any { return s.Header.Fingerprint }),
	table.Listed("decode", "decode", "how clients make pictures of the files in the first field; none: samples are as they lie",
		func(s inspected) any { return s.Header.Decode }),
}

var fieldColumns = table.Columns[shm.Field]{
	table.Shown("name", "field", "of the field", func(f shm.Field) any { return f.Name }),
	table.Shown("dtype", "dtype", "type of its items", func(f shm.Field) any { return f.DType.String() }),
	table.Shown("shape", "shape", "its dimensions; ? (JSON: null) differs between samples; none: a single item",
		func(f shm.Field) any { return shape(f.Dims) }),
	table.Shown("offset", "offset", "of the field in a sample; 0 in a variable-size cache",
		func(f shm.Field) any { return table.Count(f.Offset) }),
	table.Shown("bytes", "bytes", "of the field; 0 in a variable-size cache",
		func(f shm.Field) any { return table.Count(f.Bytes) }),
}

// shape is the dimensions of a field.
type shape []uint64

func (s shape) String() string {
	if len(s) == 0 {
		return "-"
	}
	return formatShape(s)
}

func (s shape) MarshalJSON() ([]byte, error) {
	parts := make([]string, len(s))
	for k, d := range s {
		if parts[k] = strconv.FormatUint(d, 10); d == shm.VariableDim {
			parts[k] = "null"
		}
	}
	return []byte("[" + strings.Join(parts, ",") + "]"), nil
}

// region is a part of the file.
type region struct {
	name        string
	from, bytes uint64
}

var regionColumns = table.Columns[region]{
	table.Shown("name", "region", "of the file", func(r region) any { return r.name }),
	table.Shown("offset", "offset", "where it begins", func(r region) any { return table.Count(r.from) }),
	table.Shown("bytes", "bytes", "without the padding after it", func(r region) any { return table.Count(r.bytes) }),
}

func regions(g *shm.Geometry) []region {
	r := []region{
		{"header", 0, shm.HeaderBytes},
		{"control", shm.ControlOffset, shm.ControlBytes},
		{"client table", shm.ClientsOffset, uint64(g.ClientRecords) * shm.ClientRecordBytes},
		{"index", g.IndexOffset, g.Samples * shm.IndexRecordBytes},
	}
	if g.SumsOffset != 0 {
		r = append(r, region{"checksums", g.SumsOffset, g.Samples * shm.SumRecordBytes})
	}
	if g.LengthsOffset != 0 {
		r = append(r, region{"lengths", g.LengthsOffset, g.Samples * shm.LengthBytes})
	}
	if g.SlotTableOffset != 0 {
		r = append(r, region{"slot table", g.SlotTableOffset, g.Slots * shm.SlotRecordBytes})
	}
	if g.ReferenceOffset != 0 {
		r = append(r, region{"references", g.ReferenceOffset, g.Slots})
	}
	if g.GroupsOffset != 0 {
		r = append(r, region{"groups", g.GroupsOffset, g.Groups() * shm.GroupRecordBytes})
	}
	return append(r, region{"payload", g.PayloadOffset, g.PayloadBytes}, region{"file", 0, g.SegmentBytes})
}

var controlColumns = table.Columns[inspected]{
	table.Listed("phase", "phase", "OPEN, or CLEARING while a client empties the cache", func(s inspected) any {
		if s.phase().Clearing() {
			return "CLEARING"
		}
		return "OPEN"
	}),
	table.Listed("clearing_owner", "clearing owner", "owner number of the client that clears; 0: none",
		func(s inspected) any { return s.phase().Owner() }),
	table.Listed("clears", "clears", "that have ended",
		func(s inspected) any { return table.Count(s.phase().Epoch()) }),
	table.Listed("free_from", "free from", "the search for a free slot starts here; none without a slot table, and with groups",
		func(s inspected) any { return s.firstCome(s.freeFrom().From()) }),
	table.Listed("free_seq", "free seq", "slots freed so far, modulo 2^32",
		func(s inspected) any { return s.firstCome(s.freeFrom().Seq()) }),
	table.Listed("arena_next_unit", "arena next unit", "first unit of the arena that was never allocated",
		func(s inspected) any { return s.arena(table.Count(s.arenaNext().Unit())) }),
	table.Listed("arena_owner", "arena owner", "owner number of the client that allocated last",
		func(s inspected) any { return s.arena(s.arenaNext().Owner()) }),
	table.Listed("lengths", "lengths", "samples whose number of items is known; none if samples are no lists",
		func(s inspected) any { return s.lengths() }),
	table.Listed("clients_high", "clients high", "client records ever used",
		func(s inspected) any { return table.Count(s.ClientsHigh().Load()) }),
}

// lengths counts the lengths of lists that are known.
func (s inspected) lengths() any {
	if s.LengthsOffset == 0 {
		return nil
	}
	known := uint64(0)
	for i := range s.Samples {
		if n := s.Items(i).Load(); n != 0 && n <= shm.MaxItems+1 {
			known++
		}
	}
	return table.Count(known)
}

func (s inspected) phase() shm.Phase         { return shm.Phase(s.Phase().Load()) }
func (s inspected) freeFrom() shm.FreeFrom   { return shm.FreeFrom(s.FreeFrom().Load()) }
func (s inspected) arenaNext() shm.ArenaNext { return shm.ArenaNext(s.ArenaNext().Load()) }

func (s inspected) firstCome(v any) any {
	return table.If(s.HasSlotTable() && !s.Chains(), v)
}

func (s inspected) arena(v any) any {
	return table.If(s.Variable() && !s.Chains(), v)
}

// sample is one index record at one moment.
type sample struct {
	index   uint64
	state   cache.State
	word    shm.Word
	meta    shm.Meta
	layout  shm.WordLayout
	owner   any // bool: the owner lives; nil: it has no owner
	claimed table.List[uint32]
	seg     *shm.Segment
	rank    uint64 // rank of its cost, from 1 on; 0: its cost is unknown
	known   uint64 // costs of the cache
}

var sampleColumns = table.Columns[*sample]{
	table.Listed("index", "sample", "index of the sample", func(s *sample) any { return table.Count(s.index) }),
	table.Listed("state", "state", "EMPTY, WRITING (being filled), READY, OUT (it cannot have a slot), CORRUPT",
		func(s *sample) any { return s.state.String() }),
	table.Listed("owner", "owner",
		"WRITING: owner number of the client that fills it, or has died; else 0",
		func(s *sample) any { return s.word.Owner() }),
	table.Listed("owner_live", "owner live", "WRITING: that client lives; no: the next set reclaims the sample",
		func(s *sample) any { return s.owner }),
	table.Listed("claimed_by", "claimed by", "owner numbers of the clients whose records list a claim on it",
		func(s *sample) any { return s.claimed }),
	table.Listed("generation", "generation",
		"number of times it was emptied or overwritten, modulo the width of the field",
		func(s *sample) any { return s.layout.Generation(s.word) }),
	table.Listed("place", "place", "its slot; in a variable-size cache its first unit, or if it evicts the slot of its "+
		"last bytes; none: it has no place",
		func(s *sample) any { return s.place() }),
	table.Listed("places", "places", "all its slots, the first bytes first, in a variable-size cache that evicts",
		func(s *sample) any { return s.chain() }),
	table.Listed("file_offset", "file offset", "of the bytes at its place", func(s *sample) any { return s.fileOffset() }),
	table.Listed("length", "length", "bytes of the sample",
		func(s *sample) any { return s.ifReady(table.Count(s.seg.Length(s.meta))) }),
	table.Listed("crc32c", "crc32c", "checksum of its bytes, as stored (stocached verify compares)",
		func(s *sample) any { return s.ifReady(fmt.Sprintf("%08x", s.seg.Checksum(s.index, s.meta))) }),
	table.Listed("fills", "fills", "number of publishes, modulo 2^24",
		func(s *sample) any { return s.meta.Fills() }),
	table.Listed("cost_seconds", "cost", "what a load takes, as the policy cost has measured it; none: unknown, or its one load "+
		"took far longer than those of others",
		func(s *sample) any { return s.ifRanked(table.Duration(float64(s.cost().Nanoseconds()) / 1e9)) }),
	table.Listed("cost_is_average", "average", "the cost is an average of two loads or more",
		func(s *sample) any { return s.ifRanked(s.cost().Confirmed()) }),
	table.Listed("cost_rank", "cost rank", "its place among the known costs; 1: no sample costs more for each byte",
		func(s *sample) any { return s.ifRanked(table.Count(s.rank)) }),
	table.Listed("known_costs", "known costs", "samples of the cache whose cost is known",
		func(s *sample) any { return s.ifRanked(table.Count(s.known)) }),
	table.Listed("word", "word", "its index word",
		func(s *sample) any { return fmt.Sprintf("0x%016x", uint64(s.word)) }),
	table.Listed("meta", "meta", "its second index word: checksum (variable size: length), fills and cost",
		func(s *sample) any { return fmt.Sprintf("0x%016x", uint64(s.meta)) }),
}

func (s *sample) place() any {
	p := s.layout.Place(s.word)
	return table.If(p != 0, table.Count(p-1))
}

// chain lists the slots of a READY sample, as far as they are its own; nil in other caches.
func (s *sample) chain() any {
	if !s.seg.Chains() || s.state != cache.StateReady {
		return nil
	}
	all := table.List[uint64]{}
	for p := s.layout.Place(s.word); p != 0 && p <= s.seg.Slots && uint64(len(all)) < s.seg.Slots; {
		l := shm.Link(s.seg.SlotSample(p - 1).Load())
		if l.Sample() != s.index+1 {
			break
		}
		all = append(all, p-1)
		p = l.Next()
	}
	slices.Reverse(all)
	return all
}

func (s *sample) fileOffset() any {
	p := s.layout.Place(s.word)
	if p == 0 || p-1 > (math.MaxUint64-s.seg.PayloadOffset)/s.seg.SlotStride {
		return nil
	}
	return table.Count(s.seg.PayloadOffset + (p-1)*s.seg.SlotStride)
}

func (s *sample) ifReady(v any) any {
	return table.If(s.state == cache.StateReady, v)
}

func (s *sample) cost() cache.Cost { return cache.Cost(s.meta.Cost()) }

func (s *sample) ifRanked(v any) any {
	return table.If(s.rank != 0, v)
}

// rankCost compares the cost of a byte of the sample with all others.
func (s *sample) rankCost() {
	spread := policy.SpreadOf(s.seg.Spread().Load())
	density := func(m shm.Meta) (d int, known bool) {
		c := policy.Candidate{Cost: policy.Cost(m.Cost()), Size: s.seg.Length(m)}
		return c.Density(spread), c.Cost.Believed(spread) != 0 && c.Size > 0
	}
	own, known := density(s.meta)
	if !known {
		return
	}
	s.rank = 1
	for i := range s.seg.Samples {
		m := shm.Meta(s.seg.Meta(i).Load())
		if policy.Cost(m.Cost()).Believed(spread) != 0 {
			s.known++
		}
		if other, known := density(m); known && other > own {
			s.rank++
		}
	}
}

func newInspect() *cobra.Command {
	var dir dirFlag
	var asJSON bool
	c := &cobra.Command{
		Use:   "inspect NAME [INDEX]",
		Short: "Show the header, schema, geometry and clients of a cache, or one sample's state",
		Long: paragraphs(`Shows the words of a cache's segment, without being its client; with INDEX, only those of that sample.
docs/spec/segment.md explains the words. With --json: one object of header, fields, regions, control and
clients; with INDEX the object of the sample.`,
			headerColumns.Explain("HEADER (header)"),
			fieldColumns.Explain("SCHEMA (fields)"),
			regionColumns.Explain("GEOMETRY (regions)"),
			controlColumns.Explain("CONTROL (control)"),
			clientColumns.Explain("CLIENTS (clients), past ones included"),
			sampleColumns.Explain("SAMPLE, with INDEX"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission, exitVersion)),
		Args:              arguments(1, 2, "the name of a cache, and perhaps the index of a sample"),
		ValidArgsFunction: dir.complete(1, true),
		RunE: func(c *cobra.Command, args []string) error {
			return dir.with(args[0], func(seg *shm.Segment, reader *cache.Cache) error {
				if len(args) == 1 {
					return inspect(seg, reader, args[0], asJSON, c.OutOrStdout())
				}
				index, err := strconv.ParseInt(args[1], 10, 64)
				if err != nil {
					return usage("index %q is not a whole number; the cache has samples 0 to %d", args[1], seg.Samples-1)
				}
				s, err := indexRecordOf(seg, reader, int(index))
				if err != nil {
					return err
				}
				s.rankCost()
				return sampleColumns.One(c.OutOrStdout(), s, asJSON)
			})
		},
	}
	dir.add(c)
	jsonFlag(c, &asJSON)
	return c
}

func inspect(seg *shm.Segment, reader *cache.Cache, name string, asJSON bool, stdout io.Writer) error {
	clients, err := clientsOf(seg, reader)
	if err != nil {
		return err
	}
	s := inspected{seg, cmp.Or(seg.Path(), name)}
	if asJSON {
		var o table.Object
		o.Add("header", headerColumns.Object(s))
		o.Add("fields", fieldColumns.Objects(seg.Header.Fields))
		o.Add("regions", regionColumns.Objects(regions(&seg.Geometry)))
		o.Add("control", controlColumns.Object(s))
		o.Add("clients", clientColumns.Objects(clients))
		return table.WriteJSON(stdout, o)
	}
	for _, part := range []struct {
		heading string
		write   func(io.Writer) error
	}{
		{"header", func(w io.Writer) error { return headerColumns.List(w, s) }},
		{"schema", func(w io.Writer) error { return fieldColumns.Table(w, seg.Header.Fields) }},
		{"geometry", func(w io.Writer) error { return regionColumns.Table(w, regions(&seg.Geometry)) }},
		{"control", func(w io.Writer) error { return controlColumns.List(w, s) }},
		{"clients", func(w io.Writer) error { return clientColumns.Table(w, clients) }},
	} {
		if part.heading != "header" {
			fmt.Fprintln(stdout)
		}
		fmt.Fprintf(stdout, "%s\n", strings.ToUpper(part.heading))
		if err := part.write(stdout); err != nil {
			return err
		}
	}
	if len(clients) == 0 {
		fmt.Fprintln(stdout, "none so far")
	}
	return nil
}

// indexRecordOf reads one sample's index record.
func indexRecordOf(seg *shm.Segment, reader *cache.Cache, index int) (*sample, error) {
	state, err := reader.State(index)
	if err != nil {
		return nil, err
	}
	s := &sample{index: uint64(index), state: state, layout: seg.WordLayout(), seg: seg}
	// The two words match if neither has changed between the loads. If other processes keep changing them,
	// take the last pair.
	for range 100 {
		s.word, s.meta = shm.Word(seg.Word(s.index).Load()), shm.Meta(seg.Meta(s.index).Load())
		if seg.Word(s.index).Load() == uint64(s.word) && seg.Meta(s.index).Load() == uint64(s.meta) {
			break
		}
	}
	if state != cache.StateOut {
		s.state = stateOf(s.word)
	}
	clients, err := reader.Clients()
	if err != nil {
		return nil, err
	}
	for _, c := range clients {
		if s.state == cache.StateWriting && c.Record+1 == s.word.Owner() {
			s.owner = c.Live
		}
		for e := range shm.ClaimsPerClient {
			if entry, _ := seg.Claim(c.Record, e); entry.Load() == s.index+1 {
				s.claimed = append(s.claimed, c.Record+1)
				break
			}
		}
	}
	return s, nil
}

func stateOf(w shm.Word) cache.State {
	switch w.State() {
	case shm.Empty:
		return cache.StateEmpty
	case shm.Writing:
		return cache.StateWriting
	case shm.Ready:
		return cache.StateReady
	}
	return cache.StateCorrupt
}
