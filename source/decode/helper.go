package decode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/stocached/stocached/source"
)

const (
	helperVariable = "STOCACHED_DECODE" // the path of the helper; set and empty: there is none
	helperName     = "stocached-decode"
	frames         = 6          // as in cimage/decode_main.c; part of the fingerprint, too
	magic          = 0x44435453 // first word of the first frame
	startLimit     = 10 * time.Second
	leastShared    = 1 << 20
	lanes          = 4 // in a process, as in cimage/decode_main.c: the next picture is there when it ends one
)

// decodeLimit is the longest that the helper may take for a picture. Tests change it.
var decodeLimit = 60 * time.Second

// request is a frame to the helper: docs/spec/decode.md.
type request struct {
	Memory, Input, Result, Most, MaxPixels uint64
	Width, Height                          uint32
	Fit, Layout                            uint32
}

// frame is the request as the helper has it: it has no gaps, and the byte order is that of the machine.
func (r *request) frame() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(r)), unsafe.Sizeof(*r)) }

// answer is a frame from the helper.
type answer struct {
	Code        int32 // 0, or a code of stocached_image.h
	Frames      uint32
	Nanoseconds uint64 // processor time; in the first frame the number of lanes
	Message     [240]byte
}

const (
	codeMemory = -5 // STOC_IMAGE_EMEMORY
	codeKind   = -7 // STOC_IMAGE_EKIND
)

// kindError says which format a file has that the helper does not decode.
type kindError struct{ error }

// errShortMemory: a picture takes more memory than its request allows.
var errShortMemory = errors.New("too little memory")

func (a *answer) text() string {
	text, _, _ := bytes.Cut(a.Message[:], []byte{0})
	return strings.ToValidUTF8(string(text), "?")
}

// Helper returns the path of the helper, beside this program or in a folder of PATH; "": there is none.
func Helper() (string, error) {
	if path, ok := os.LookupEnv(helperVariable); ok {
		if path == "" {
			return "", nil
		}
		return filepath.Abs(path)
	}
	if program, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(program), helperName)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath(helperName); err == nil {
		return path, nil
	}
	return "", nil
}

// noHelper says what a server needs to decode.
func noHelper() error {
	return fmt.Errorf("%w: the program %s, which decodes pictures, is neither beside this program nor in PATH: install a "+
		"package of stocached (or run `make build` with the headers of libjpeg-turbo, libpng and libwebp), or set %s=PATH, "+
		"or set store: encoded, for which clients decode", source.ErrInvalid, helperName, helperVariable)
}

// process is one of stocached-decode. It works on one picture at a time. Others may wait for it, in its
// other lanes.
type process struct {
	cmd     *exec.Cmd
	lanes   [lanes]*lane
	decoder string // which library the process has, and which pixels it makes
	pixels  string // the second part of it: a number that differs where pixels do
	said    tail
	ended   chan struct{} // closed when the process has ended
	killed  atomic.Int32  // why this server has killed it; 0: it has not

	requests atomic.Int32 // without an answer

	idle    []*lane // helpers.mu protects it, as the next
	retired bool    // takes no more pictures
}

// why the server kills a process.
const (
	forHanging = 1 + iota
	forContext
)

// lane is a way for pictures to a process. One goroutine at a time uses it.
type lane struct {
	*process
	seat   *seat
	socket *os.File
	memory *os.File // a memfd
	shared []byte   // maps it
}

// lostError means that a process died or hung, or did not start: that is no fault of the picture.
type lostError struct {
	error
	again  bool // another process may do it
	waited bool // this picture is not to blame: it waited, or the server ended the process for another one
}

// startProcess starts a process.
func startProcess(path string) (p *process, err error) {
	p = &process{ended: make(chan struct{})}
	defer func() {
		if err != nil {
			p.stop()
			p, err = nil, &lostError{fmt.Errorf("%s does not start: %w; install stocached again and restart the server",
				path, err), true, false}
		}
	}()
	cmd := exec.Command(path)
	cmd.Stderr = &p.said
	cmd.WaitDelay = time.Second // if another process has its standard error
	for k := range p.lanes {
		l, theirs, err := newLane(p)
		p.lanes[k] = l
		if err != nil {
			return p, err
		}
		defer theirs.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs, l.memory)
	}
	if err := cmd.Start(); err != nil {
		return p, err
	}
	p.cmd = cmd
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	for k := range p.lanes {
		cmd.ExtraFiles[2*k].Close() // else the end of the process would not close the socket
	}
	l := p.lanes[0]
	var first answer
	if err := l.socket.SetReadDeadline(time.Now().Add(startLimit)); err != nil {
		return p, err
	}
	if err := l.receive(&first); err != nil {
		return p, p.died(err, startLimit)
	}
	if first.Code != magic || first.Frames != frames || first.Nanoseconds != lanes {
		return p, fmt.Errorf("it is of another version: its frames are %d and its lanes %d, those of this server %d and %d",
			first.Frames, first.Nanoseconds, frames, lanes)
	}
	p.decoder, p.idle = first.text(), slices.Clone(p.lanes[:])
	_, p.pixels, _ = strings.Cut(p.decoder, ", pixels ")
	slices.Reverse(p.idle) // the last one is taken first
	return p, nil
}

// newLane makes a lane, which p.stop closes even after an error, and the socket of the process.
func newLane(p *process) (l *lane, theirs *os.File, err error) {
	l = &lane{process: p}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return l, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(ends[1]), "socket")
	err = unix.SetNonblock(ends[0], true) // so that reads have deadlines
	l.socket = os.NewFile(uintptr(ends[0]), "socket")
	if err == nil {
		err = l.makeMemory()
	}
	if err != nil {
		theirs.Close()
	}
	return l, theirs, err
}

