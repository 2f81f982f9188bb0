package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stocached/stocached/internal/breaker"
	"github.com/stocached/stocached/tier"
)

const (
	// pipelines is how many pipelines of a node are under way at most. While they are, requests gather for
	// the next one.
	pipelines = 2
	// A pipeline has at most so many requests, and so many bytes, but at least one request.
	pipelineRequests = 64
	pipelineBytes    = 4 << 20
	// slowest is how many bytes a second an answer may have, after the timeout.
	slowest = 16 << 20
	// Pauses of writes to a full node.
	firstFull, longestFull = time.Second, time.Minute
)

// node is one server of the engine.
type node struct {
	tier    *Tier
	address string
	client  *redis.Client
	breaker breaker.Breaker
	used    atomic.Bool // a sample belongs to it

	mu      sync.Mutex // protects the fields below
	waiting []*request
	running int // pipelines under way
	conns   map[*conn]bool
	ctx     context.Context // context of pipelines; ends when the breaker opens
	end     context.CancelFunc
	full    time.Time     // until then it gets no writes
	pause   time.Duration // pause before the next write
	small   string        // why its memory is too small; "": it is not
}

// request is some commands of one caller, which go to a node together.
type request struct {
	commands []redis.Cmder
	bytes    int           // bytes of samples, asked for or sent
	once     bool          // the commands must not be sent twice
	done     chan struct{} // closed when the commands have their results
	answered bool          // by the node; results may still be errors of the node
}

// newNode makes a node. Its options are those of go-redis for an address.
func (t *Tier) newNode(o *redis.Options) *node {
	n := &node{tier: t, address: o.Addr, conns: map[*conn]bool{}}
	n.ctx, n.end = context.WithCancel(t.ctx)
	own := *o
	own.Dialer = n.dial
	n.client = redis.NewClient(&own)
	return n
}

// do sends a request and waits. false: the node is left out, or failed.
func (n *node) do(r *request) bool {
	n.send(r)
	<-r.done
	return r.answered
}

// send sends a request and does not wait.
func (n *node) send(r *request) {
	r.done = make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.breaker.IsOpen() {
		close(r.done)
		return
	}
	n.waiting = append(n.waiting, r)
	if n.running < pipelines {
		n.running++
		go n.drain()
	}
}

// drain sends what waits, one pipeline after the other.
func (n *node) drain() {
	runtime.Gosched() // reads that begin at the same time go together
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.waiting) > 0 {
		count, bytes := 0, 0
		for count < min(len(n.waiting), pipelineRequests) && (count == 0 || bytes+n.waiting[count].bytes <= pipelineBytes) {
			bytes += n.waiting[count].bytes
			count++
		}
		requests := n.waiting[:count:count]
		n.waiting = n.waiting[count:]
		ctx := n.ctx
		n.mu.Unlock()
		n.pipeline(ctx, requests, bytes)
		n.mu.Lock()
	}
	n.running--
}

func finish(requests []*request) {
	for _, r := range requests {
		close(r.done)
	}
}

// pipeline sends requests with one call.
func (n *node) pipeline(open context.Context, requests []*request, bytes int) {
	within := n.tier.s.Timeout + time.Duration(bytes)*time.Second/slowest
	ctx, cancel := context.WithTimeout(open, within)
	defer cancel()
	pipe := n.client.Pipeline()
	for _, r := range requests {
		for _, c := range r.commands {
			c.SetErr(nil) // an earlier pipeline's error
			_ = pipe.Process(ctx, c)
		}
	}
	// Each command has its error, but a value that is too long ends a pipeline, and all its commands get that error.
	_, _ = pipe.Exec(ctx)
	if len(requests) > 1 && slices.ContainsFunc(requests, (*request).tooLong) {
		for _, r := range requests {
			if r.once {
				close(r.done)
			} else {
				n.pipeline(open, []*request{r}, r.bytes)
			}
		}
		return
	}
	for _, r := range requests {
		if err := n.failure(r); err == nil {
			r.answered = true
		} else if open.Err() == nil { // else the node is left out already, or is back since
			n.fail(err)
		}
		close(r.done)
	}
}

