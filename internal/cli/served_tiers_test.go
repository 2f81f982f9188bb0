package cli

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/redistest"
	"github.com/stocached/stocached/source/s3/s3test"
)

// hosts are servers with folders, sockets and segments of their own, over the same records, with the
// settings of a tier `cluster`.
func hosts(t *testing.T, count, samples int, size, tier string) (all []*served) {
	t.Helper()
	records := filepath.Join(t.TempDir(), "records")
	for k := range count {
		s := hostOf(t, size, tier, fmt.Sprintf("kind: raw, path: %q, sample_bytes: %d", records, servedBytes))
		if s.records = records; k == 0 {
			s.write(samples)
		}
		all = append(all, s)
	}
	return all
}

// hostOf is one server with settings of a tier `cluster` and of a source.
func hostOf(t *testing.T, size, tier, source string) *served {
	t.Helper()
	return configureServed(t, fmt.Sprintf("size: %s, parallel: 8, tiers: [{kind: cluster, %s}], source: {%s}", size, tier, source))
}

// on is the key addresses of a tier.
func on(servers ...*redistest.Server) string {
	var all []string
	for _, s := range servers {
		all = append(all, fmt.Sprintf("%q", s.Addr))
	}
	return "addresses: [" + strings.Join(all, ", ") + "]"
}

// reaches waits until the tier of a server has no problems.
func (s *served) reaches() {
	s.t.Helper()
	s.troubles(func(problems string) bool { return !strings.Contains(problems, "tier: ") })
}

// troubles waits until the problems that a server has are the wanted ones.
func (s *served) troubles(wanted func(problems string) bool) {
	s.t.Helper()
	fatal.Until(s.t, "it has the wanted problems", func() bool { return wanted(s.answers("/readyz")) })
}

func (s *served) tier(name string) float64 {
	s.t.Helper()
	return s.metric("stocached_tier_"+name, `cache="pets",kind="cluster",tier="0"`)
}

// Ensure that three servers on one cluster read each sample from the storage once, cold and at the same
// time, also if their segments have no room for all, and that a restarted one reads none. The storage counts.
func TestTierReadsOnce(t *testing.T) {
	const n = 300
	for _, kind := range []string{"raw", "dir"} {
		t.Run(kind, func(t *testing.T) {
			s3test.Environment(t)
			storage := s3test.Fake(t)
			records := make([][]byte, n)
			for i := range records {
				records[i] = servedRecord(i)
				if kind == "dir" {
					storage.Put(t, fmt.Sprintf("data/%04d", i), records[i])
				}
			}
			// A busy machine makes reads slow, which is no reason for second requests here.
			source := fmt.Sprintf("kind: %s, path: 's3://%s/data', remote: {endpoint: %q, hedge: false}", kind, s3test.Bucket, storage.URL)
			if kind == "raw" {
				storage.Put(t, "data", bytes.Join(records, nil))
				source += fmt.Sprintf(", sample_bytes: %d", servedBytes)
			}
			servers := redistest.Cluster(t, 3)
			var all []*served
			for range 3 {
				all = append(all, hostOf(t, "4500kB", on(servers[:2]...)+", timeout: 10s", source))
			}
			readsOnce(t, all, storage, n)
		})
	}
}

// readsOnce reads n samples by all servers at the same time, then again, and after a restart.
func readsOnce(t *testing.T, all []*served, storage *s3test.Server, n int) {
	t.Helper()
	var clients sync.WaitGroup
	for _, s := range all {
		s.start()
		s.reaches()
	}
	storage.Settle()
	requests, sent := storage.Requests.Load(), storage.Bytes.Load() // what the servers' starts took
	want := func(when string) {
		t.Helper()
		storage.Settle()
		if r, b := storage.Requests.Load()-requests, storage.Bytes.Load()-sent; r != int64(n) || b != int64(n*servedBytes) {
			t.Errorf("%s: the storage has sent %d bytes in %d answers, for %d samples of %d bytes", when, b, r, n, servedBytes)
		}
	}
	for k, s := range all {
		for range 2 {
			c := s.dial()
			clients.Go(func() {
				order := rand.Perm(n)
				if k == 0 {
					order = first(n)
				}
				for begin := 0; begin < n; begin += 50 {
					wantSamples(t, c, order[begin:begin+50])
				}
			})
		}
	}
	clients.Wait()
	want("three servers at the same time")
	for _, s := range all {
		s.written("cluster")
	}
	var waits float64
	for _, s := range all {
		waits += s.tier("waits_total")
		wantSamples(t, s.dial(), rand.Perm(n)) // a second epoch, of a cache with room for a part
	}
	want("another epoch")
	all[0].kill()
	all[0].start()
	all[0].reaches()
	wantSamples(t, all[0].dial(), rand.Perm(n))
	want("a server that was killed and is back")
	t.Logf("%v reads waited for another server", waits)
}

