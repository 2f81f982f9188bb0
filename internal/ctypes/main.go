// Command ctypes writes the Python declarations of the headers of the C libraries: constants, structs
// and functions (go generate ./internal/ctypes).
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:generate go run . -header ../../cclient/stocached.h -o ../../python/src/stocached/_native/_header.py
//go:generate go run . -prefix stoc_image_ -library _image_library -header ../../cimage/stocached_image.h -o ../../python/src/stocached/_native/_image_header.py

// prefix begins all names of the header, and library is the Python module that binds them.
var prefix, library string

func main() {
	header, out := flag.String("header", "", "file to read"), flag.String("o", "", "file to write")
	flag.StringVar(&prefix, "prefix", "stoc_", "beginning of all names in the header")
	flag.StringVar(&library, "library", "_library", "Python module that binds the functions")
	flag.Parse()
	text, err := os.ReadFile(*header)
	if err != nil {
		log.Fatal(err)
	}
	python, err := generate(strings.TrimPrefix(filepath.ToSlash(*header), "../../"), string(text))
	if err != nil {
		log.Fatalf("%s: %v", *header, err)
	}
	if err := os.WriteFile(*out, python, 0o644); err != nil {
		log.Fatal(err)
	}
}

const preamble = `"""Generated from %s by go generate ./internal/ctypes; do not edit.

Constants, structs and functions of the C library, under their names there without %s."""

from __future__ import annotations

import ctypes
from ctypes import (
    %s,
)

from .%s import %s

`

var (
	comment   = regexp.MustCompile(`(?s)/\*.*?\*/`)
	define    = regexp.MustCompile(`(?m)^#define (STOC_\w+) (\S+)[ \t]*$`)
	enum      = regexp.MustCompile(`(?s)^enum (stoc_\w+) \{(.*)\}$`)
	typedef   = regexp.MustCompile(`^typedef struct (stoc_\w+) stoc_\w+$`)
	structure = regexp.MustCompile(`(?s)^struct (stoc_\w+) \{(.*)\}$`)
	function  = regexp.MustCompile(`(?s)^STOC_(?:IMAGE_)?API ([\w ]+?[ *]+)(stoc_\w+)\((.*)\)$`)
	callback  = regexp.MustCompile(`^(\w+) \(\*(\w+)\)\((.*)\)$`)
	variable  = regexp.MustCompile(`^(.*?[ *]+)(\w+)(?:\[(\d+)\])?$`)
	ctype     = regexp.MustCompile(`\bc_\w+|\b(?:POINTER|CFUNCTYPE)\b`)
)

var scalars = map[string]string{
	"void": "None", "int": "c_int", "unsigned": "c_uint", "char": "c_char", "unsigned char": "c_ubyte",
	"size_t": "c_size_t", "float": "c_float", "double": "c_double",
	"int32_t": "c_int32", "int64_t": "c_int64", "uint8_t": "c_uint8", "uint16_t": "c_uint16", "uint32_t": "c_uint32",
	"uint64_t": "c_uint64",
}

// arrays are parameters that callers give as an address, perhaps of a NumPy array. Other pointers
// to numbers become POINTER(...), which takes a ctypes object.
var arrays = []string{"indices", "hit", "lengths", "offsets", "states", "positions", "nanoseconds", "rows"}

// addresses are more such parameters, each of one function.
var addresses = []string{"stoc_get.length", "stoc_copy.length", "stoc_fetch_each.data", "stoc_fetch_end.data",
	"stoc_queue_push.tasks", "stoc_weights_open.weights", "stoc_image_decode.dst"}

// brief are the functions that take nanoseconds, called with the GIL. All others copy, wait or
// enter the kernel, and are called without the GIL.
var brief = strings.Fields(`
	abi_version version strerror explain close close_keep_maps close_keep_payload info field view
	view_offset view_slot learn_length locate locate_slot state hold fetch_end count_passed epoch_open
	epoch_open_weighted epoch_open_mixed epoch_close epoch_length epoch_at epoch_position epoch_shard
	weights_close queue_bytes queue_init queue_push queue_take queue_done queue_release queue_cancel
	queue_held queue_repost queue_stop queue_overflow
	worker_new worker_free message target plan vectors use_vectors`)

// short returns a name without the prefix of the header.
func short(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, prefix), strings.ToUpper(prefix))
}

