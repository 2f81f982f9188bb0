package cli

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// inspected is a segment and what its words say.
type inspected struct {
	*shm.Segment
	name string
}

var headerColumns = columns[inspected]{
	{"name", "name", true, "in the header; none: a memfd", func(s inspected) any { return s.Header.Name }},
	{"path", "path", true, "that it was found by", func(s inspected) any { return s.name }},
	{"uuid", "uuid", true, "of the segment", func(s inspected) any { return fmt.Sprintf("%x", s.Header.UUID) }},
	{"layout", "layout", true, "version of the format, major.minor",
		func(s inspected) any { return fmt.Sprintf("%d.%d", s.Header.Major, s.Header.Minor) }},
	{"created", "created", true, "when, in local time (JSON: UTC)", func(s inspected) any { return moment(s.Header.Created) }},
	{"creator_uid", "creator uid", true, "user id of the creator, as its own namespace numbers it", func(s inspected) any { return s.Header.UID }},
	{"samples", "samples", true, "of the dataset", func(s inspected) any { return count(s.Samples) }},
	{"slots", "slots", true, "samples that have room; none in a variable-size cache", func(s inspected) any { return slots(&s.Geometry) }},
	{"sample_bytes", "sample bytes", true, "of a sample; the largest accepted in a variable-size cache",
		func(s inspected) any { return count(s.Header.SampleBytes) }},
	{"slot_stride", "slot stride", true, "bytes from slot to slot; of a unit of the arena in a variable-size cache",
		func(s inspected) any { return count(s.SlotStride) }},
	{"client_records", "client records", true, "clients at a time", func(s inspected) any { return count(s.ClientRecords) }},
	{"limit_bytes", "limit", true, "that the creator asked for; 0: none", func(s inspected) any { return byteCount(s.Header.Limit) }},
	{"variable", "variable", true, "samples differ in size", func(s inspected) any { return s.Variable() }},
	{"assign", "assign", true, "how samples get slots: first-come or first-indices", func(s inspected) any { return s.Policy.String() }},
	{"unlink", "unlink", true, "never: it stays until it is removed; last: it goes with its last user",
		func(s inspected) any { return unlinkOf(&s.Header) }},
	{"reserved", "reserved", true, "all its pages were taken at creation", func(s inspected) any { return s.Header.Flags&shm.FlagReserved != 0 }},
	{"fingerprint", "fingerprint", true, "of dataset and transform", func(s inspected) any { return s.Header.Fingerprint }},
}

