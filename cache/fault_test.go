//go:build faultpoints

package cache_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	"github.com/stocached/stocached/internal/fault"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

const faultBytes = 5000

// faultSegments are the caches in which processes die: few slots, and an arena.
var faultSegments = map[string]shm.Options{
	"first-come":    {Samples: 12, Slots: 6, SampleBytes: faultBytes, ClientRecords: 8},
	"first-indices": {Samples: 12, Slots: 6, SampleBytes: faultBytes, ClientRecords: 8, Policy: shm.PolicyFirstIndices},
	"arena": {Samples: 12, SampleBytes: faultBytes, ClientRecords: 8, Variable: true,
		Limit: 4<<20 + 4<<10 + 40*shm.UnitBytes*64},
}

// death is a way to die: the command for a child, and the fault points on its way.
type death struct {
	name     string
	tell     string
	points   []string
	segments []string // "": all
}

var (
	anyCache  = []string{"first-come", "first-indices", "arena"}
	slotPath  = []string{"slot.intent", "slot.taken", "slot.named"}
	evictPath = []string{"evict.listed", "evict.retired", "evict.moved", "evict.emptied", "evict.unlisted"}
	extent    = []string{"extent.intent", "extent.taken", "extent.named"}
	fillPath  = []string{"claim.entry", "claim.phase", "claim.word", "write.half", "write.done", "publish.meta",
		"publish.word", "publish.entry"}
	abortPath = []string{"abort.word", "abort.entry"}
	clearPath = []string{"clear.phase", "clear.drained", "clear.index", "clear.index@2", "clear.cursors", "clear.open"}
)

// Before, sample 1 is READY with version 0; sample 3 is not. In an arena 3 is set short, so that an
// overwrite needs more.
var deaths = []death{
	{"set", "set 3 1 5000", fillPath, anyCache},
	{"set", "set 3 1 5000", slotPath, []string{"first-come"}},
	{"set", "set 3 1 5000", extent, []string{"arena"}},
	{"overwrite", "overwrite 1 1 5000", fillPath, anyCache},
	{"overwrite with a larger one", "overwrite 1 1 5000", extent, []string{"arena"}},
	{"abort", "abort", abortPath, anyCache},
	{"abort", "abort", []string{"abort.slot", "abort.cursor"}, []string{"first-come"}},
	{"clear", "clear", clearPath, anyCache},
	{"register", "", []string{"register.locked", "register.done"}, anyCache},
	{"reclaim at registration", "", []string{"reclaim.word", "reclaim.entry"}, anyCache},
	{"reclaim at registration", "", []string{"reclaim.slot", "reclaim.cursor"}, []string{"first-come"}},
	{"reclaim in a set", "set 3 1 5000", []string{"reclaim.word", "reclaim.entry"}, anyCache},
	{"reclaim in a set", "set 3 1 5000", []string{"reclaim.slot", "reclaim.cursor"}, []string{"first-come"}},
	{"reclaim in recover", "recover", []string{"reclaim.word", "reclaim.entry"}, anyCache},
	{"reclaim in a clear", "clear", []string{"reclaim.word", "reclaim.entry"}, anyCache},
}

// The table has each fault point of docs/spec/protocol.md, so that no new one is forgotten.
func TestEveryFaultPointIsTested(t *testing.T) {
	var text []byte
	for _, name := range []string{"protocol", "eviction"} {
		part := fatal.Value(os.ReadFile("../docs/spec/" + name + ".md"))(t)
		text = append(text, part...)
	}
	known := map[string]bool{}
	for _, d := range deaths {
		for _, p := range d.points {
			point, _, _ := strings.Cut(p, "@")
			known[point] = true
		}
	}
	for _, p := range append(evictPath, "reclaim.victim") { // TestKilledInAnEviction
		known[p] = true
	}
	found := 0
	for k, part := range strings.Split(string(text), "`") {
		noun, verb, ok := strings.Cut(part, ".")
		if k%2 == 0 || !ok || strings.ContainsAny(part, " /()*=") || !slices.Contains([]string{"register", "reclaim", "claim", "evict", "slot", "extent", "write", "publish", "abort", "clear"}, noun) {
			continue
		}
		found++
		if !known[noun+"."+verb] {
			t.Errorf("no process dies at %q", part)
		}
	}
	if found < 35 {
		t.Errorf("found only %d fault points in the document", found)
	}
}

