package session

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/server/fill"

	"golang.org/x/sys/unix"
)

// StallTimeout is how long a client may read nothing. Tests change it.
var StallTimeout = 30 * time.Second

// writePiece is the most that one write within StallTimeout has.
const writePiece = 256 << 10

// The most answers that may wait to be written before the server stops reading the client's frames:
// such a client asks faster than it reads answers. Larger than the answers of all requests that may
// be under way.
const (
	maxAnswers     = 2 * control.MaxRequests
	maxAnswerBytes = 1 << 20
)

// output writes the frames of a connection in their order. One goroutine writes, so that no other
// goroutine waits for a client.
type output struct {
	socket      *net.UnixConn
	drained     func()       // called when samples may wait again
	replies     *Budget      // memory of what waits to be written
	requests    *Budget      // memory of requests; answering a request gives its part back
	own         atomic.Int64 // this connection's part of requests
	hasAnswered atomic.Bool  // a sample or the end of a request was written
	gone        atomic.Bool  // like dead, for callers that must not wait for mu

	mu      sync.Mutex // protects the fields below
	wake    sync.Cond
	frames  []frame
	waiting int       // bytes of samples that are in frames or will be
	refused bool      // a sample did not fit
	short   int       // bytes of a sample that replies refused; 0: it refused none
	shortAt int       // it is tried again when so little waits
	answers int       // frames without a sample that wait or are being written
	bytes   int       // bytes of these frames
	room    sync.Cond // answers may be queued again
	writing bool      // run is writing a frame
	ending  bool      // write what is queued, then close
	last    time.Time // nothing is written after it; zero: no limit
	dead    bool      // write nothing more
}

// frame is one frame to write: head, then the bytes of a sample, if any.
type frame struct {
	head       []byte
	data       *fill.Buffer
	descriptor *os.File // sent with the first byte, then closed
	reserved   int      // bytes of the request that this frame answers
}

func newOutput(socket *net.UnixConn, drained func()) *output {
	o := &output{socket: socket, drained: drained, replies: unlimited, requests: unlimited}
	o.wake.L, o.room.L = &o.mu, &o.mu
	return o
}

// canTake says whether n more bytes of a sample may wait. The samples that wait stay within
// MaxWaitingSend, unless there is only one, and within the budget of all connections. After true,
// the caller must call sample.
func (o *output) canTake(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.dead:
		return true
	case o.waiting > 0 && o.waiting+n > control.MaxWaitingSend:
		o.refused = true
		return false
	case !o.replies.take(o.waiting, n, o.clientReads):
		o.short, o.shortAt = n, o.waiting/2
		return false
	}
	o.waiting += n
	return true
}

// full says whether readers should skip this client: enough samples wait, or one was refused and
// half of what waited is still not written.
func (o *output) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.isFull()
}

// isFull is full. It forgets a sample that was refused for lack of memory, once there is memory for it. The caller
// holds mu.
func (o *output) isFull() bool {
	if o.short > 0 && o.waiting <= o.shortAt && o.replies.hasRoom(o.waiting, o.short, o.clientReads) {
		o.short = 0
	}
	return !o.dead && (o.refused || o.short > 0 || o.waiting >= control.MaxWaitingSend)
}

// send queues a frame without a sample.
func (o *output) send(head []byte) { o.queue(frame{head: head}) }

// answer queues the last frame of a request. reserved is what reserve took for it.
func (o *output) answer(head []byte, reserved int) { o.queue(frame{head: head, reserved: reserved}) }

// sendDescriptor queues a frame with a descriptor. The output owns the descriptor from here on.
func (o *output) sendDescriptor(head []byte, descriptor *os.File) {
	o.queue(frame{head: head, descriptor: descriptor})
}

// shorten drops the texts of all failures but the first when the budget of all connections has no
// memory for them.
func (o *output) shorten(failures []control.Failure) []control.Failure {
	size := 0
	for _, f := range failures {
		size += len(f.Text)
	}
	if size <= control.MaxText || o.replies.hasRoom(0, size, o.clientReads) {
		return failures
	}
	for k := range failures[1:] {
		failures[k+1].Text = ""
	}
	return failures
}

// sample queues a SAMPLE that canTake has accepted. The output keeps the caller's share of data
// until it is written.
func (o *output) sample(request uint64, position uint32, data *fill.Buffer) {
	o.queue(frame{head: control.AppendSampleHeader(nil, request, position, len(data.Bytes)), data: data})
}

func (o *output) queue(f frame) {
	o.mu.Lock()
	short := o.add(f)
	o.mu.Unlock()
	if short {
		o.drained()
	}
}

// add is queue. The caller holds mu. It says whether a connection waited for memory that add gave
// back.
func (o *output) add(f frame) (short bool) {
	if o.dead || o.ending {
		if f.data != nil && !o.dead {
			o.waiting -= len(f.data.Bytes)
			short = o.replies.give(len(f.data.Bytes))
		}
		o.drop(&f)
		return short
	}
	if f.data == nil && f.descriptor == nil && len(o.frames) == 0 && !o.writing {
		if f.head = o.writeNow(f.head); len(f.head) == 0 {
			o.written(&f)
			o.drop(&f)
			return false
		}
	}
	if f.data == nil {
		o.answers++
		o.bytes += len(f.head)
		o.replies.force(len(f.head))
	}
	o.frames = append(o.frames, f)
	o.wake.Signal()
	return false
}