var fieldColumns = columns[shm.Field]{
	{"name", "field", false, "of the field", func(f shm.Field) any { return f.Name }},
	{"dtype", "dtype", false, "type of its items", func(f shm.Field) any { return f.DType.String() }},
	{"shape", "shape", false, "its dimensions; ? (JSON: null) differs between samples; none: a single item",
		func(f shm.Field) any { return shape(f.Dims) }},
	{"offset", "offset", false, "of the field in a sample; 0 in a variable-size cache", func(f shm.Field) any { return count(f.Offset) }},
	{"bytes", "bytes", false, "of the field; 0 in a variable-size cache", func(f shm.Field) any { return count(f.Bytes) }},
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

var regionColumns = columns[region]{
	{"name", "region", false, "of the file", func(r region) any { return r.name }},
	{"offset", "offset", false, "where it begins", func(r region) any { return count(r.from) }},
	{"bytes", "bytes", false, "without the padding behind it", func(r region) any { return count(r.bytes) }},
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
	if g.SlotTableOffset != 0 {
		r = append(r, region{"slot table", g.SlotTableOffset, g.Slots * shm.SlotRecordBytes})
	}
	return append(r, region{"payload", g.PayloadOffset, g.PayloadBytes}, region{"file", 0, g.SegmentBytes})
}

var controlColumns = columns[inspected]{
	{"phase", "phase", true, "OPEN, or CLEARING while somebody empties the cache", func(s inspected) any {
		if s.phase().Clearing() {
			return "CLEARING"
		}
		return "OPEN"
	}},
	{"clearing_owner", "clearing owner", true, "owner number of the client that clears; 0: nobody", func(s inspected) any { return s.phase().Owner() }},
	{"clears", "clears", true, "that have ended", func(s inspected) any { return count(s.phase().Epoch()) }},
	{"free_from", "free from", true, "slots below it were seen taken; none without a slot table",
		func(s inspected) any { return s.firstCome(s.freeFrom().From()) }},
	{"free_seq", "free seq", true, "slots freed so far, modulo 2^32", func(s inspected) any { return s.firstCome(s.freeFrom().Seq()) }},
	{"arena_next_unit", "arena next unit", true, "first unit of the arena that was never allocated",
		func(s inspected) any { return s.arena(count(s.arenaNext().Unit())) }},
	{"arena_owner", "arena owner", true, "owner number of the client that allocated last",
		func(s inspected) any { return s.arena(s.arenaNext().Owner()) }},
	{"clients_high", "clients high", true, "client records ever used", func(s inspected) any { return count(s.ClientsHigh().Load()) }},
}

func (s inspected) phase() shm.Phase         { return shm.Phase(s.Phase().Load()) }
func (s inspected) freeFrom() shm.FreeFrom   { return shm.FreeFrom(s.FreeFrom().Load()) }
func (s inspected) arenaNext() shm.ArenaNext { return shm.ArenaNext(s.ArenaNext().Load()) }

func (s inspected) firstCome(v any) any {
	if !s.FirstCome() {
		return nil
	}
	return v
}

func (s inspected) arena(v any) any {
	if !s.Variable() {
		return nil
	}
	return v
}

// client is a record of the client table.
type client struct {
	cache.ClientInfo
	seg *shm.Segment
}

var clientColumns = columns[client]{
	{"owner", "owner", false, "owner number: record + 1", func(c client) any { return c.Record + 1 }},
	{"live", "live", false, "the kernel says that the client lives", func(c client) any { return c.Live }},
	{"pid", "pid", false, "of the client or of the last one, as its own pid namespace shows it; 0 after a clean close",
		func(c client) any { return c.PID }},
	{"other_pid_namespace", "", false, "pid belongs to another pid namespace than this command's",
		func(c client) any { return c.PIDNamespace != 0 && c.PIDNamespace != pidNamespace() }},
	{"kind", "kind", false, "go, c, python or server", func(c client) any { return kindName(c.Kind) }},
	{"label", "label", false, "name of the program", func(c client) any { return c.Label }},
	{"registered", "registered", false, "when, in local time (JSON: UTC)", func(c client) any { return moment(c.Registered) }},
	{"registrations", "registrations", false, "clients that have had this record so far", func(c client) any { return count(c.Registrations) }},
	{"claims", "claims", false, "samples that it is filling; of a dead client: that wait to be taken back", func(c client) any { return c.Claims }},
	{"hits", "hits", false, "of all clients that have had this record", func(c client) any { return c.counter(shm.Hits) }},
	{"misses", "misses", false, "likewise", func(c client) any { return c.counter(shm.Misses) }},
	{"stored", "sets", false, "likewise: samples stored", func(c client) any { return c.counter(shm.Stored) }},
}

func kindName(kind uint32) any {
	if name, ok := clientKinds[kind]; ok {
		return name
	}
	return fmt.Sprintf("kind %d", kind)
}

func (c client) counter(k shm.Counter) count {
	var sum uint64
	for stripe := range shm.CounterStripes {
		sum += c.seg.Counter(c.Record, stripe, k).Load()
	}
	return count(sum)
}

// sample is one index record, as it was at one moment.
type sample struct {
	index   uint64
	state   cache.State
	word    shm.Word
	meta    shm.Meta
	layout  shm.WordLayout
	owner   any // bool: the owner lives; nil: nobody owns it
	claimed list[uint32]
	seg     *shm.Segment
}

var sampleColumns = columns[*sample]{
	{"index", "sample", true, "index of the sample", func(s *sample) any { return count(s.index) }},
	{"state", "state", true, "EMPTY, WRITING (being filled), READY, OUT (it can have no slot), CORRUPT",
		func(s *sample) any { return s.state.String() }},
	{"owner", "owner", true, "WRITING: owner number of the client that fills it, or died doing so; else 0, nobody",
		func(s *sample) any { return s.word.Owner() }},
	{"owner_live", "owner live", true, "WRITING: that client lives; no: the next set takes the claim back", func(s *sample) any { return s.owner }},
	{"claimed_by", "claimed by", true, "owner numbers of the clients whose records list a claim of it", func(s *sample) any { return s.claimed }},
	{"generation", "generation", true, "how often it was emptied or overwritten, modulo the width of the field",
		func(s *sample) any { return s.layout.Generation(s.word) }},
	{"place", "place", true, "its slot; in a variable-size cache its first unit; none: it has none", func(s *sample) any { return s.place() }},
	{"file_offset", "file offset", true, "of its bytes", func(s *sample) any { return s.fileOffset() }},
	{"length", "length", true, "bytes of the sample", func(s *sample) any { return s.ifReady(count(s.seg.Length(s.meta))) }},
	{"crc32c", "crc32c", true, "checksum of its bytes, as stored (stocached verify compares)",
		func(s *sample) any { return s.ifReady(fmt.Sprintf("%08x", s.seg.Checksum(s.index, s.meta))) }},
	{"fills", "fills", true, "how often it was published, modulo 2^24", func(s *sample) any { return s.meta.Fills() }},
	{"word", "word", true, "its index word", func(s *sample) any { return fmt.Sprintf("0x%016x", uint64(s.word)) }},
	{"meta", "meta", true, "its second index word: checksum (variable size: length), and fills", func(s *sample) any { return fmt.Sprintf("0x%016x", uint64(s.meta)) }},
}

func (s *sample) place() any {
	if p := s.layout.Place(s.word); p != 0 {
		return count(p - 1)
	}
	return nil
}

func (s *sample) fileOffset() any {
	p := s.layout.Place(s.word)
	if p == 0 || p-1 > (math.MaxUint64-s.seg.PayloadOffset)/s.seg.SlotStride {
		return nil
	}
	return count(s.seg.PayloadOffset + (p-1)*s.seg.SlotStride)
}

func (s *sample) ifReady(v any) any {
	if s.state != cache.StateReady {
		return nil
	}
	return v
}

func newInspect() *cobra.Command {
	var dir dirFlag
	var asJSON bool
	c := &cobra.Command{
		Use:   "inspect NAME [INDEX]",
		Short: "Show a cache's header, schema, geometry and clients, or one sample's state",
		Long: paragraphs(`Shows what the segment of a cache says, without being its client; with INDEX, what it says about that sample alone.
docs/segment.md explains the words. With --json: one object of header, fields, regions, control and clients; with INDEX
the object of the sample.`,
			headerColumns.explain("HEADER (header)"),
			fieldColumns.explain("SCHEMA (fields)"),
			regionColumns.explain("GEOMETRY (regions)"),
			controlColumns.explain("CONTROL (control)"),
			clientColumns.explain("CLIENTS (clients), those that ever were"),
			sampleColumns.explain("SAMPLE, with INDEX"),
			exitStatus(exitNotFound, exitCorrupt, exitPermission, exitVersion)),
		Args:              arguments(1, 2, "the name of a cache, and perhaps the index of a sample"),
		ValidArgsFunction: dir.complete(1, true),
		RunE: func(c *cobra.Command, args []string) error {
			seg, err := dir.open(args[0])
			if err != nil {
				return err
			}
			defer seg.Close()
			reader, err := attach(seg)
			if err != nil {
				return err
			}
			defer reader.Close()
			if len(args) == 1 {
				return inspect(seg, reader, args[0], asJSON, c.OutOrStdout())
			}
			index, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return usage("index %q is not a whole number; the cache has samples 0 to %d", args[1], seg.Samples-1)
			}
			s, err := look(seg, reader, int(index))
			if err != nil {
				return err
			}
			return sampleColumns.one(c.OutOrStdout(), s, asJSON)
		},
	}
	dir.add(c)
	jsonFlag(c, &asJSON)
	return c
}