func (l *lane) makeMemory() error {
	memory, err := unix.MemfdCreate(helperName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	l.memory = os.NewFile(uintptr(memory), "memory")
	// A process that made the memory shorter would kill the server by a SIGBUS.
	if _, err := unix.FcntlInt(l.memory.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return fmt.Errorf("sealing a memfd: %w", err)
	}
	return nil
}

// receive reads a frame.
func (l *lane) receive(a *answer) error {
	var frame [256]byte
	n, err := l.socket.Read(frame[:])
	if err == nil && n != len(frame) {
		err = fmt.Errorf("a frame of %d bytes", n)
	}
	if err != nil {
		return err
	}
	order := binary.NativeEndian
	a.Code, a.Frames = int32(order.Uint32(frame[:])), order.Uint32(frame[4:])
	a.Nanoseconds = order.Uint64(frame[8:])
	copy(a.Message[:], frame[16:])
	return nil
}

// died kills the process, and says how it ended. err is that of the socket.
func (p *process) died(err error, limit time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.kill()
		return fmt.Errorf("it did not answer within %v and was killed", limit)
	}
	if errors.Is(err, io.EOF) || refused(err) {
		select { // the socket closes a moment before the process ends
		case <-p.ended:
		case <-time.After(time.Second):
		}
		p.kill()
		text := p.cmd.ProcessState.String()
		if said := strings.TrimSpace(p.said.String()); said != "" {
			text += ": " + said
		}
		return errors.New(text)
	}
	p.kill()
	return err
}

// refused says whether the process ended before it took the request. After a request that it took,
// the socket ends with EOF.
func refused(err error) bool { return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) }

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop ends the process and gives back all that belongs to it.
func (p *process) stop() {
	if p.cmd != nil {
		p.kill()
	}
	for _, l := range p.lanes {
		if l == nil {
			continue
		}
		if l.shared != nil {
			_ = unix.Munmap(l.shared)
			l.shared = nil
		}
		for _, f := range []*os.File{l.socket, l.memory} {
			if f != nil {
				f.Close()
			}
		}
	}
}

// room makes the shared memory at least so large. Pages take memory when they are written.
func (l *lane) room(n int) error {
	if n <= len(l.shared) {
		return nil
	}
	n = 1 << bits.Len(uint(max(n, leastShared)-1))
	if err := l.memory.Truncate(int64(n)); err != nil {
		return err
	}
	if l.shared != nil {
		_ = unix.Munmap(l.shared)
		l.shared = nil
	}
	var err error
	l.shared, err = unix.Mmap(int(l.memory.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

// do sends a request, whose input lies in the shared memory, and waits for the answer. It
// returns the processor time of the process. Errors are lostError, after which the process gets no
// more pictures, and those of the picture.
func (l *lane) do(ctx context.Context, r *request) (used time.Duration, err error) {
	r.Memory = uint64(len(l.shared))
	l.requests.Add(1)
	defer l.requests.Add(-1)
	var a answer
	if err = l.socket.SetReadDeadline(time.Now().Add(decodeLimit)); err == nil {
		ended := context.AfterFunc(ctx, func() { _ = l.socket.SetReadDeadline(time.Unix(1, 0)) })
		if _, err = l.socket.Write(r.frame()); err == nil {
			err = l.receive(&a)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && !l.killed.CompareAndSwap(0, forHanging) {
			// The deadline of another lane was a moment earlier. The end of the socket says which one is to blame.
			if err = l.socket.SetReadDeadline(time.Time{}); err == nil {
				err = l.receive(&a)
			}
		}
		if !ended() { // the deadline may change at any time, so no other picture may use this lane
			l.killed.Store(forContext)
			l.kill()
			return 0, &lostError{context.Cause(ctx), false, false}
		}
	}
	switch {
	case err != nil:
		return 0, l.lost(err)
	case a.Code == codeMemory:
		err = errShortMemory
	case a.Code == codeKind:
		err = &kindError{errors.New(a.text())}
	case a.Code != 0:
		err = errors.New(a.text())
	}
	return time.Duration(a.Nanoseconds), err
}

// lost says what became of a request without an answer. The process was at work on it, or on one
// of another lane, and has ended now.
func (l *lane) lost(err error) error {
	lost := &lostError{again: true}
	switch why := l.killed.Load(); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		// If the process has not taken it yet, one of another lane takes too long.
		queued, _ := unix.IoctlGetInt(int(l.socket.Fd()), unix.SIOCOUTQ)
		lost.again = queued > 0 && l.requests.Load() > 1
	case refused(err) || why == forContext:
		lost.waited = true
	case why == forHanging: // for too long, as the deadline of another lane has shown
		err, lost.again = os.ErrDeadlineExceeded, false
	}
	lost.error = fmt.Errorf("%s: %w", helperName, l.died(err, decodeLimit))
	return lost
}

// forget gives the memory of a large picture back to the system.
func (l *lane) forget() error {
	return unix.Fallocate(int(l.memory.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(l.shared)))
}

// tail keeps the first bytes that a process says, for messages.
type tail struct{ bytes.Buffer }

func (t *tail) Write(text []byte) (int, error) {
	t.Buffer.Write(text[:min(len(text), 500-min(t.Len(), 500))])
	return len(text), nil
}
