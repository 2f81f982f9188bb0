package conform

/*
#cgo CFLAGS: -std=gnu11 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "library.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/shm"
)

// Load opens libstocached. It MUST succeed before any other call of this package.
func Load(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if problem := C.conform_load(name); problem != nil {
		return fmt.Errorf("open %s: %s; build it first: make build", path, C.GoString(problem))
	}
	return nil
}

// cClient is a client through the C library.
type cClient struct {
	handle *C.stoc_cache
	claim  *C.struct_stoc_claim // the open claim; the table of operations has one at a time
}

// openC attaches by path. It returns the client, and a code of enum stoc_code.
func openC(path string, readOnly bool) (*cClient, int, string) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var flags C.uint
	if readOnly {
		flags = C.STOC_OPEN_READ_ONLY
	}
	var e C.struct_stoc_error
	c := &cClient{claim: (*C.struct_stoc_claim)(C.calloc(1, C.sizeof_struct_stoc_claim))}
	code := int(C.call_stoc_open(name, flags, nil, &c.handle, &e))
	if code != 0 {
		C.free(unsafe.Pointer(c.claim))
		return nil, code, C.GoString(&e.message[0])
	}
	return c, 0, ""
}

// createC makes a cache with the options of shm.Create, and closes it.
func createC(o shm.Options) (code int, message string) {
	var name *C.char
	if o.Name != "" {
		name = C.CString(o.Name)
		defer C.free(unsafe.Pointer(name))
	}
	handle, code, message := openWith(o, func(options *C.struct_stoc_options, handle **C.stoc_cache, e *C.struct_stoc_error) C.int64_t {
		return C.call_stoc_create(name, options, handle, e)
	})
	if code == 0 {
		C.call_stoc_close(handle)
	}
	return code, message
}

// openDiskC opens a segment on a disk with the options of diskfile.OpenShared.
func openDiskC(path string, o shm.Options) (*cClient, int, string) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	handle, code, message := openWith(o, func(options *C.struct_stoc_options, handle **C.stoc_cache, e *C.struct_stoc_error) C.int64_t {
		return C.call_stoc_disk_open(name, options, handle, e)
	})
	if code != 0 {
		return nil, code, message
	}
	return &cClient{handle: handle, claim: (*C.struct_stoc_claim)(C.calloc(1, C.sizeof_struct_stoc_claim))}, 0, ""
}

// openWith calls a function of the library with options.
func openWith(o shm.Options, call func(*C.struct_stoc_options, **C.stoc_cache, *C.struct_stoc_error) C.int64_t) (handle *C.stoc_cache,
	code int, message string) {
	options := (*C.struct_stoc_options)(C.calloc(1, C.sizeof_struct_stoc_options))
	defer C.free(unsafe.Pointer(options))
	options.struct_bytes = C.sizeof_struct_stoc_options
	options.samples, options.limit_bytes, options.slots, options.sample_bytes = C.uint64_t(o.Samples),
		C.uint64_t(o.Limit), C.uint64_t(o.Slots), C.uint64_t(o.SampleBytes)
	options.slot_bytes = C.uint64_t(o.SlotBytes)
	options.policy, options.client_records = C.uint32_t(o.Policy), C.uint32_t(o.ClientRecords)
	options.variable, options.reserve, options.unlink_last = flag(o.Variable), flag(o.Reserve), flag(o.UnlinkLast)
	options.lengths = flag(o.Lengths)
	if o.Dir != "" {
		options.directory = C.CString(o.Dir)
		defer C.free(unsafe.Pointer(options.directory))
	}
	if o.Fingerprint != "" {
		options.fingerprint = C.CString(o.Fingerprint)
		defer C.free(unsafe.Pointer(options.fingerprint))
	}
	if o.Fields != nil {
		fields := (*C.struct_stoc_field)(C.calloc(C.size_t(len(o.Fields)+1), C.sizeof_struct_stoc_field))
		defer C.free(unsafe.Pointer(fields))
		for k, f := range unsafe.Slice(fields, len(o.Fields)) {
			for b := range min(len(o.Fields[k].Name), len(f.name)) {
				f.name[b] = C.char(o.Fields[k].Name[b])
			}
			f.dtype, f.ndim = C.uint16_t(o.Fields[k].DType), C.uint16_t(len(o.Fields[k].Dims))
			for d := range min(len(o.Fields[k].Dims), len(f.dims)) {
				f.dims[d] = C.uint64_t(o.Fields[k].Dims[d])
			}
			unsafe.Slice(fields, len(o.Fields))[k] = f
		}
		options.fields, options.field_count = fields, C.uint32_t(len(o.Fields))
	}
	var e C.struct_stoc_error
	code = int(call(options, &handle, &e))
	return handle, code, C.GoString(&e.message[0])
}

// unlinkC removes a cache.
func unlinkC(path string) int {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	return int(C.call_stoc_unlink(name, nil))
}

func flag(on bool) C.uint32_t {
	if on {
		return 1
	}
	return 0
}

func pointer[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

func (c *cClient) get(i int, dst []byte) (int, int) {
	var length C.size_t
	code := int(C.call_stoc_get(c.handle, C.int64_t(i), pointer(dst), C.size_t(len(dst)), &length))
	return code, int(length)
}

func (c *cClient) learnLength(i int, items uint64) int {
	return int(C.call_stoc_learn_length(c.handle, C.int64_t(i), C.uint64_t(items)))
}

func (c *cClient) learnedLengths(first, n int) (int, []uint64) {
	lengths := make([]uint64, n)
	code := C.call_stoc_learned_lengths(c.handle, C.uint64_t(first), C.uint64_t(n), (*C.uint64_t)(pointer(lengths)))
	return int(code), lengths
}

func (c *cClient) view(i int) (int, []byte) {
	// in C memory, because Go's pointer checks do not cover pointers to pointers in the library
	out := (*struct {
		data   unsafe.Pointer
		length C.size_t
	})(C.calloc(1, 16))
	defer C.free(unsafe.Pointer(out))
	code := int(C.call_stoc_view(c.handle, C.int64_t(i), &out.data, &out.length))
	if code != 1 {
		return code, nil
	}
	return code, C.GoBytes(out.data, C.int(out.length))
}

func (c *cClient) gather(indices []int, field int, dst []byte, stride int, threads int) (int, []bool) {
	hit := make([]uint8, len(indices)+1)
	wide := widened(indices)
	n := C.call_stoc_gather(c.handle, (*C.int64_t)(pointer(wide)), C.size_t(len(indices)), C.int(field), pointer(dst),
		C.size_t(stride), (*C.uint8_t)(pointer(hit)), C.unsigned(threads))
	return int(n), hits(hit[:len(indices)])
}

func (c *cClient) gatherPacked(indices []int, dst []byte, offsets, lengths []uint64, threads int) (int, []bool) {
	hit := make([]uint8, len(indices)+1)
	wide := widened(indices)
	n := C.call_stoc_gather_packed(c.handle, (*C.int64_t)(pointer(wide)), C.size_t(len(indices)), pointer(dst),
		(*C.uint64_t)(pointer(offsets)), (*C.uint64_t)(pointer(lengths)),
		(*C.uint8_t)(pointer(hit)), C.unsigned(threads))
	return int(n), hits(hit[:len(indices)])
}

func (c *cClient) lengths(indices []int) (int, []uint64) {
	lengths := make([]uint64, len(indices)+1)
	wide := widened(indices)
	n := C.call_stoc_lengths(c.handle, (*C.int64_t)(pointer(wide)), C.size_t(len(indices)),
		(*C.uint64_t)(pointer(lengths)))
	return int(n), lengths[:len(indices)]
}

func widened(indices []int) []int64 {
	wide := make([]int64, len(indices)+1)
	for k, i := range indices {
		wide[k] = int64(i)
	}
	return wide
}

func hits(bytes []uint8) []bool {
	hit := make([]bool, len(bytes))
	for k, b := range bytes {
		hit[k] = b != 0
	}
	return hit
}

func (c *cClient) state(i int) int { return int(C.call_stoc_state(c.handle, C.int64_t(i))) }

func (c *cClient) states(first, n int) (int, []uint8) {
	states := make([]uint8, max(n, 0)+1)
	code := int(C.call_stoc_states(c.handle, C.uint64_t(first), C.uint64_t(n), (*C.uint8_t)(pointer(states))))
	return code, states[:max(n, 0)]
}

func (c *cClient) peek(i int, dst []byte) int {
	return int(C.call_stoc_peek(c.handle, C.int64_t(i), pointer(dst), C.size_t(len(dst))))
}

func (c *cClient) set(i int, parts [][]byte, flags cache.Flags) int {
	if len(parts) == 1 {
		return int(C.call_stoc_set(c.handle, C.int64_t(i), pointer(append([]byte{}, append(parts[0], 0)...)),
			C.size_t(len(parts[0])), C.unsigned(flags)))
	}
	return c.setLoaded(i, parts, flags, 0)
}

func (c *cClient) setLoaded(i int, parts [][]byte, flags cache.Flags, nanoseconds int64) int {
	data, lengths := []byte{}, []C.size_t{}
	for _, p := range parts {
		data, lengths = append(data, p...), append(lengths, C.size_t(len(p)))
	}
	data, lengths = append(data, 0), append(lengths, 0)
	return int(C.conform_set_parts(c.handle, C.int64_t(i), (*C.uchar)(pointer(data)), (*C.size_t)(pointer(lengths)),
		C.int(len(parts)), C.unsigned(flags), C.uint64_t(nanoseconds)))
}

func (c *cClient) begin(i, length int, flags cache.Flags) int {
	return int(C.call_stoc_claim(c.handle, C.int64_t(i), C.size_t(length), C.unsigned(flags), c.claim))
}

func (c *cClient) write(offset int, data []byte) int {
	return int(C.call_stoc_write(c.claim, C.uint64_t(offset), pointer(append(data, 0)), C.size_t(len(data))))
}

func (c *cClient) publish() int { return int(C.call_stoc_publish(c.claim)) }
func (c *cClient) abort() int   { return int(C.call_stoc_abort(c.claim)) }
func (c *cClient) recover() int { return int(C.call_stoc_recover(c.handle)) }

func (c *cClient) clear(milliseconds int) int {
	return int(C.call_stoc_clear(c.handle, C.unsigned(milliseconds)))
}

func (c *cClient) verify(first, n int) (int, int, int) {
	var checked C.uint64_t
	bad := C.int64_t(-1)
	code := int(C.call_stoc_verify(c.handle, C.uint64_t(first), C.uint64_t(n), &checked, &bad))
	return code, int(checked), int(bad)
}

func (c *cClient) stats() (int, cache.Stats) {
	var s C.struct_stoc_stats
	s.struct_bytes = C.sizeof_struct_stoc_stats
	code := int(C.call_stoc_stats(c.handle, &s))
	return code, cache.Stats{
		Hits: uint64(s.hits), Misses: uint64(s.misses), Stored: uint64(s.stored), Exists: uint64(s.exists),
		Busy: uint64(s.busy), Full: uint64(s.full), Out: uint64(s.out),
		StoredBytes: uint64(s.stored_bytes), Recovered: uint64(s.recovered), Aborted: uint64(s.aborted),
		Lost: uint64(s.lost), Retried: uint64(s.retried),
		Corrupt: uint64(s.corrupt), Passed: uint64(s.passed), Ready: uint64(s.ready), ReadyBytes: uint64(s.ready_bytes),
		ArenaNextBytes: uint64(s.arena_next_bytes), ArenaLostBytes: uint64(s.arena_lost_bytes),
		ClientsLive: uint64(s.clients_live), ClientsEnded: uint64(s.clients_ended), AllocatedBytes: uint64(s.allocated_bytes),
		Clears: uint64(s.clears), Evicted: uint64(s.evicted), ArenaFreeBytes: uint64(s.arena_free_bytes),
		Replaced: uint64(s.replaced),
	}
}

func (c *cClient) close() {
	if c.handle != nil {
		C.call_stoc_close(c.handle)
		C.free(unsafe.Pointer(c.claim))
	}
	c.handle, c.claim = nil, (*C.struct_stoc_claim)(nil)
}