func inspect(seg *shm.Segment, reader *cache.Cache, name string, asJSON bool, stdout io.Writer) error {
	infos, err := reader.Clients()
	if err != nil {
		return err
	}
	clients := make([]client, len(infos))
	for k, info := range infos {
		clients[k] = client{info, seg}
	}
	if seg.Path() != "" {
		name = seg.Path()
	}
	s := inspected{seg, name}
	if asJSON {
		var o object
		o.add("header", headerColumns.object(s))
		o.add("fields", fieldColumns.objects(seg.Header.Fields))
		o.add("regions", regionColumns.objects(regions(&seg.Geometry)))
		o.add("control", controlColumns.object(s))
		o.add("clients", clientColumns.objects(clients))
		return writeJSON(stdout, o)
	}
	for _, part := range []struct {
		heading string
		write   func(io.Writer) error
	}{
		{"header", func(w io.Writer) error { return headerColumns.list(w, s) }},
		{"schema", func(w io.Writer) error { return fieldColumns.table(w, seg.Header.Fields) }},
		{"geometry", func(w io.Writer) error { return regionColumns.table(w, regions(&seg.Geometry)) }},
		{"control", func(w io.Writer) error { return controlColumns.list(w, s) }},
		{"clients", func(w io.Writer) error { return clientColumns.table(w, clients) }},
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

// look reads one sample's index record.
func look(seg *shm.Segment, reader *cache.Cache, index int) (*sample, error) {
	state, err := reader.State(index)
	if err != nil {
		return nil, err
	}
	s := &sample{index: uint64(index), state: state, layout: seg.WordLayout(), seg: seg}
	// The two words belong together when neither has changed meanwhile; while somebody keeps changing them, the last look is as good as any.
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
