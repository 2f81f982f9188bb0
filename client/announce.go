package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/order"
)

// Plan is what a job reads through one Served: the rest of an epoch from Shard.From on, and then the next
// epochs of the same order.
type Plan struct {
	Order order.Order // order of the samples of the cache
	Epoch uint64
	Shard order.Shard // what this process reads; From is where it is now
	Batch int         // samples that it reads at a time; 0: 1
}

// Announce tells the server what this job reads from now on, in place of what it announced before. A
// cache with the policy planned keeps what all jobs read soonest, and the server reads it ahead. Announce
// again when the order changes, or when the job reads other samples through this Served, because each hit
// and miss counts as a read of the plan. Withdraw ends it.
//
// used says whether the cache has this policy. After an error of the connection, and whenever another
// server takes over, the next connection announces the plan by itself. Errors: *RemoteError with CodeInvalid
// for an order that is not one of this cache; ErrReadOnly; ErrNoServer after a second, ErrReplaced, ErrClosed
// and the cause of ctx.
func (s *Served) Announce(ctx context.Context, p Plan) (used bool, err error) {
	if s.c.ReadOnly() {
		return false, fmt.Errorf("%w: its reads are not counted, so the server cannot follow them; attach with write "+
			"permission on the cache", ErrReadOnly)
	}
	return s.announce(ctx, &control.AnnounceBody{Owner: s.c.Owner(), Kind: uint32(p.Order.Kind),
		Ends: uint32(p.Shard.Ends), Seed: p.Order.Seed, Window: p.Order.Window, Block: p.Order.Block, Epoch: p.Epoch,
		Position: p.Shard.From, Rank: p.Shard.Rank, Ranks: max(p.Shard.Ranks, 1), Samples: p.Order.Samples,
		Reads: s.c.Reads(), Batch: uint32(min(max(p.Batch, 1), control.MaxIndices))})
}

// Withdraw tells the server that the job is over. The end of the connection does so too. It returns the
// errors of Announce.
func (s *Served) Withdraw(ctx context.Context) error {
	_, err := s.announce(ctx, &control.AnnounceBody{Owner: s.c.Owner(), Flags: control.Withdraw})
	return err
}

func (s *Served) announce(ctx context.Context, m *control.AnnounceBody) (used bool, err error) {
	select {
	case s.link.mu <- struct{}{}:
		if s.link.plan = m; m.Flags == control.Withdraw {
			s.link.plan = nil
		}
		<-s.link.mu
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	for breaks := 1; ; breaks++ {
		c, err := s.link.connection(ctx, min(s.link.timeout, announceWait))
		if err != nil {
			return false, err
		}
		p, err := c.exchange(ctx, &pending{done: make(chan struct{})},
			func(id uint64) []byte { return c.announcement(id, m) })
		if remote := (*RemoteError)(nil); errors.As(err, &remote) && remote.Code == control.CodeClosing {
			c.die(remote)
			err = endedBy(remote)
		}
		if err == nil {
			return p.used, nil
		}
		if !errors.Is(err, errEnded) || breaks == fetchBreaks {
			return false, err
		}
	}
}

// announcement is the frame of a plan.
func (c *conn) announcement(id uint64, m *control.AnnounceBody) []byte {
	own := *m
	own.Cache = c.cache
	return control.AppendAnnounce(nil, id, own)
}