func generate(file, header string) ([]byte, error) {
	var constants, classes, functions bytes.Buffer
	text := comment.ReplaceAllString(header, "")
	for _, m := range define.FindAllStringSubmatch(text, -1) {
		if value, ok := number(m[2]); ok {
			fmt.Fprintf(&constants, "%s = %s\n", short(m[1]), value)
		}
	}
	fmt.Fprintf(&constants, "\ncheck_abi(holding, %q, ABI_VERSION)\n", prefix+"abi_version")
	for _, declaration := range declarations(text) {
		var err error
		switch {
		case enum.MatchString(declaration):
			m := enum.FindStringSubmatch(declaration)
			err = writeEnum(&constants, m[1], m[2])
		case typedef.MatchString(declaration):
			name := class(short(typedef.FindStringSubmatch(declaration)[1]))
			fmt.Fprintf(&classes, "\n\nclass %s(c_void_p):\n    \"\"\"A handle: a pointer object of its own, which "+
				"keeps what hangs on it alive during a call.\"\"\"\n", name)
		case structure.MatchString(declaration):
			m := structure.FindStringSubmatch(declaration)
			err = writeStruct(&classes, m[1], m[2])
		case function.MatchString(declaration):
			m := function.FindStringSubmatch(declaration)
			err = writeFunction(&functions, m[1], m[2], m[3])
		default:
			err = fmt.Errorf("not understood: %s", declaration)
		}
		if err != nil {
			return nil, err
		}
	}
	body := constants.String() + classes.String() + "\n" + functions.String()
	names := ctype.FindAllString(body, -1)
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(natural(a), natural(b)) })
	used := []string{"bind", "check_abi", "holding", "releasing"}
	if strings.Contains(body, "IoVec") {
		used = slices.Insert(used, 0, "IoVec")
	}
	return []byte(fmt.Sprintf(preamble, file, prefix, strings.Join(slices.Compact(names), ",\n    "), library,
		strings.Join(used, ", ")) + body), nil
}

// natural returns a text that sorts c_uint8 before c_uint16, as Python's linter does.
func natural(name string) string {
	return regexp.MustCompile(`[0-9]+`).ReplaceAllStringFunc(name, func(n string) string { return fmt.Sprintf("%3s", n) })
}

// declarations splits a header without comments at the semicolons outside of braces.
func declarations(text string) []string {
	text = regexp.MustCompile(`(?m)^#.*$|^extern "C" \{$`).ReplaceAllString(text, "")
	var all []string
	depth, from := 0, 0
	for at, c := range text {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		case ';':
			if depth == 0 {
				all = append(all, strings.TrimSpace(text[from:at]))
				from = at + 1
			}
		}
	}
	return all
}

// number returns the Python value of a C constant; false for a macro that is not a number.
func number(c string) (string, bool) {
	if c == "UINT64_MAX" {
		return "2**64 - 1", true
	}
	value := strings.TrimSuffix(strings.Trim(c, "()"), "u")
	return value, regexp.MustCompile(`^-?\d+$`).MatchString(value)
}

func writeEnum(b *bytes.Buffer, name, body string) error {
	fmt.Fprintf(b, "\n# enum %s\n", name)
	for _, entry := range strings.Split(body, ",") {
		key, c, _ := strings.Cut(strings.TrimSpace(entry), " = ")
		value, ok := number(c)
		if !ok {
			return fmt.Errorf("enum %s: %s has no number", name, key)
		}
		fmt.Fprintf(b, "%s = %s\n", short(key), value)
	}
	return nil
}