// writeNow writes what the socket takes without blocking, and returns the rest. So an answer that
// fits needs no switch to another goroutine. The caller holds mu, and no other frame waits.
func (o *output) writeNow(p []byte) []byte {
	raw, err := o.socket.SyscallConn()
	if err != nil {
		return p
	}
	n := 0
	err = raw.Write(func(fd uintptr) bool {
		if n, err = unix.SendmsgN(int(fd), p, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
			n = 0 // run meets the error again, and handles it
		}
		return true
	})
	if err == nil {
		fault.At("send.piece")
	}
	return p[n:]
}

// written records that a frame was written.
func (o *output) written(f *frame) {
	if f.data != nil || f.reserved > 0 {
		o.hasAnswered.Store(true)
	}
}

// drop releases what a frame holds.
func (o *output) drop(f *frame) {
	if f.data != nil {
		f.data.Release()
	}
	if f.descriptor != nil {
		f.descriptor.Close()
	}
	o.unreserve(f.reserved)
}

// clientReads says whether the client has read all that was written, and at least one answer.
func (o *output) clientReads() bool {
	raw, err := o.socket.SyscallConn()
	if err != nil || !o.hasAnswered.Load() {
		return false
	}
	unread := 1
	err = raw.Control(func(fd uintptr) {
		if unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err != nil {
			unread = 1
		}
	})
	return err == nil && unread == 0
}

// reserve takes n bytes for a request, and waits until there is memory. false: the server ends, or
// the client is gone.
func (o *output) reserve(n int) bool {
	if n == 0 {
		return true
	}
	ok := o.requests.await(int(o.own.Load()), n, o.clientReads, o.gone.Load)
	if ok {
		o.own.Add(int64(n))
	}
	return ok
}

// unreserve gives n bytes back.
func (o *output) unreserve(n int) {
	if n > 0 {
		o.own.Add(-int64(n))
		o.requests.give(n)
	}
}

// waitForRoom waits until more answers may be queued. It also returns when the output ends or dies.
func (o *output) waitForRoom() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.dead && !o.ending && (o.answers >= maxAnswers || o.bytes >= maxAnswerBytes || o.answers > 0 &&
		o.replies.over()) {
		o.room.Wait()
	}
}

// end makes run write what is queued and then return. The output accepts nothing more.
func (o *output) end() {
	o.mu.Lock()
	o.ending = true
	o.wake.Signal()
	o.room.Broadcast()
	o.mu.Unlock()
}

// setDeadline sets the time after which nothing is written.
func (o *output) setDeadline(t time.Time) {
	o.mu.Lock()
	o.last = t
	o.mu.Unlock()
	if err := o.socket.SetWriteDeadline(t); err != nil { // also for the write under way
		o.socket.Close()
	}
}

// extendDeadline gives the next piece StallTimeout, or less if the last deadline is earlier.
func (o *output) extendDeadline() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := time.Now().Add(StallTimeout)
	if !o.last.IsZero() && o.last.Before(t) {
		t = o.last
	}
	return o.socket.SetWriteDeadline(t)
}

// abort drops what is queued and makes run return.
func (o *output) abort() {
	o.mu.Lock()
	for k := range o.frames {
		o.drop(&o.frames[k])
	}
	o.replies.give(o.waiting + o.bytes)
	o.dead, o.frames, o.waiting, o.bytes, o.answers = true, nil, 0, 0, 0
	o.gone.Store(true)
	o.wake.Signal()
	o.room.Broadcast()
	o.mu.Unlock()
	o.requests.wake()
	o.drained()
}

// run writes until end, or until the client stops reading.
func (o *output) run() error {
	for {
		o.mu.Lock()
		for len(o.frames) == 0 && !o.ending && !o.dead {
			o.wake.Wait()
		}
		if len(o.frames) == 0 {
			o.mu.Unlock()
			return nil
		}
		f := o.frames[0]
		o.frames = o.frames[1:]
		o.writing = true
		o.mu.Unlock()
		head := len(f.head)
		err := o.write(&f)
		o.written(&f)
		o.mu.Lock()
		o.writing = false
		drained := false
		switch {
		case o.dead: // abort has given everything back
		case f.data == nil:
			o.answers--
			o.bytes -= head
			drained = o.replies.give(head)
			o.room.Broadcast()
		default:
			full := o.isFull()
			o.waiting -= len(f.data.Bytes)
			o.refused = o.refused && o.waiting > control.MaxWaitingSend/2
			short := o.replies.give(len(f.data.Bytes))
			drained = short || full && !o.isFull()
		}
		if len(o.frames) == 0 && o.last.IsZero() && err == nil {
			err = o.socket.SetWriteDeadline(time.Time{}) // or it would fire later, and disturb writeNow
		}
		o.mu.Unlock()
		if drained {
			o.drained()
		}
		o.drop(&f)
		if err != nil {
			return err
		}
	}
}

// write writes a frame piece by piece. Each piece that the client reads gives it time for the next
// one.
func (o *output) write(f *frame) error {
	if f.descriptor != nil {
		if err := o.extendDeadline(); err != nil {
			return err
		}
		n, _, err := o.socket.WriteMsgUnix(f.head, unix.UnixRights(int(f.descriptor.Fd())), nil)
		if err != nil {
			return err
		}
		f.head = f.head[n:]
		fault.At("send.descriptor")
	}
	for _, part := range [][]byte{f.head, f.bytes()} {
		for len(part) > 0 {
			if err := o.extendDeadline(); err != nil {
				return err
			}
			n, err := o.socket.Write(part[:min(len(part), writePiece)])
			if err != nil {
				return err
			}
			part = part[n:]
			fault.At("send.piece")
		}
	}
	return nil
}

func (f *frame) bytes() []byte {
	if f.data == nil {
		return nil
	}
	return f.data.Bytes
}