// A kill at any step of any operation leaves no torn read and no damage. READY samples that the
// process could not change stay. The next client gets its number and can
// set the sample. No slot is lost, and no claim is left.
func TestKilledAtEveryStep(t *testing.T) {
	for _, d := range deaths {
		for _, kind := range d.segments {
			for _, point := range d.points {
				t.Run(fmt.Sprintf("%s at %s in %s", d.name, point, kind), func(t *testing.T) { dieAt(t, d, kind, point) })
			}
		}
	}
}

func dieAt(t *testing.T, d death, kind, point string) {
	o := faultSegments[kind]
	seg := named(t, o)
	observer := attach(t, seg)
	short := faultBytes
	if o.Variable {
		short = 200
	}
	set(t, observer, 0, payload(0, 0, faultBytes), 0, cache.Stored)
	set(t, observer, 1, payload(1, 0, short), 0, cache.Stored)

	// A reader reads the sample all the time, and must get a complete version.
	versions := map[int][]string{0: {string(payload(0, 0, faultBytes))}, 1: {string(payload(1, 0, short)), string(payload(1, 1, faultBytes)), string(payload(1, 2, faultBytes))},
		3: {string(payload(3, 1, faultBytes)), string(payload(3, 2, faultBytes))}}
	stopReaders := readAllTheTime(t, observer, versions)
	defer stopReaders()

	// The death.
	var dead *child
	reclaims := strings.HasPrefix(d.name, "reclaim")
	if reclaims { // it takes back the claim of a process that died before
		bystander := start(t, seg.Path(), "") // has the lower number
		first := start(t, seg.Path(), "")
		if d.name == "reclaim at registration" {
			first.ask("STORED <nil>", "claim 3 1 %d", faultBytes)
			first.kill()
			dead = start(t, seg.Path(), point+"=kill")
		} else {
			dead = start(t, seg.Path(), point+"=kill")
			first.ask("STORED <nil>", "claim 3 1 %d", faultBytes)
			first.kill()
			dead.tell("%s", d.tell)
		}
		_ = bystander
	} else {
		dead = start(t, seg.Path(), point+"=kill")
		if d.name == "abort" {
			dead.ask("STORED <nil>", "claim 3 1 %d", faultBytes)
		}
		if d.tell != "" {
			dead.tell("%s", d.tell)
		}
	}
	dead.died()

	// The next client gets the number of the dead one, and sets the sample.
	next := fatal.Value(cache.Attach(seg, cache.Options{Label: "next"}))(t)
	defer next.Close()
	if dead.owner != 0 && !reclaims && int(next.Owner()) != dead.owner {
		t.Errorf("the next client has number %d, the dead one had %d", next.Owner(), dead.owner)
	}
	target := 3
	if strings.HasPrefix(d.name, "overwrite") {
		target = 1
	}
	r, err := next.Set(target, payload(target, 2, faultBytes), 0)
	published := slices.Contains([]string{"publish.word", "publish.entry"}, point)
	unclaimed := d.name == "overwrite" && slices.Contains([]string{"claim.entry", "claim.phase"}, point)
	switch {
	case err != nil:
		t.Errorf("the next set: %v", err)
	case published || unclaimed:
		expect.Equal(t, r, cache.Exists, "the next set of a sample that is READY")
	case r != cache.Stored:
		t.Errorf("the next set: %v", r)
	}
	want := payload(target, 2, faultBytes)
	if published {
		want = payload(target, 1, faultBytes)
	} else if unclaimed {
		want = payload(1, 0, short)
	}
	wantSample(t, next, target, want)
	cleared := strings.HasSuffix(d.tell, "clear") && !slices.Contains([]string{"reclaim.word", "reclaim.entry"}, point) || d.name == "reclaim in a clear"
	if cleared {
		wantMiss(t, next, 0)
		wantMiss(t, next, 1)
	} else {
		wantSample(t, next, 0, payload(0, 0, faultBytes))
	}
	stopReaders()

	// No claim is left and no slot is lost: the cache can be filled to the last slot.
	expect.Works(next.Recover())(t)
	checkSound(t, seg)
	s := stats(t, next)
	if lost := lostUnits(seg) * shm.UnitBytes; s.ArenaLostBytes != lost || s.Corrupt != 0 || s.Lost != 0 {
		t.Errorf("%d bytes of the arena are lost, stats are %+v", lost, s)
	}
	if wants := point == "claim.word" || point == "extent.intent" || point == "slot.taken" || point == "write.half" || point == "publish.meta"; wants && s.Recovered != 1 {
		t.Errorf("%d claims were reclaimed, want 1", s.Recovered)
	}
	for i := range int(seg.Samples) {
		if r, err := next.Set(i, payload(i, 9, faultBytes), 0); err != nil || r == cache.Busy {
			t.Errorf("filling up, set %d: %v, %v", i, r, err)
		}
	}
	full := int(seg.Slots)
	if seg.Variable() {
		full = int(seg.Samples) // all samples fit, whatever one death loses
	}
	expect.Equal(t, stats(t, next).Ready, uint64(full), "samples after all fills, of %d", full)
	checkSound(t, seg)
	if v, err := next.Verify(0, int(seg.Samples)); err != nil || v.Corrupt != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	expect.Gives(observer.Clear(t.Context()))(t, cache.Stored)
	checkSound(t, seg)
}

