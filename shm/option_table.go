package shm

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unicode/utf8"
)

//go:generate go run ../internal/optiontable

// Option is a row of OptionTable: an option of a cache.
type Option struct {
	// Name is its name in errors and documents. It is Python's keyword and, with - for _, the flag of
	// stocached create.
	Name   string
	Go, C  string // field of Options, and member of struct stoc_options; C "": only Go has it
	Number Range  // of the values that a number takes
	Size   bool   // a number of bytes: its flag takes units
	Bytes  int    // the most of a text
	Doc    string // one sentence, without its full stop
	// Default says what an option that is left out means. "": it is needed.
	Default string
	// Advice is the next step after a value that it does not take. "": leave it out for the default.
	Advice string
}

// Range of a number. 0 is the default too, if there is one. Most 0: Create checks the value otherwise.
type Range struct {
	Least, Most uint64
	Power       bool // only powers of two
}

// OptionTable has all options of a cache, in the order in which they are checked. Go, and with it the
// flags of stocached create, reads it at run time. go generate writes what C and Python read, and the
// documents. Rules over several options stand in Options.validate and in C's options.c.
var OptionTable = []Option{
	{Name: "samples", Go: "Samples", C: "samples", Number: Range{Least: 1, Most: MaxSamples},
		Doc:    "number of samples of the dataset, cached or not",
		Advice: "give the number of samples of the dataset"},
	{Name: "size", Go: "Limit", C: "limit_bytes", Size: true,
		Number:  Range{Least: 1, Most: math.MaxInt64},
		Doc:     "the most bytes of the whole cache, such as 8GiB or 500MB",
		Default: "room for every sample; variable needs a size"},
	{Name: "slots", Go: "Slots", C: "slots", Number: Range{Least: 1, Most: MaxSlots},
		Doc:     "exact number of slots; each has room for one sample",
		Default: "as many as size holds"},
	{Name: "fields", Go: "Fields", C: "fields",
		Doc:     "the arrays of a sample, each with a name, a type and a shape",
		Default: "one array of sample_bytes bytes"},
	{Name: "sample_bytes", Go: "SampleBytes", C: "sample_bytes", Size: true,
		Number:  Range{Least: 1, Most: MaxSampleBytes},
		Doc:     "bytes of a sample without fields; with variable the most that a sample may have",
		Default: "the bytes of the fields; with variable 4 GiB - 1"},
	{Name: "variable", Go: "Variable", C: "variable", Number: Range{Most: 1},
		Doc:     "samples differ in size, and dimensions of fields may; needs size",
		Default: "samples of one size"},
	{Name: "policy", Go: "Policy", C: "policy", Number: Range{Most: uint64(PolicyPlanned)},
		Doc: "which samples stay. first-come: any sample stored while there is space. first-indices: " +
			"sample i below the number of slots has slot i, the others have none; not with variable. In a " +
			"full cache the others give the space of one sample to another: cost keeps the samples that " +
			"take longest to load (with variable: for their bytes), lru, lfu, clock, fifo, random; planned " +
			"only in a cache of a server",
		Default: "first-come"},
	{Name: "slot_bytes", Go: "SlotBytes", C: "slot_bytes", Size: true,
		Number: Range{Least: UnitBytes, Most: MaxChainStride, Power: true},
		Doc: "bytes of a slot, with variable and a policy that evicts; a sample takes several, so best a " +
			"sixteenth of a typical sample",
		Default: "a size that follows from size and samples"},
	{Name: "reserve", Go: "Reserve", C: "reserve", Number: Range{Most: 1},
		Doc:     "takes all memory now, so that no set fails later for lack of it",
		Default: "memory as samples come"},
	{Name: "unlink", Go: "UnlinkLast", C: "unlink_last", Number: Range{Most: 1},
		Doc:     `"last": its last user removes a cache with a name`,
		Default: "a cache that stays until it is removed"},
	{Name: "clients", Go: "ClientRecords", C: "client_records",
		Number:  Range{Least: 1, Most: MaxClientRecords},
		Doc:     "the most processes that use the cache at a time",
		Default: fmt.Sprint(DefaultClientRecords)},
	{Name: "dir", Go: "Dir", C: "directory",
		Doc:     "folder of a cache with a name, on a tmpfs",
		Default: "`/dev/shm/stocached-<uid>`"},
	{Name: "fingerprint", Go: "Fingerprint", C: "fingerprint", Bytes: FingerprintBytes,
		Doc:     "names dataset and transform, in at most 64 bytes; programs with another one refuse the cache",
		Default: "none",
		Advice:  "hash it"},
	{Name: "decode", Go: "Decode", Bytes: DecodeBytes,
		Doc:     "how clients decode the samples of a cache of a server",
		Default: "samples as they lie"},
}

// In returns a pointer to the value of the option in o.
func (p *Option) In(o *Options) any {
	return reflect.ValueOf(o).Elem().FieldByName(p.Go).Addr().Interface()
}

// Help says what the option does and what follows without it.
func (p *Option) Help() string {
	if p.Default == "" {
		return p.Doc + " (required)"
	}
	return p.Doc + ". Without it: " + p.Default
}

// Flag returns the flag of stocached create.
func (p *Option) Flag() string { return strings.ReplaceAll(p.Name, "_", "-") }

// Wanted ends the error of a value that the option does not take: what it takes, and the next step.
// "": Create checks the value otherwise.
func (p *Option) Wanted() string {
	next, r := cmp.Or(p.Advice, "leave it out for "+p.Default), p.Number
	switch {
	case p.Bytes > 0:
		return fmt.Sprintf("UTF-8 of at most %d; %s", p.Bytes, next)
	case r.Power:
		return fmt.Sprintf("a power of two in %d..%d; %s", r.Least, r.Most, next)
	case r.Most > 0:
		return fmt.Sprintf("in %d..%d; %s", r.Least, r.Most, next)
	}
	return ""
}

// fault says what is wrong with the value of the option in o; "" means nothing.
func (p *Option) fault(o *Options) string {
	var number uint64
	switch v := p.In(o).(type) {
	case *string:
		if p.Bytes > 0 && (len(*v) > p.Bytes || !utf8.ValidString(*v) || strings.ContainsRune(*v, 0)) {
			return fmt.Sprintf("%s: %d bytes are not %s", p.Name, len(*v), p.Wanted())
		}
		return ""
	case *uint64:
		number = *v
	case *uint32:
		number = uint64(*v)
	case *Policy:
		number = uint64(*v)
	}
	r := p.Number
	inside := r.Least <= number && number <= r.Most && (!r.Power || number&(number-1) == 0)
	if inside || number == 0 && p.Default != "" {
		return ""
	}
	return fmt.Sprintf("%s: %d is not %s", p.Name, number, p.Wanted())
}
