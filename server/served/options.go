package served

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/stocached/stocached/shm"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/decode"
)

// Options are one cache of a server.
type Options struct {
	Name string // clients attach by this name
	// where samples come from: kind and the kind's own keys; also limits, retry and read_ahead of
	// package wrap
	Source source.Settings
	Decode map[string]any    // how to decode images, for package decode; nil: not at all
	Tiers  []source.Settings // between segment and source, from fast to slow: kind and its keys
	Size   uint64            // bytes that the segment never exceeds; it is no larger than every sample needs. 0: no other bound
	// Passing makes a segment with room for few samples, in place of Size: the server passes them on to programs, which
	// keep them.
	Passing bool
	Policy  shm.Policy // which samples it keeps
	// SideBuffer is the most bytes of samples without a slot that the server keeps for jobs that read them
	// soon, with the policy planned. 0: none. nil: a sixteenth of the payload, at most 64 MiB.
	SideBuffer *uint64
	Parallel   int    // reads at a time, at most 32. 0: 4; with Decode, decode.Readers
	Dir        string // an existing folder on a tmpfs. "": the folder of all caches
	// Unnamed makes a segment without a name in a folder. It ends with its last process, so it is
	// cold after a restart. Clients get it from the server; no process can truncate it.
	Unnamed bool
	Label   string // the name of the server among the clients; "": stocached serve
	// ReadTimeout is the longest time for the read of a sample, with its retries, its waits for
	// limits and its decoding. At least a second; the server checks it every second. 0: a minute.
	ReadTimeout time.Duration
	// RemoveUnused is how long the server keeps a cache without clients. Then it removes the
	// segment, and a cold one replaces it. 0: forever.
	RemoveUnused time.Duration
}

// maxParallel: the server is one client of the segment, and a client has so many claims at most.
const maxParallel = shm.ClaimsPerClient

// The default of SideBuffer.
const (
	sidePart = 16
	maxSide  = 64 << 20
)

// The room of a segment with Passing: slots, or bytes and the index of samples that differ in size.
const (
	passingSlots       = 4
	passingBytes       = 8 << 20
	passingSampleBytes = 32
)

const (
	defaultParallel    = 4
	defaultReadTimeout = time.Minute
)

// Check checks the options and fills in defaults. Errors: ErrInvalid.
func (o *Options) Check() error {
	if complaints := o.Complaints(); complaints != nil {
		return fmt.Errorf("%w: cache %s: %s", shm.ErrInvalid, o.Name, strings.Join(complaints, "; "))
	}
	if o.Parallel == 0 {
		if o.Parallel = defaultParallel; o.Decode != nil {
			o.Parallel = decode.Readers()
		}
	}
	o.ReadTimeout = cmp.Or(o.ReadTimeout, defaultReadTimeout)
	return nil
}

// Complaints says what is wrong with options that have no row in shm.OptionTable. Each begins with a key of the
// configuration.
func (o Options) Complaints() (all []string) {
	complain := func(format string, a ...any) { all = append(all, fmt.Sprintf(format, a...)) }
	if err := shm.CheckName(o.Name); err != nil {
		complain("name: %s", strings.TrimPrefix(err.Error(), shm.ErrInvalid.Error()+": "))
	}
	if o.Unnamed && o.Dir != "" {
		complain("unnamed: an unnamed segment is in no folder; leave out dir, or unnamed")
	}
	if o.Parallel < 0 || o.Parallel > maxParallel {
		complain("parallel: %d reads at a time are not in 1..%d", o.Parallel, maxParallel)
	}
	for _, one := range []struct {
		key  string
		time time.Duration
	}{{"read_timeout", o.ReadTimeout}, {"remove_unused", o.RemoveUnused}} {
		if one.time != 0 && one.time < time.Second {
			complain("%s: %v is less than 1s; leave it out for the default", one.key, one.time)
		}
	}
	return all
}

// sameData says whether both options give the same samples in the same segment.
func (o Options) sameData(other Options) bool {
	other.Parallel, other.ReadTimeout, other.RemoveUnused, other.SideBuffer =
		o.Parallel, o.ReadTimeout, o.RemoveUnused, o.SideBuffer
	return reflect.DeepEqual(o, other)
}

// typical returns the median length of some samples.
func typical(s source.Source, samples int) uint64 {
	const asked = 1000
	var lengths []int
	for k := range min(samples, asked) {
		if n, err := s.Size(k * max(samples/asked, 1)); err == nil {
			lengths = append(lengths, n)
		}
	}
	if len(lengths) == 0 {
		return 0
	}
	slices.Sort(lengths)
	return uint64(lengths[len(lengths)/2])
}

// segment returns the options of the segment for a source. A size that holds every sample gives the segment of the size
// all: more memory would stay empty.
func (o *Options) segment(s source.Source) (shm.Options, error) {
	info := s.Info()
	want := shm.Options{Name: o.Name, Dir: o.Dir, Samples: uint64(info.Samples),
		Fields: info.Schema.Fields, Variable: info.Schema.Variable, Policy: o.Policy,
		Fingerprint: info.Local(), Decode: info.Decode, Programs: info.Programs}
	if o.Unnamed {
		want.Name = ""
	}
	switch {
	case o.Passing && info.Schema.Variable:
		want.SampleBytes, want.Limit = info.Schema.SampleBytes, passingBytes+passingSampleBytes*uint64(info.Samples)
		return want, nil
	case o.Passing:
		want.Slots = min(passingSlots, uint64(info.Samples))
		return want, nil
	}
	if !info.Schema.Variable {
		if all, err := want.SegmentBytes(); err != nil || all > o.Size {
			want.Limit = o.Size // 0: every sample
		}
		return want, nil
	}
	if o.Policy == shm.PolicyFirstIndices {
		want.Policy = shm.PolicyFirstCome
	}
	want.SampleBytes, want.Limit = info.Schema.SampleBytes, o.Size
	if info.Programs {
		if o.Size == 0 {
			return want, fmt.Errorf("%w: size: give one; only programs know how many bytes the samples have", source.ErrInvalid)
		}
		return want, nil // nothing is known of the samples
	}
	lengths, err := o.lengths(s)
	if err != nil {
		return want, err
	}
	if lengths != nil {
		limit, slotBytes, err := shm.ArenaLimit(want.Policy, 0, lengths)
		if o.Size == 0 || err == nil && limit <= o.Size {
			want.Limit, want.SlotBytes = limit, slotBytes
			return want, err
		}
	}
	if want.Policy.Evicts() {
		want.SlotBytes = shm.SlotBytesFor(typical(s, info.Samples))
	}
	return want, nil
}

// lengths returns the length of each sample; nil if they are larger than the size of the cache together.
func (o *Options) lengths(s source.Source) ([]uint64, error) {
	var lengths []uint64
	total := uint64(0)
	for i := range s.Info().Samples {
		n, err := s.Size(i)
		if err != nil {
			return nil, fmt.Errorf("the size of the dataset: %w", err)
		}
		lengths = append(lengths, uint64(n))
		if total += uint64(n); o.Size != 0 && total > o.Size {
			return nil, nil
		}
	}
	return lengths, nil
}