// readAllTheTime has a goroutine get samples until the returned function is called. Each hit must be
// one of the sample's complete versions.
func readAllTheTime(t *testing.T, c *cache.Cache, versions map[int][]string) (stop func()) {
	end := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		buffer := make([]byte, faultBytes)
		for {
			for i, whole := range versions {
				n, hit, err := c.Get(i, buffer)
				if err != nil || hit && !slices.Contains(whole, string(buffer[:n])) {
					t.Errorf("get %d: torn after %d bytes, %v", i, n, err)
					return
				}
			}
			select {
			case <-end:
				return
			default:
				time.Sleep(20 * time.Microsecond)
			}
		}
	})
	return sync.OnceFunc(func() { close(end); reader.Wait() })
}

// A kill at any step of an eviction loses at most the victim. The victim is READY again if the kill
// came before its slot had moved. No slot is lost, no sample stays RETIRING, and no copy is torn.
func TestKilledInAnEviction(t *testing.T) {
	for _, reclaims := range []string{"", "set", "recover", "registration", "clear"} {
		for _, point := range evictPath {
			name := point
			if reclaims != "" {
				if name += ", and again while it is reclaimed in a " + reclaims; point != "evict.retired" && point != "evict.moved" {
					continue // nothing is RETIRING
				}
			}
			t.Run(name, func(t *testing.T) { dieEvicting(t, point, reclaims) })
		}
	}
}

// A kill at any step of a set that evicts from chains loses at most the victims. No slot is lost, no
// sample stays claimed, and no copy is torn. A kill while the claims are reclaimed changes nothing.
func TestKilledInAChain(t *testing.T) {
	for _, point := range []string{"claim.entry", "claim.phase", "claim.word", "evict.listed", "evict.listed@2",
		"evict.retired", "evict.retired@2", "abort.slot", "abort.slot@3", "abort.slot@4", "abort.slot@6",
		"abort.cursor", "abort.cursor@3", "abort.cursor@4", "evict.emptied", "evict.emptied@2",
		"evict.unlisted", "evict.unlisted@2",
		"slot.intent", "slot.intent@2", "slot.intent@5", "slot.taken", "slot.taken@2", "slot.taken@8", "slot.named",
		"write.half", "write.done", "publish.meta", "publish.word", "publish.entry"} {
		t.Run(point, func(t *testing.T) { dieInAChain(t, point, "", "") })
	}
	for _, reclaims := range []string{"set", "recover", "registration", "clear"} {
		for _, first := range []string{"abort.slot@2", "evict.retired@2", "slot.intent@5", "slot.taken@7",
			"slot.named"} {
			for _, point := range []string{"reclaim.slot", "reclaim.slot@2", "reclaim.cursor", "reclaim.cursor@2",
				"reclaim.word", "reclaim.entry"} {
				t.Run(fmt.Sprintf("%s, and at %s in a %s", first, point, reclaims), func(t *testing.T) {
					dieInAChain(t, first, reclaims, point)
				})
			}
		}
	}
}