func writeStruct(b *bytes.Buffer, name, body string) error {
	var callbacks, members bytes.Buffer
	for _, member := range strings.Split(strings.TrimSuffix(strings.TrimSpace(body), ";"), ";") {
		member = strings.Join(strings.Fields(member), " ")
		if m := callback.FindStringSubmatch(member); m != nil {
			types, err := parameters("", m[1]+" result, "+m[3])
			if err != nil {
				return fmt.Errorf("struct %s: %w", name, err)
			}
			fmt.Fprintf(&callbacks, "%s = CFUNCTYPE(%s)\n", class(m[2]), strings.Join(types, ", "))
			fmt.Fprintf(&members, "        (\"%s\", %s),\n", m[2], class(m[2]))
			continue
		}
		first, others, _ := strings.Cut(member, ", ")
		m := variable.FindStringSubmatch(first)
		if m == nil {
			return fmt.Errorf("struct %s: not understood: %s", name, member)
		}
		written, err := pythonType(m[1], false)
		if err != nil {
			return fmt.Errorf("struct %s: %w", name, err)
		}
		for _, one := range append([]string{strings.TrimPrefix(first, m[1])}, strings.Split(others, ", ")...) {
			if key, size, isArray := strings.Cut(strings.TrimSuffix(one, "]"), "["); isArray {
				fmt.Fprintf(&members, "        (\"%s\", %s * %s),\n", key, written, size)
			} else if one != "" {
				fmt.Fprintf(&members, "        (\"%s\", %s),\n", one, written)
			}
		}
	}
	if callbacks.Len() > 0 {
		fmt.Fprintf(b, "\n\n%s", callbacks.String())
	}
	fmt.Fprintf(b, "\n\nclass %s(ctypes.Structure):\n    \"\"\"struct %s\"\"\"\n\n    _fields_ = [\n%s    ]\n",
		class(short(name)), name, members.String())
	return nil
}

func writeFunction(b *bytes.Buffer, result, name, list string) error {
	returns, err := pythonType(result, false)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	list = strings.Join(strings.Fields(list), " ")
	types, err := parameters(name, list)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	prototype, indent := fmt.Sprintf("%s%s(%s);", result, name, list), strings.Repeat(" ", len(result)+len(name)+1)
	for len(prototype) > 146 { // wraps the comment for Python's linter
		at := strings.LastIndex(prototype[:146], ", ") + 1
		fmt.Fprintf(b, "\n# %s", prototype[:at])
		prototype = indent + prototype[at+1:]
	}
	fmt.Fprintf(b, "\n# %s\n", prototype)
	handle := "releasing"
	if slices.Contains(brief, short(name)) {
		handle = "holding"
	}
	call := append([]string{handle, fmt.Sprintf("%q", name), returns}, types...)
	if line := fmt.Sprintf("%s = bind(%s)\n", short(name), strings.Join(call, ", ")); len(line) <= 120 {
		b.WriteString(line)
	} else {
		fmt.Fprintf(b, "%s = bind(\n    %s,\n)\n", short(name), strings.Join(call, ",\n    "))
	}
	return nil
}

// parameters returns the Python types of a list of parameters; function "": of a callback.
func parameters(function, list string) ([]string, error) {
	var types []string
	for _, parameter := range strings.Split(list, ", ") {
		if parameter == "void" {
			continue
		}
		m := variable.FindStringSubmatch(parameter)
		if m == nil {
			return nil, fmt.Errorf("not understood: %s", parameter)
		}
		python, err := pythonType(m[1], slices.Contains(arrays, m[2]) || slices.Contains(addresses, function+"."+m[2]))
		if err != nil {
			return nil, err
		}
		types = append(types, python)
	}
	return types, nil
}

// pythonType returns the ctypes type of a C type. address: a pointer becomes c_void_p.
func pythonType(c string, address bool) (string, error) {
	stars := strings.Count(c, "*")
	base := strings.Join(strings.Fields(strings.NewReplacer("const", "", "*", "", "struct stoc_",
		"stoc_").Replace(c)), " ")
	python, isScalar := scalars[base]
	name, isStruct := strings.CutPrefix(base, prefix)
	switch {
	case stars > 0 && address:
		return "c_void_p", nil
	case base == "struct iovec":
		python = "IoVec"
	case isStruct && !strings.Contains(c, "struct"): // a handle, which is a pointer itself
		python, stars = class(name), stars-1
	case isStruct:
		python = class(name)
	case !isScalar:
		return "", fmt.Errorf("no ctypes type for %q", strings.TrimSpace(c))
	case stars > 0 && base == "void":
		python, stars = "c_void_p", stars-1
	case stars > 0 && strings.HasSuffix(base, "char"):
		python, stars = "c_char_p", stars-1
	}
	return strings.Repeat("POINTER(", stars) + python + strings.Repeat(")", stars), nil
}

// class turns a C name into the style of Python's classes: fetch_options, FetchOptions.
func class(c string) string {
	var b strings.Builder
	for _, word := range strings.Split(c, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