// wantSamples is wantFetch for samples of any sizes.
func wantSamples(t *testing.T, c *stocclient.Served, indices []int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	samples, err := c.FetchSamples(ctx, indices)
	if err != nil {
		t.Error(err)
		return
	}
	for k, i := range indices {
		if !bytes.Equal(samples[k], servedRecord(i)) {
			t.Errorf("sample %d came wrong: %d bytes", i, len(samples[k]))
		}
	}
}

// doctor returns what doctor says of the tiers, and how much of it should be changed. The machine may be as it likes.
func (s *served) doctor() (said string, changes int) {
	s.t.Helper()
	out, err := program("doctor", "-c", s.path, "--json").Output()
	for _, one := range decode[[]jsonObject](s.t, string(out)) {
		if one["cache"] == nil {
			continue
		}
		said += fmt.Sprintln(one["where"], one["what"], one["answer"], one["change"])
		if one["change"] != nil {
			changes++
		}
	}
	if changes > 0 && err == nil {
		s.t.Errorf("doctor succeeds, and should change\n%s", said)
	}
	return said, changes
}

// Ensure that doctor has nothing to change on a cluster as docs/spec/tiers.md sets it up, and that stats
// shows the counts of the tier.
func TestTierDoctorAndStats(t *testing.T) {
	s := hosts(t, 1, 100, "all", on(redistest.Cluster(t, 3, "--maxmemory", "100mb")[0]))[0]
	if said, changes := s.doctor(); changes != 0 || strings.Count(said, "noeviction") != 3 || strings.Count(said, "ok, 16384") != 3 ||
		!strings.Contains(said, "alike on all nodes") {
		t.Errorf("%d changes\n%s", changes, said)
	}
	s.start()
	s.reaches()
	wantFetch(t, s.dial(), first(100))
	out, err := program("stats", s.segments+"/pets", "--all", "--sockets", s.sockets).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "cluster: hits 0, misses ") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = program("stats", s.segments+"/pets", "--all", "--sockets", s.sockets, "--json").CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"left_out": false`) || !strings.Contains(string(out), `"poisoned": 0`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// Ensure that wrong settings cost no sample, and that doctor and health say which setting it is and what
// the server answered.
func TestTierBadInput(t *testing.T) {
	tls, ca := redistest.TLS(t)
	_, otherCA := redistest.TLS(t)
	plain, small := redistest.Start(t), redistest.Start(t, "--maxmemory", "2mb")
	fatal.If(t, small.Client().ConfigSet(context.Background(), "maxmemory", "2000").Err())
	secured := redistest.Start(t, append(tls, "--requirepass", "the-password")...)
	dead := redistest.Start(t)
	dead.Kill()
	covering := redistest.Cluster(t, 3, "--cluster-require-full-coverage", "yes")
	const leftOut = "is left out"
	for name, c := range map[string]struct {
		tier string
		want []string // in what doctor prints
		said string   // by health; "": nothing, the tier works all the same
	}{
		"wrong password": {on(secured) + fmt.Sprintf(", password: wrong-one, tls: {ca: %q}", ca),
			[]string{"user, password: the server answered: WRONGPASS"}, leftOut},
		"no password": {on(secured) + fmt.Sprintf(", tls: {ca: %q}", ca),
			[]string{"user, password: the server answered: NOAUTH"}, leftOut},
		"wrong CA": {on(secured) + fmt.Sprintf(", password: the-password, tls: {ca: %q}", otherCA),
			[]string{"tls.ca: ", "unknown authority"}, leftOut},
		"wrong name": {on(secured) + fmt.Sprintf(", password: the-password, tls: {ca: %q, server_name: another}", ca),
			[]string{"tls.server_name: ", "another"}, leftOut},
		"no TLS wanted": {on(plain) + ", tls: {}", []string{"tls: "}, leftOut},
		"TLS wanted":    {on(secured) + ", password: the-password", []string{"tls"}, leftOut},
		"dead":          {on(dead), []string{"addresses: ", "connection refused"}, leftOut},
		"two servers in no cluster": {on(plain, small),
			[]string{"a server that is in no cluster is the only address (addresses)"}, leftOut},
		"no limit": {on(plain), []string{"set maxmemory, or the server takes all memory"}, ""},
		"small":    {on(small), []string{"set more than a sample, which takes 3000 bytes"}, "the tier can hold none; raise maxmemory"},
		"coverage": {on(covering...),
			[]string{"cluster-require-full-coverage", "set no, or one dead node ends all hits"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := hosts(t, 1, 50, "all", c.tier)[0]
			out, err := program("doctor", "-c", s.path).CombinedOutput()
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if err == nil || strings.Contains(string(out), "the-password") || strings.Contains(string(out), "wrong-one") {
				t.Errorf("%v\n%s", err, out)
			}
			s.start()
			wantFetch(t, s.dial(), first(50))
			if c.said == "" {
				s.reaches()
				return
			}
			s.troubles(func(problems string) bool { return strings.Contains(problems, c.said) })
			health, err := program("health", "--sockets", s.sockets).CombinedOutput()
			if err != nil || !strings.Contains(string(health), "cache pets: tiers[0] (cluster): ") ||
				!strings.Contains(string(health), c.said) {
				t.Errorf("%v\n%s", err, health)
			}
		})
	}
	for _, c := range []struct{ tier, want string }{
		{"addresses: []", "tiers[0]: invalid tier: addresses: give host:port"},
		{"addresses: [here]", `"here" is not host:port`},
		{"addresses: ['a:1', 'redis://me:12345@a:1']", "addresses: entry 2 is not host:port; leave out redis://"},
		{"addresses: ['12345@a:1']", "addresses: entry 1 is not host:port"},
		{on(plain) + ", memory: 2000", "memory: 2000 bytes are less than a sample, which takes 3000"},
		{on(plain) + ", timeout: 5", "5 has no unit"},
		{on(plain) + ", timeout: 1us", "timeout: 1µs is less than 10ms"},
		{on(plain) + ", password: 12345", "password"},
		{on(plain) + ", user: me", "user: me needs a password"},
		{on(plain) + ", tls: {ca: /nowhere}", "tls.ca: open /nowhere"},
		{on(plain) + ", tls: {key: a}", "tls.cert and tls.key go together"},
		{on(plain) + ", password_file: /nowhere", "password_file: open /nowhere"},
		{on(plain) + ", colour: red", `tiers[0]: invalid tier: unknown key "colour"`},
		{on(plain) + ", timeout: 16s", "timeout: 16s is more than a quarter of the cache's read_timeout, which is 1m"},
	} {
		s := hosts(t, 1, 50, "all", c.tier)[0]
		out, err := program("serve", "-c", s.path, "--check").CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "12345") {
			t.Errorf("%s: %v, %s", c.tier, err, out)
		}
	}
}

// Ensure that a reload adds and removes tiers, keeps the segment, and refuses a shared tier beside read_ahead without blocks.
func TestTierReload(t *testing.T) {
	r := redistest.Start(t)
	s := hosts(t, 1, 100, "all", on(r))[0]
	tier := fmt.Sprintf("tiers: [{kind: cluster, %s}], ", on(r))
	with, without := s.configuration("", ""), s.configuration(tier, "")
	both := s.configuration("sample_bytes", "read_ahead: {}, sample_bytes")
	change := func(to, wanted string) {
		t.Helper()
		s.configure(to)
		s.hangup(wanted)
	}
	s.start()
	s.reaches()
	c := s.dial()
	wantFetch(t, c, first(40))
	change(without, "in force")
	if n, err := r.Client().DBSize(context.Background()).Result(); err != nil || n < 40 { // written before it was closed
		t.Errorf("%d keys, %v", n, err)
	}
	wantFetch(t, c, first(60))
	if strings.Contains(s.answers("/metrics"), "stocached_tier_") {
		t.Error("the tier is still there")
	}
	change(with, "in force")
	s.reaches()
	wantFetch(t, c, first(100))
	expect.Equal(t, s.tier("misses_total"), 40, "misses")
	change(both, "add blocks: true if the source has blocks, or leave read_ahead out and raise parallel")
	wantFetch(t, c, first(100))
}

// Ensure that serve --check, the log at a start and at a reload, and doctor say which tier stands in the wrong place
// and why, and that they say nothing of the usual order.
func TestTiersInTheWrongOrder(t *testing.T) {
	const advice = "put it before tiers[0] (cluster): after it, each miss asks the network before the local disk"
	cluster, folder := "{kind: cluster, "+on(redistest.Start(t, "--maxmemory", "100mb"))+"}", t.TempDir()
	disk := fmt.Sprintf("{kind: disk, dir: %q, size: 64MiB}", folder)
	s := configureServed(t, fmt.Sprintf("tiers: [%s, %s], source: {kind: raw, path: records, sample_bytes: %d}",
		disk, cluster, servedBytes))
	s.write(10)
	wrong := s.configuration(disk+", "+cluster, cluster+", "+disk)
	says := func(what string, text string, times int, also ...string) {
		t.Helper()
		expect.Equal(t, strings.Count(text, advice), times, "%s says it, in:\n%s", what, text)
		contains(t, text, also...)
	}
	check := func(times int) {
		t.Helper()
		out, err := program("serve", "-c", s.path, "--check").CombinedOutput()
		expect.NoError(t, err)
		says("serve --check", string(out), times, "good, 1 cache")
		said, changes := s.doctor()
		expect.Equal(t, changes, times, "changes")
		says("doctor", said, times)
		if times > 0 {
			contains(t, said, "tiers[1]", "place among the tiers")
		}
	}
	check(0)
	s.start()
	says("the log", s.said(), 0)
	s.configure(wrong)
	check(1)
	s.hangup("is in force")
	says("the log of a reload", s.said(), 1, "tiers[1]")
	s.kill()
	s.start()
	says("the log of another start", s.said(), 2)
	s.reaches()
	wantFetch(t, s.dial(), first(10))
}