func dieInAChain(t *testing.T, point, reclaims, again string) {
	seg := named(t, chained(t, shm.PolicyFIFO, 12, 16, 256))
	observer := attach(t, seg)
	length := func(i int) int { return 1000 + 100*(i/4) }
	for i := range 4 { // four slots each
		set(t, observer, i, payload(i, 0, length(i)), 0, cache.Stored)
	}
	versions := map[int][]string{7: {string(payload(7, 1, 1900)), string(payload(7, 1, length(7)))}}
	for i := range 12 {
		versions[i] = append(versions[i], string(payload(i, evictVersion(i), length(i))))
	}
	stopReader := readAllTheTime(t, observer, versions)
	defer stopReader()

	dieTwice(t, seg, "set 7 1 1900", point, reclaims, again) // eight slots: evicts two samples

	next := attach(t, seg)
	expect.Works(next.Recover())(t)
	published := point == "publish.word" || point == "publish.entry"
	switch {
	case reclaims == "clear": // the next claimant finishes it
		set(t, next, 11, payload(11, 1, length(11)), 0, cache.Stored)
		wantMiss(t, next, 0)
	case published:
		wantSample(t, next, 7, payload(7, 1, 1900))
	default:
		wantMiss(t, next, 7)
	}
	if ready := stats(t, next).Ready; reclaims != "clear" && ready < 2 {
		t.Errorf("%d samples are left", ready)
	}
	checkSound(t, seg)
	for i := range 12 {
		if r, err := next.Set(i, payload(i, evictVersion(i), length(i)), 0); err != nil || r != cache.Stored &&
			r != cache.Exists {
			t.Errorf("set %d: %v, %v", i, r, err)
		}
	}
	stopReader()
	if s := stats(t, next); s.Corrupt != 0 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
	checkSound(t, seg)
}

// evictVersion is the version of a sample in the tests of evictions: the first 4 are there before.
func evictVersion(sample int) int {
	if sample < 4 {
		return 0
	}
	return 1
}

// dieTwice runs a set in a process that is killed at a fault point. If reclaims names one of registration,
// set, recover and clear, a second process reclaims in it, and is killed at the point again.
func dieTwice(t *testing.T, seg *shm.Segment, order, point, reclaims, again string) {
	t.Helper()
	start(t, seg.Path(), "") // has the lowest number, and lives
	dead := start(t, seg.Path(), point+"=kill")
	var second *child
	if reclaims != "" && reclaims != "registration" {
		second = start(t, seg.Path(), again+"=kill")
	}
	dead.tell("%s", order)
	dead.died()
	switch reclaims {
	case "":
		return
	case "registration":
		second = start(t, seg.Path(), again+"=kill")
	case "set":
		second.tell("%s", order)
	default:
		second.tell("%s", reclaims)
	}
	second.died()
}

