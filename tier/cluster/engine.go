package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// engine is a single server, or a cluster. nil is the engine that is not known: it has no nodes. At any moment the
// tier may learn that its engine is another one, so its methods take nil, and no caller asks first.
type engine struct {
	single  *node
	cluster *redis.ClusterClient
	nodes   sync.Map // *redis.Client -> *node
}

// options are those of a connection to one address.
func (s *settings) options(address string) *redis.Options {
	return &redis.Options{Addr: address, Protocol: 2, CredentialsProviderContext: s.credentials, MaxRetries: -1,
		DialTimeout: s.Timeout, DialerRetries: 1, ReadTimeout: -1, WriteTimeout: -1, ContextTimeoutEnabled: true,
		PoolSize: pipelines + 2, ReadBufferSize: s.buffer, PipelineReadBufferSize: s.buffer, PipelinePoolSize: pipelines + 1,
		DisableIdentity: true, MaintNotificationsConfig: silent()}
}

func silent() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// credentials is for go-redis, at each connection.
func (s *settings) credentials(context.Context) (user, password string, err error) {
	password, err = s.password()
	return s.User, password, err
}

// connect asks the addresses, in their order, what the engine is.
func (t *Tier) connect(ctx context.Context) (*engine, error) {
	var errs []error
	for _, address := range t.s.Addresses {
		e, err := t.connectTo(ctx, address)
		if err == nil {
			return e, nil
		}
		errs = append(errs, fmt.Errorf("%s: %s", address, t.explain(err)))
	}
	return nil, errors.Join(errs...)
}

func (t *Tier) connectTo(ctx context.Context, address string) (*engine, error) {
	limited, cancel := context.WithTimeout(ctx, 2*t.s.Timeout)
	defer cancel()
	one := t.newNode(t.s.options(address))
	_, err := one.client.ClusterSlots(limited).Result() //nolint:staticcheck // Redis 6 has no CLUSTER SHARDS
	switch {
	case err == nil:
		_ = one.client.Close()
	case starts(err, "ERR") && (strings.Contains(err.Error(), "cluster support disabled") ||
		strings.Contains(err.Error(), "unknown command")):
		if len(t.s.Addresses) > 1 {
			_ = one.client.Close()
			return nil, fmt.Errorf("%w; a server that is in no cluster is the only address", err)
		}
		return &engine{single: one}, nil
	default:
		_ = one.client.Close()
		return nil, err
	}
	e := &engine{}
	o := t.s.options("")
	e.cluster = redis.NewClusterClient(&redis.ClusterOptions{Addrs: t.s.Addresses, Protocol: o.Protocol,
		CredentialsProviderContext: t.s.credentials, MaxRetries: -1, MaxRedirects: -1, DialTimeout: o.DialTimeout,
		DialerRetries: 1, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, ContextTimeoutEnabled: true,
		PoolSize: o.PoolSize, ReadBufferSize: o.ReadBufferSize, PipelineReadBufferSize: o.PipelineReadBufferSize,
		PipelinePoolSize: o.PipelinePoolSize, DisableIdentity: true, MaintNotificationsConfig: silent(),
		NewClient: func(o *redis.Options) *redis.Client {
			n := t.newNode(o)
			e.nodes.Store(n.client, n)
			return n.client
		}})
	if _, err := e.cluster.MasterForKey(limited, "x"); err != nil { // reads which node has which keys
		_ = e.cluster.Close()
		return nil, err
	}
	return e, nil
}

// route returns the node that has a key; nil: unknown.
func (e *engine) route(key string) *node {
	if e == nil {
		return nil
	}
	n := e.single
	if n == nil {
		client, err := e.cluster.MasterForKey(context.Background(), key) // it knows, and does not ask
		if err != nil {
			return nil
		}
		found, ok := e.nodes.Load(client)
		if !ok {
			return nil
		}
		n = found.(*node)
	}
	if !n.used.Load() {
		n.used.Store(true)
	}
	return n
}

// all returns the nodes that samples belong to.
func (e *engine) all() (nodes []*node) {
	if e == nil {
		return nil
	}
	if e.single != nil {
		return []*node{e.single}
	}
	e.nodes.Range(func(_, n any) bool {
		if n.(*node).used.Load() {
			nodes = append(nodes, n.(*node))
		}
		return true
	})
	return nodes
}

func (e *engine) close() error {
	if e == nil {
		return nil
	}
	if e.single != nil {
		return e.single.client.Close()
	}
	return e.cluster.Close()
}
