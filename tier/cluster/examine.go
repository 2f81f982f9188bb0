package cluster

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
)

// leastVersion is the oldest engine that the tests know to work.
const leastVersion = 6

// Examine asks each server of the engine for its settings.
func Examine(ctx context.Context, from source.Settings, about tier.About) (all []tier.Finding, err error) {
	t, err := open(from, about)
	if err != nil {
		return nil, err
	}
	defer t.stop()
	addresses := map[string]bool{}
	var found []string
	add := func(a string) {
		if !addresses[a] {
			addresses[a] = true
			found = append(found, a)
		}
	}
	for _, a := range t.s.Addresses {
		add(a)
	}
	for k := 0; k < len(found); k++ { // found grows by the nodes of a cluster
		one, nodes := t.examine(ctx, found[k])
		all = append(all, one...)
		for _, a := range nodes {
			add(a)
		}
	}
	if e, err := t.connect(ctx); err == nil {
		t.engine.Store(e)
		defer e.close()
		answer, change := "alike on all nodes", t.otherFingerprints()
		if change != "" {
			answer = "other ones"
		}
		all = append(all, tier.Finding{Where: strings.Join(t.s.Addresses, ", "), What: "fingerprints of the cache",
			Answer: answer, Change: change})
	}
	return all, nil
}

// examine asks one server, and returns the addresses of the nodes of its cluster.
func (t *Tier) examine(ctx context.Context, address string) (all []tier.Finding, nodes []string) {
	add := func(what, answer, change string) {
		all = append(all, tier.Finding{Where: address, What: what, Answer: answer, Change: change})
	}
	n := t.newNode(t.s.options(address))
	defer n.client.Close()
	ctx, cancel := context.WithTimeout(ctx, 4*t.s.Timeout+time.Second)
	defer cancel()
	began := time.Now()
	if err := n.client.Ping(ctx).Err(); err != nil {
		add("answers", "no", t.explain(err))
		return all, nil
	}
	add("answers", "in "+time.Since(began).Round(10*time.Microsecond).String(), "")
	info, err := n.ask(ctx, "info")
	if err != nil {
		add("INFO", "no", "allow the user INFO: "+t.explain(err))
		return all, nil
	}
	version := field(info, "redis_version")
	if v := field(info, "valkey_version"); v != "" {
		version = "valkey " + v
	}
	change := ""
	if major, _, _ := strings.Cut(field(info, "redis_version"), "."); number(major) < leastVersion {
		change = fmt.Sprintf("use version %d or later", leastVersion)
	}
	add("version", version, change)
	t.examineMemory(add, info)
	t.examineSaving(ctx, n, add)
	switch {
	case field(info, "cluster_enabled") == "1":
		add("cluster", "yes", "")
		nodes = t.examineCluster(ctx, n, add)
	case len(t.s.Addresses) > 1:
		add("cluster", "no", "a server that is in no cluster is the only address (addresses)")
	default:
		add("cluster", "no", "")
	}
	return all, nodes
}

// text is a command whose answer is a text of many lines, in memory of ours.
func text(ctx context.Context, command ...any) (c *redis.ZeroCopyStringCmd, answer func() string) {
	buffer := make([]byte, mostText)
	c = redis.NewZeroCopyStringCmd(ctx, buffer, command...)
	return c, func() string { return string(buffer[:c.Val()]) }
}

// ask sends a command that text makes.
func (n *node) ask(ctx context.Context, command ...any) (string, error) {
	c, answer := text(ctx, command...)
	if err := n.client.Process(ctx, c); err != nil {
		return "", err
	}
	return answer(), nil
}

func number(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

func (t *Tier) examineMemory(add func(what, answer, change string), info string) {
	most, sample, change := number(field(info, "maxmemory")), t.about.Info.Schema.SampleBytes, ""
	switch {
	case most == 0:
		change = "set maxmemory, or the server takes all memory of its machine"
	case tooSmall("", most, sample) != "":
		change = fmt.Sprintf("set more than a sample, which takes %s", size.Text(sample))
	}
	answer := size.Text(most)
	if most == 0 {
		answer = "no limit"
	}
	add("maxmemory", answer, change)
	policy := field(info, "maxmemory_policy")
	change = ""
	if policy != "noeviction" {
		change = "set noeviction: it hits most with random orders"
	}
	add("maxmemory-policy", policy, change)
}

// setting asks for one setting. Managed services refuse that.
func (n *node) setting(ctx context.Context, name string) (value string, known bool) {
	answer, err := n.client.ConfigGet(ctx, name).Result()
	value, known = answer[name]
	return value, known && err == nil
}

func (t *Tier) examineSaving(ctx context.Context, n *node, add func(what, answer, change string)) {
	for name, off := range map[string]string{"save": "", "appendonly": "no"} {
		value, known := n.setting(ctx, name)
		change := ""
		if known && value != off {
			change = fmt.Sprintf("set %s %q: the data is in the source", name, off)
		}
		if known {
			add(name, fmt.Sprintf("%q", value), change)
		}
	}
}

func (t *Tier) examineCluster(ctx context.Context, n *node, add func(what, answer, change string)) (nodes []string) {
	switch value, known := n.setting(ctx, "cluster-require-full-coverage"); {
	case !known:
		add("cluster-require-full-coverage", "the server does not say", "")
	case value != "no":
		add("cluster-require-full-coverage", value, "set no, or one dead node ends all hits")
	default:
		add("cluster-require-full-coverage", value, "")
	}
	state, err := n.ask(ctx, "cluster", "info")
	if err == nil {
		change := ""
		if field(state, "cluster_state") != "ok" || field(state, "cluster_slots_assigned") != "16384" {
			change = "bring its other nodes back, or form the cluster again (redis-cli --cluster fix)"
		}
		add("cluster_state", fmt.Sprintf("%s, %s of 16384 slots", field(state, "cluster_state"),
			field(state, "cluster_slots_assigned")), change)
	}
	slots, err := n.client.ClusterSlots(ctx).Result() //nolint:staticcheck // Redis 6 has no CLUSTER SHARDS
	if err != nil {
		add("CLUSTER SLOTS", "no", t.explain(err))
		return nil
	}
	for _, s := range slots {
		if len(s.Nodes) > 0 && !strings.HasPrefix(s.Nodes[0].Addr, ":") {
			nodes = append(nodes, s.Nodes[0].Addr)
		}
	}
	return nodes
}