func dieEvicting(t *testing.T, point, reclaims string) {
	seg := named(t, evicting)
	observer := attach(t, seg)
	for i := range 4 {
		set(t, observer, i, payload(i, 0, evictBytes), 0, cache.Stored)
	}
	versions := map[int][]string{}
	for i := range 12 {
		versions[i] = []string{string(payload(i, evictVersion(i), evictBytes))}
	}
	stopReader := readAllTheTime(t, observer, versions)
	defer stopReader()

	// The set evicts sample 0.
	dieTwice(t, seg, fmt.Sprintf("set 7 1 %d", evictBytes), point, reclaims, "reclaim.victim")

	next := attach(t, seg)
	expect.Works(next.Recover())(t)
	if reclaims == "clear" { // the next claimant finishes it
		set(t, next, 11, payload(11, 1, evictBytes), 0, cache.Stored)
		wantMiss(t, next, 0)
	} else if kept := point == "evict.listed" || point == "evict.retired"; kept {
		wantSample(t, next, 0, payload(0, 0, evictBytes))
	} else {
		wantMiss(t, next, 0)
	}
	wantMiss(t, next, 7)
	checkSound(t, seg)
	set(t, next, 7, payload(7, 1, evictBytes), 0, cache.Stored)
	wantSample(t, next, 7, payload(7, 1, evictBytes))
	for i := range 12 {
		if r, err := next.Set(i, payload(i, evictVersion(i), evictBytes), 0); err != nil || r != cache.Stored && r != cache.Exists {
			t.Errorf("set %d: %v, %v", i, r, err)
		}
	}
	stopReader()
	checkSound(t, seg)
	if s := stats(t, next); s.Ready != 4 || s.Corrupt != 0 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

// lostUnits counts the allocated units of an arena that no sample names.
func lostUnits(seg *shm.Segment) uint64 {
	if !seg.Variable() {
		return 0
	}
	used := make([]bool, shm.ArenaNext(seg.ArenaNext().Load()).Unit())
	for i := range seg.Samples {
		if place := seg.WordLayout().Place(shm.Word(seg.Word(i).Load())); place != 0 {
			for u := range shm.UnitsFor(seg.Length(shm.Meta(seg.Meta(i).Load()))) {
				used[place-1+u] = true
			}
		}
	}
	lost := uint64(0)
	for _, u := range used {
		if !u {
			lost++
		}
	}
	return lost
}

// The intent leads to an extent that was taken but not named, and it is used again. Only if another
// allocation followed, it is lost and counted.
func TestExtentOfTheDead(t *testing.T) {
	for _, followed := range []bool{false, true} {
		seg := named(t, faultSegments["arena"])
		c := attach(t, seg)
		p := start(t, seg.Path(), "extent.taken=kill")
		p.tell("set 3 1 %d", faultBytes)
		p.died()
		if followed {
			set(t, c, 5, payload(5, 0, 64), 0, cache.Stored)
		}
		set(t, c, 3, payload(3, 2, faultBytes), 0, cache.Stored)
		wantSample(t, c, 3, payload(3, 2, faultBytes))
		s, units := stats(t, c), shm.UnitsFor(faultBytes)
		want, lost := units, uint64(0)
		if followed {
			want, lost = 2*units+1, units
		}
		if s.ArenaNextBytes != want*shm.UnitBytes || s.ArenaLostBytes != lost*shm.UnitBytes {
			t.Errorf("followed %v: %d bytes allocated, %d lost; want %d and %d units", followed, s.ArenaNextBytes, s.ArenaLostBytes, want, lost)
		}
		checkSound(t, seg)
		fatal.Gives(c.Clear(t.Context()))(t, cache.Stored)
		if s := stats(t, c); s.ArenaNextBytes != 0 || s.ArenaLostBytes != 0 {
			t.Errorf("after a clear: %+v", s)
		}
	}
}

// A stopped writer keeps its claim. All others continue, and it publishes when it continues.
func TestStoppedWriter(t *testing.T) {
	for kind, o := range faultSegments {
		for _, point := range []string{"claim.word", "write.half", "publish.meta"} {
			t.Run(point+" in "+kind, func(t *testing.T) {
				seg := named(t, o)
				c := attach(t, seg)
				set(t, c, 1, payload(1, 0, faultBytes), 0, cache.Stored)
				p := start(t, seg.Path(), point+"=stop")
				p.tell("set 3 1 %d", faultBytes)
				p.stopped()
				for range 50 {
					set(t, c, 3, payload(3, 2, faultBytes), 0, cache.Busy)
					set(t, c, 3, payload(3, 2, faultBytes), cache.Overwrite, cache.Busy)
				}
				expect.Gives(c.Recover())(t, 0)
				next := fatal.Value(cache.Attach(seg, cache.Options{}))(t)
				defer next.Close()
				if int(next.Owner()) == p.owner {
					t.Error("a stopped client's number was given to another")
				}
				set(t, next, 4, payload(4, 0, faultBytes), 0, cache.Stored)
				if state, _ := c.State(3); state != cache.StateWriting {
					t.Errorf("sample 3 is %v", state)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				expect.Fails(c.Clear(ctx))(t, shm.ErrTimeout)
				p.signal(syscall.SIGCONT)
				expect.Equal(t, p.hear(), "STORED <nil>", "the stopped writer")
				for i, version := range map[int]int{1: 0, 3: 1, 4: 0} {
					wantSample(t, c, i, payload(i, version, faultBytes))
				}
				if s := stats(t, c); s.Lost != 0 || s.Recovered != 0 {
					t.Errorf("%+v", s)
				}
				p.kill()
				checkSound(t, seg)
			})
		}
	}
}

// A client that is stopped between its claim entry and the load of the phase withdraws when it
// continues during a clear. The clear waits for it.
func TestClaimantStoppedUnderAClear(t *testing.T) {
	seg := named(t, faultSegments["first-come"])
	c := attach(t, seg)
	set(t, c, 1, payload(1, 0, faultBytes), 0, cache.Stored)
	p := start(t, seg.Path(), "claim.entry=stop")
	p.tell("set 3 1 %d", faultBytes)
	p.stopped()
	cleared := make(chan string)
	go func() {
		r, err := c.Clear(t.Context())
		cleared <- fmt.Sprint(r, " ", err)
	}()
	for !shm.Phase(seg.Phase().Load()).Clearing() {
		time.Sleep(time.Millisecond)
	}
	select {
	case r := <-cleared:
		t.Errorf("a clear did not wait for a claim entry of a live client: %s", r)
	case <-time.After(30 * time.Millisecond):
	}
	p.signal(syscall.SIGCONT)
	expect.Equal(t, p.hear(), "BUSY <nil>", "the claimant")
	expect.Equal(t, <-cleared, "STORED <nil>", "the clear")
	wantMiss(t, c, 1)
	p.kill()
	checkSound(t, seg)
}

// A client that cannot finish an unfinished clear does not open the cache: the clear has no owner
// until the live claim has ended.
func TestAdoptedClearThatCannotEnd(t *testing.T) {
	seg := named(t, faultSegments["first-come"])
	c := attach(t, seg)
	for i := range 6 {
		set(t, c, i, payload(i, 0, faultBytes), 0, cache.Stored)
	}
	clearer := start(t, seg.Path(), "clear.index@3=kill")
	stopped := start(t, seg.Path(), "claim.entry=stop")
	clearer.tell("clear")
	clearer.died()
	stopped.tell("set 9 1 %d", faultBytes) // finds the cache half cleared, lists its claim, and stops before it loads the phase
	stopped.stopped()
	set(t, c, 8, payload(8, 0, faultBytes), 0, cache.Busy)
	if p := shm.Phase(seg.Phase().Load()); !p.Clearing() || p.Owner() != 0 {
		t.Errorf("phase %#x: the clear should have no owner", p)
	}
	next, err := cache.Attach(seg, cache.Options{}) // gets the number of the dead clearer
	fatal.If(t, err)
	defer next.Close()
	set(t, next, 8, payload(8, 0, faultBytes), 0, cache.Busy)
	stopped.signal(syscall.SIGCONT)
	if answer := stopped.hear(); answer != "STORED <nil>" { // it finished the clear itself and started again
		t.Errorf("the claimant got %q", answer)
	}
	set(t, c, 8, payload(8, 0, faultBytes), 0, cache.Stored)
	for i := range 6 {
		wantMiss(t, c, i)
	}
	if s := stats(t, c); s.Clears != 1 || s.Ready != 2 {
		t.Errorf("%+v", s)
	}
	stopped.kill()
	checkSound(t, seg)
}

// The number of a client that died in a clear goes to a client that only reads. The clear must not
// look like that of a live client for ever.
func TestDeadClearersNumberGoesToAReader(t *testing.T) {
	for _, point := range clearPath[:5] {
		seg := named(t, faultSegments["first-come"])
		c := attach(t, seg)
		for i := range 6 {
			set(t, c, i, payload(i, 0, faultBytes), 0, cache.Stored)
		}
		clearer := start(t, seg.Path(), point+"=kill")
		clearer.tell("clear")
		clearer.died()
		if reader := start(t, seg.Path(), ""); reader.owner != clearer.owner {
			t.Fatalf("the reader has number %d, the dead clearer had %d", reader.owner, clearer.owner)
		}
		if p := shm.Phase(seg.Phase().Load()); int(p.Owner()) == clearer.owner {
			t.Errorf("%s: the clear still is client %d's, who lives and knows nothing of it", point, p.Owner())
		}
		set(t, c, 9, payload(9, 0, faultBytes), 0, cache.Stored)
		if s := stats(t, c); s.Clears != 1 || s.Ready != 1 {
			t.Errorf("%s: %+v", point, s)
		}
		checkSound(t, seg)
	}
}

// hold stops the first n goroutines that reach a fault point, and announces each. release lets them
// continue.
func hold(t *testing.T, point string, n int) (arrived chan struct{}, release func()) {
	arrived = make(chan struct{}, 100)
	gate := make(chan struct{})
	var left atomic.Int64
	left.Store(int64(n))
	fault.SetHook(func(p string) {
		if p == point {
			stays := left.Add(-1) >= 0 // before the announcement, or a goroutine that hears of it could stop here instead
			arrived <- struct{}{}
			if stays {
				<-gate
			}
		}
	})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(func() { release(); fault.SetHook(nil) })
	return arrived, release
}

// A client that loses the race for a sample to a client that has published gets Exists, and may
// still overwrite it.
func TestLostRace(t *testing.T) {
	for _, overwrite := range []bool{false, true} {
		seg := mapped(t, faultSegments["first-come"])
		a, b := attach(t, seg), attach(t, seg)
		arrived, release := hold(t, "claim.phase", 1)
		answer := make(chan string)
		go func() {
			r, err := a.Set(3, payload(3, 0, faultBytes), map[bool]cache.Flags{true: cache.Overwrite}[overwrite])
			answer <- fmt.Sprint(r, " ", err)
		}()
		<-arrived
		set(t, b, 3, payload(3, 1, faultBytes), 0, cache.Stored)
		release()
		want, version := "EXISTS <nil>", 1
		if overwrite {
			want, version = "STORED <nil>", 0
		}
		expect.Equal(t, <-answer, want, "overwrite %v", overwrite)
		wantSample(t, a, 3, payload(3, version, faultBytes))
		fault.SetHook(nil)
		checkSound(t, seg)
	}
}

// Only one goroutine of a client at a time is between an extent's intent and its name: after a
// death, two intents that end at the same unit could not be told apart.
func TestOneExtentAtATime(t *testing.T) {
	seg := mapped(t, faultSegments["arena"])
	c, other := attach(t, seg), attach(t, seg)
	arrived, release := hold(t, "extent.intent", 1)
	var sets sync.WaitGroup
	for i := range 2 {
		sets.Go(func() { set(t, c, i, payload(i, 0, faultBytes), 0, cache.Stored) })
	}
	<-arrived
	set(t, other, 5, payload(5, 0, faultBytes), 0, cache.Stored) // another client does not wait
	<-arrived
	select {
	case <-arrived:
		t.Error("a second goroutine of the client has an intent")
	case <-time.After(50 * time.Millisecond):
	}
	release()
	sets.Wait()
	fault.SetHook(nil)
	for _, i := range []int{0, 1, 5} {
		wantSample(t, c, i, payload(i, 0, faultBytes))
	}
	checkSound(t, seg)
}

// freedBehindASearch stops a set of sample 5 by a at a fault point, frees slot 4, which the search
// has passed, calls then, and lets the set continue. The set must return want.
func freedBehindASearch(t *testing.T, point string, want cache.Result, then func(b *cache.Cache)) (seg *shm.Segment, a *cache.Cache) {
	seg = mapped(t, faultSegments["first-come"])
	a, b := attach(t, seg), attach(t, seg)
	for i := range 4 {
		set(t, a, i, payload(i, 0, faultBytes), 0, cache.Stored)
	}
	held, r, err := b.Claim(9, faultBytes, 0) // has slot 4
	if r != cache.Stored {
		t.Fatal(r, err)
	}
	arrived, release := hold(t, point, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		set(t, a, 5, payload(5, 0, faultBytes), 0, want)
	}()
	<-arrived
	then(b)
	fatal.If(t, held.Abort())
	release()
	<-done
	fault.SetHook(nil)
	checkSound(t, seg)
	return seg, a
}

// A slot that is freed after a search has passed it is found later: the search took slot 5, and
// does not raise the cursor past slot 4.
func TestSlotFreedBehindASearch(t *testing.T) {
	seg, a := freedBehindASearch(t, "slot.taken", cache.Stored, func(*cache.Cache) {})
	set(t, a, 6, payload(6, 0, faultBytes), 0, cache.Stored)
	expect.Equal(t, stats(t, a).Ready, 6, "samples in 6 slots")
	checkSound(t, seg)
}

// The same for a search that found no slot: it returns FULL, and the next search finds the slot
// that was freed during the first.
func TestSlotFreedBehindASearchThatFoundNone(t *testing.T) {
	seg, a := freedBehindASearch(t, "slot.intent", cache.Full, func(b *cache.Cache) {
		set(t, b, 6, payload(6, 0, faultBytes), 0, cache.Stored) // takes slot 5, which the search saw free
	})
	set(t, a, 5, payload(5, 0, faultBytes), 0, cache.Stored)
	checkSound(t, seg)
}

// A view during an overwrite shows one sample or the other: place and length belong together,
// though they are in two words.
func TestViewAcrossAnOverwrite(t *testing.T) {
	for name, bytes := range map[string]int{"a longer one elsewhere": faultBytes, "a shorter one in its place": 100} {
		t.Run(name, func(t *testing.T) {
			seg := mapped(t, faultSegments["arena"])
			a, b := attach(t, seg), attach(t, seg)
			set(t, a, 1, payload(1, 0, 200), 0, cache.Stored)
			set(t, a, 2, payload(2, 0, faultBytes), 0, cache.Stored)
			overwrite := sync.OnceFunc(func() { set(t, b, 1, payload(1, 1, bytes), cache.Overwrite, cache.Stored) })
			fault.SetHook(func(point string) {
				if point == "find.word" {
					overwrite()
				}
			})
			t.Cleanup(func() { fault.SetHook(nil) })
			got, hit, err := a.View(1)
			fault.SetHook(nil)
			if !hit || err != nil || string(got) != string(payload(1, 1, bytes)) {
				t.Errorf("hit %v, %v, %d bytes; want the %d of the new sample", hit, err, len(got), bytes)
			}
			if b, _, _ := b.View(1); &b[0] != &got[0] {
				t.Error("the view is not where the sample is")
			}
		})
	}
}

// A copy is repeated if it stops in the middle while the generation of its sample wraps around
// exactly once. The word is the same as at the beginning, and so are length and
// checksum, because two contents alternate. The result is one complete version.
func TestCopyWhileTheGenerationWraps(t *testing.T) {
	const size = 512
	for name, o := range map[string]shm.Options{"slots": {Samples: 1, SampleBytes: size}, "arena": {Samples: 1, Variable: true, Limit: 5 << 20, SampleBytes: size}} {
		for read, copies := range map[string]func(c *cache.Cache, dst []byte) (bool, error){
			"get": func(c *cache.Cache, dst []byte) (bool, error) {
				_, hit, err := c.Get(0, dst)
				return hit, err
			},
			"gather": func(c *cache.Cache, dst []byte) (bool, error) {
				if o.Variable {
					n, err := c.GatherPacked([]int{0}, dst, []uint64{0}, []uint64{size}, nil, 1)
					return n == 1, err
				}
				n, err := c.Gather([]int{0}, dst, cache.GatherOptions{Stride: size})
				return n == 1, err
			},
		} {
			t.Run(name+"/"+read, func(t *testing.T) {
				seg := mapped(t, o)
				reader, writer := attach(t, seg), attach(t, seg)
				contents := [2][]byte{payload(0, 0, size), payload(0, 1, size)}
				set(t, writer, 0, contents[0], 0, cache.Stored)
				before, period := seg.Word(0).Load(), seg.WordLayout().GenerationMask()+1
				overwrite := func(k uint64) { set(t, writer, 0, contents[k%2], cache.Overwrite, cache.Stored) }
				stops := 0
				fault.SetHook(func(point string) {
					switch {
					case point == "copy.half": // the second half is the other content's
						if stops++; stops == 1 {
							for k := range period - 1 {
								overwrite(k + 1)
							}
						}
					case point == "copy.done" && stops == 1:
						overwrite(period)
					}
				})
				t.Cleanup(func() { fault.SetHook(nil) })
				dst := make([]byte, size)
				hit, err := copies(reader, dst)
				fault.SetHook(nil)
				if stops != 2 || seg.Word(0).Load() != before {
					t.Errorf("%d copies were made, of the words %#x and %#x", stops, before, seg.Word(0).Load())
				}
				if !hit || err != nil || string(dst) != string(contents[0]) {
					t.Errorf("hit %v, %v: %x and %x", hit, err, dst[:8], dst[size-8:])
				}
				expect.Equal(t, stats(t, reader).Retried, 1, "copies thrown away")
				checkSound(t, seg)
			})
		}
	}
}

// An extent is kept for the length that was loaded with its word. If the word comes back with
// another length, the claim is aborted. That takes exactly one wrap of the
// generation, with a clear, between two loads; so the test forces it.
func TestExtentKeptForAnotherLength(t *testing.T) {
	seg := mapped(t, faultSegments["arena"])
	c := attach(t, seg)
	set(t, c, 1, payload(1, 0, faultBytes), 0, cache.Stored)
	set(t, c, 2, payload(2, 0, faultBytes), 0, cache.Stored)
	force := sync.OnceFunc(func() {
		meta := seg.Meta(1)
		meta.Store(uint64(shm.Meta(meta.Load()).Published(100))) // its two units now belong to another sample
	})
	fault.SetHook(func(point string) {
		if point == "claim.entry" {
			force()
		}
	})
	t.Cleanup(func() { fault.SetHook(nil) })
	set(t, c, 1, payload(1, 1, faultBytes), cache.Overwrite, cache.Busy)
	fault.SetHook(nil)
	wantMiss(t, c, 1)
	set(t, c, 1, payload(1, 1, 100), 0, cache.Stored)
	wantSample(t, c, 1, payload(1, 1, 100))
	wantSample(t, c, 2, payload(2, 0, faultBytes))
	checkSound(t, seg)
}