// failure returns the error of a request for which the node must be left out; nil: there is none.
func (n *node) failure(r *request) error {
	for _, c := range r.commands {
		err := c.Err()
		switch {
		case err == nil, errors.Is(err, redis.Nil), isWrongType(err), isTooLong(err):
		case starts(err, "MOVED", "ASK", "TRYAGAIN"):
			n.tier.moved()
		case starts(err, "OOM", "READONLY", "MISCONF", "NOREPLICAS"):
			n.refused()
		default:
			return err
		}
	}
	return nil
}

func (r *request) tooLong() bool {
	return slices.ContainsFunc(r.commands, func(c redis.Cmder) bool { return isTooLong(c.Err()) })
}

func isWrongType(err error) bool { return starts(err, "WRONGTYPE") }
func isTooLong(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "redis: buffer too small")
}

// starts says whether the node answered with an error that begins with one of these words.
func starts(err error, words ...string) bool {
	var answer redis.Error
	return errors.As(err, &answer) &&
		slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(answer.Error(), w+" ") })
}

// fail leaves the node out, and ends all its requests.
func (n *node) fail(err error) {
	because := n.tier.explain(err)
	n.mu.Lock()
	if n.tier.ctx.Err() != nil || !n.breaker.Open(because) {
		n.mu.Unlock()
		return
	}
	finish(n.waiting)
	n.waiting = nil
	n.end()
	conns := make([]*conn, 0, len(n.conns))
	for c := range n.conns {
		conns = append(conns, c)
	}
	n.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	n.tier.about.Log.Warn("a node of a tier is left out", "tier", kindName, "node", n.address, "because", because)
}

// probe asks a node that is left out whether it is back.
func (n *node) probe() {
	ctx, cancel := context.WithTimeout(n.tier.ctx, 2*n.tier.s.Timeout)
	defer cancel()
	if err := n.client.Ping(ctx).Err(); err != nil {
		n.breaker.Again(n.tier.explain(err))
		return
	}
	n.mu.Lock()
	n.ctx, n.end = context.WithCancel(n.tier.ctx)
	out := n.breaker.Close()
	n.mu.Unlock()
	n.tier.about.Log.Info("a node of a tier is back", "tier", kindName, "node", n.address, "after", out)
}

// refused notes that the node has refused a write.
func (n *node) refused() {
	n.tier.counts.Refused.Add(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if now.Before(n.full) {
		return
	}
	if n.pause == 0 || now.Sub(n.full) > longestFull {
		n.pause = firstFull
	}
	n.full = now.Add(n.pause)
	n.pause = min(2*n.pause, longestFull)
}

// writable says whether the node takes writes.
func (n *node) writable() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.breaker.IsOpen() && !time.Now().Before(n.full)
}

func (n *node) status() tier.NodeStatus {
	because, out := n.breaker.State()
	n.mu.Lock()
	defer n.mu.Unlock()
	return tier.NodeStatus{Address: n.address, LeftOut: because != "", Because: because, Seconds: out.Seconds(),
		Full: time.Now().Before(n.full)}
}

// explain says what failed and which setting it concerns, without the password.
func (t *Tier) explain(err error) string {
	text := t.s.hide(err.Error())
	var network net.Error
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var certificate x509.CertificateInvalidError
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	about := func(keys string) string { return fmt.Sprintf("%s: the server answered: %s", keys, text) }
	switch {
	case has("WRONGPASS", "NOAUTH", "without any password", "NOPERM"):
		return about("user, password")
	case has("LOADING", "MASTERDOWN", "max number of clients"):
		return about("addresses")
	case has("CLUSTERDOWN"):
		return about("cluster-require-full-coverage of the engine should be no")
	case errors.As(err, &authority), errors.As(err, &certificate):
		return "tls.ca: " + text
	case errors.As(err, &name):
		return "tls.server_name: " + text
	case has("first record does not look like a TLS"):
		return "tls: the server does not speak TLS: " + text
	case has("tls: "):
		return "tls: " + text
	case has(handshake):
		return fmt.Sprintf("tls: %s in %v (does the server speak TLS?)", text, t.s.Timeout)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return text // the text of password_file
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &network) && network.Timeout():
		return fmt.Sprintf("timeout: no answer in %v (%s)", t.s.Timeout, text)
	case errors.Is(err, syscall.ECONNREFUSED), errors.As(err, new(*net.DNSError)):
		return "addresses: " + text
	case t.s.tls == nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return fmt.Sprintf("addresses: the server closed the connection: %s (does it want tls?)", text)
	case errors.Is(err, io.EOF):
		return "addresses: the server closed the connection"
	}
	return "addresses: " + text
}
