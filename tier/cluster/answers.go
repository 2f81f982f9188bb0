package cluster

import (
	"bytes"
	"fmt"
	"strconv"
)

// Bounds of what a node may answer. go-redis makes memory for a number as soon as it has read the number.
const (
	mostLine     = 16 << 10       // bytes of a line: an error, a status, a number
	mostElements = 1 << 16        // elements of a list: CLUSTER SLOTS has 16,384 at most
	mostInList   = 16 << 20       // bytes of a list with all that is in it
	mostDepth    = 8              // depth of lists in lists, which go-redis reads by recursion
	mostText     = 64 << 10       // bytes of INFO and of a value in a list
	mostValue    = 512<<20 + 4096 // bytes of a value of an engine
	mostOther    = 1 << 20        // bytes of any value, where samples are smaller
)

// mostOf bounds the values of a dataset by its largest sample; 0: that is unknown. A value of up to twice as much may be
// damaged: it is read over and removed. A longer one comes from no client of ours.
func mostOf(sampleBytes uint64) int {
	if sampleBytes == 0 || sampleBytes > mostValue/2 {
		return mostValue
	}
	return int(min(max(2*(sampleBytes+trailer), mostOther), mostValue))
}

// answers follows the answers of a node as their bytes come, and finds those that none of our commands gets. So a node
// that is no Redis, or a damaged one, costs no memory.
type answers struct {
	most   int    // bytes of a value that is in no list
	line   []byte // the begin of a line, whose end has not come
	skip   int    // bytes of a value that are still to come, with the end of its line
	left   []int  // for each list around: elements that are still to come
	inList int    // bytes of the list
}

// follow takes the next bytes. An error is the end of the connection.
func (a *answers) follow(b []byte) error {
	for len(b) > 0 {
		if len(a.left) > 0 && a.inList > mostInList {
			return fmt.Errorf("the node answers with a list of more than %d bytes", mostInList)
		}
		if n := min(a.skip, len(b)); n > 0 {
			a.skip, b = a.skip-n, b[n:]
			if a.inList += n; a.skip == 0 {
				a.element()
			}
			continue
		}
		end := bytes.IndexByte(b, '\n') + 1
		part := b[:end]
		if end == 0 {
			part = b
		}
		if len(a.line)+len(part) > mostLine {
			return fmt.Errorf("the node answers with a line of more than %d bytes", mostLine)
		}
		a.line, b = append(a.line, part...), b[len(part):]
		a.inList += len(part)
		if end == 0 {
			return nil
		}
		if err := a.endLine(); err != nil {
			return err
		}
	}
	return nil
}

// endLine takes a line that is complete.
func (a *answers) endLine() error {
	line := bytes.TrimRight(a.line, "\r\n")
	a.line = a.line[:0]
	if len(line) == 0 {
		return fmt.Errorf("the node answers with an empty line")
	}
	n := 0
	switch kind := line[0]; kind {
	case '$', '=', '!', '*', '~', '>', '%', '|':
		var err error
		if n, err = strconv.Atoi(string(line[1:])); err != nil || n < -1 {
			return fmt.Errorf("the node answers with the length %.40q", line)
		}
		switch {
		case n == -1: // nil
		case kind == '$' || kind == '=' || kind == '!':
			return a.value(n)
		case kind == '%' || kind == '|':
			return a.list(2 * min(n, mostElements+1)) // pairs
		default:
			return a.list(n)
		}
	case '+', '-', ':', '_', ',', '#', '(':
	default:
		return fmt.Errorf("the node answers with %.40q, which is no answer of Redis or Valkey", line)
	}
	a.element()
	return nil
}

func (a *answers) value(n int) error {
	most := a.most
	if len(a.left) > 0 {
		most = mostText
	}
	if n > most {
		return fmt.Errorf("the node answers with a value of %d bytes; at most %d are possible there", n, most)
	}
	a.skip = n + len("\r\n")
	return nil
}

func (a *answers) list(n int) error {
	switch {
	case n > mostElements:
		return fmt.Errorf("the node answers with a list of %d elements; at most %d are possible", n, mostElements)
	case len(a.left) == mostDepth:
		return fmt.Errorf("the node answers with lists in lists, more than %d deep", mostDepth)
	case n == 0:
		a.element()
		return nil
	case len(a.left) == 0:
		a.inList = 0
	}
	a.left = append(a.left, n)
	return nil
}

// element ends an element of the innermost list, and each list whose last one it is.
func (a *answers) element() {
	for k := len(a.left) - 1; k >= 0; k-- {
		if a.left[k]--; a.left[k] > 0 {
			return
		}
		a.left = a.left[:k]
	}
}
