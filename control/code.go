package control

import "fmt"

// Code is the reason of a failure, in FETCHED and ERROR.
type Code uint16

// The codes: docs/spec/control.md.
const (
	CodeProtocol Code = 1 + iota
	CodeVersion
	CodeDenied
	CodeNotFound
	CodeLimit
	CodeIndex
	CodeRead
	CodeChanged
	CodeDamaged
	CodeNoSlot
	CodeCancelled
	CodeClosing
	CodeInternal
	CodeInvalid
	CodeBad
	CodeLoad    // no program has it: the client loads it itself
	CodeLoading // another program loads it
	CodeNoMemory
	CodeKind // its file is of a format that the server does not decode
)

var codeNames = [...]string{"", "PROTOCOL", "VERSION", "DENIED", "NOT_FOUND", "LIMIT", "INDEX", "READ",
	"CHANGED", "DAMAGED", "NO_SLOT", "CANCELLED", "CLOSING", "INTERNAL", "INVALID", "BAD", "LOAD", "LOADING",
	"NO_MEMORY", "KIND"}

func (c Code) String() string {
	if c > 0 && int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint16(c))
}

// RemoteError is an error that the other side sent.
type RemoteError struct {
	Code Code
	Text string
}

func (e *RemoteError) Error() string { return fmt.Sprintf("%v: %s", e.Code, e.Text) }
