//go:build faultpoints

package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/cache"
	stocclient "github.com/stocached/stocached/client"
	"github.com/stocached/stocached/control"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/shm"
)

// Samples of a cache of these tests, and how many of them are filled before the death.
const doomedSamples, doomedFilled = 100, 60

// dataset is a cache of a server and its source: sample i is servedRecord(i) in each.
type dataset struct {
	cache string // the keys of its configuration
	write func(t *testing.T, path string, n int)
}

var (
	slotted = dataset{fmt.Sprintf("parallel: 1, source: {kind: raw, path: records, sample_bytes: %d}", servedBytes),
		writeRecords}
	lagging = dataset{fmt.Sprintf("parallel: 1, source: {kind: raw, path: records, sample_bytes: %d, limits: "+
		"{latency: 10ms}}", servedBytes), writeRecords}
	dragging = dataset{fmt.Sprintf("parallel: 1, source: {kind: raw, path: records, sample_bytes: %d, limits: "+
		"{latency: 30ms}}", servedBytes), writeRecords}
	// not enough for all
	narrow = dataset{fmt.Sprintf("parallel: 1, size: 4400kB, source: {kind: raw, path: records, sample_bytes: %d}",
		servedBytes), writeRecords}
	fleeting = dataset{fmt.Sprintf("parallel: 1, remove_unused: 1s, source: {kind: raw, path: records, "+
		"sample_bytes: %d}", servedBytes), writeRecords}
	pile    = dataset{"parallel: 1, source: {kind: dir, path: records}", writeFiles}
	indexed = dataset{"parallel: 1, source: {kind: dir, path: records, index: files.index}", writeFiles}
	shard   = dataset{"parallel: 1, source: {kind: tar, path: records}", writeShard}
)

func writeRecords(t *testing.T, path string, n int) {
	t.Helper()
	(&served{t: t, records: path}).write(n)
}

func writeFiles(t *testing.T, path string, n int) {
	t.Helper()
	(&served{t: t, records: path}).writeTree(n, servedRecord)
}

func writeShard(t *testing.T, path string, n int) {
	t.Helper()
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for i := range n {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%06d.bin", i), Size: servedBytes,
			Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		w.Write(servedRecord(i))
	}
	fatal.If(t, errors.Join(w.Close(), os.WriteFile(path, all.Bytes(), 0o600)))
}

// doomed is a server that dies at a fault point, and a client from before, if any.
type doomed struct {
	*served
	of     dataset
	client *stocclient.Served
}

// newDoomed configures a server, which does not run yet.
func newDoomed(t *testing.T, of dataset) *doomed {
	t.Helper()
	d := &doomed{served: configureServed(t, of.cache), of: of}
	of.write(t, d.records, doomedSamples)
	return d
}

// fill starts a server, fills some samples, and kills it. From here on a client reads all the time
// and must see only complete samples.
func (d *doomed) fill() {
	d.t.Helper()
	d.start()
	d.connect()
	d.kill()
}

// connect makes the client, and fetches samples.
func (d *doomed) connect() {
	d.t.Helper()
	c, err := untilServed(func() (*stocclient.Served, error) { // the timeout is for the dead server; a live one may need longer
		return stocclient.Dial(context.Background(), "pets",
			stocclient.DialOptions{SocketsDir: d.sockets, Timeout: 500 * time.Millisecond})
	})
	fatal.If(d.t, err)
	d.t.Cleanup(func() { c.Close() })
	d.client = c
	wantSamples(d.t, d.client, first(doomedFilled))
	reader := fatal.Value(stocclient.Attach(filepath.Join(d.segments, "pets"), stocclient.AttachOptions{}))(d.t)
	stop := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for i := 0; ; i = (i + 1) % doomedSamples {
			data, hit, err := reader.View(i)
			if err != nil || hit && !bytes.Equal(data, servedRecord(i)) || !hit && i < doomedFilled {
				d.t.Errorf("a reader beside it: sample %d: hit %v, %d bytes, %v", i, hit, len(data), err)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Microsecond):
			}
		}
	})
	d.t.Cleanup(func() { close(stop); reading.Wait(); reader.Close() })
}

// obey starts a server with a fault order, which may come true before it serves.
func (d *doomed) obey(order string) {
	d.t.Helper()
	d.launch("STOCACHED_FAULT=" + order)
}

// obeying starts a server with a fault order that it reaches only after it serves.
func (d *doomed) obeying(order string) {
	d.t.Helper()
	d.start("STOCACHED_FAULT=" + order)
}

// died waits for the ordered death.
func (d *doomed) died() {
	d.t.Helper()
	wantKilled(d.t, d.process)
}

// wantKilled waits until a process has died of its own SIGKILL.
func wantKilled(t *testing.T, process *exec.Cmd) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it does not die: the point is not passed")
	}
	if status, ok := process.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("it was not killed: %v", process.ProcessState)
	}
}

// refused checks that a fetch fails because there is no server, soon after the server's death.
func (d *doomed) refused(indices []int) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	expect.Fails(d.client.FetchSamples(ctx, indices))(d.t, stocclient.ErrNoServer)
}

// goesOn starts the next server after a death that left `left` of n samples. It must adopt them,
// read only the others, and leave no claim.
func (d *doomed) goesOn(left, n int) {
	d.t.Helper()
	if d.client != nil {
		expect.Equal(d.t, ready(d.t, d.client.Cache), left, "samples there after the death")
	}
	d.start()
	c := d.dial()
	expect.Equal(d.t, ready(d.t, c.Cache), left, "samples of the next server")
	if d.client != nil && left >= doomedFilled {
		wantSamples(d.t, d.client, rand.Perm(n)) // this finds the new server by itself
	}
	wantSamples(d.t, c, rand.Perm(n))
	expect.Equal(d.t, ready(d.t, c.Cache), n, "samples there in the end")
	expect.Equal(d.t, int(d.metric("stocached_source_reads_total", `cache="pets"`)), n-left, "samples that the next server reads")
	if v, err := c.Inspect().Verify(0, n); err != nil || v.Corrupt != 0 {
		d.t.Errorf("%+v, %v", v, err)
	}
	noClaims(d.t, c.Cache)
	expect.Equal(d.t, d.answers("/readyz"), "ok\n", "readyz")
	d.end(syscall.SIGTERM)
}

// serverDeath is one way to die.
type serverDeath struct {
	name   string
	of     dataset
	points []string
	die    func(d *doomed, point string) // returns when the server is dead
}

var (
	servedPath = []string{"serve.listening", "served.source", "served.locked", "register.locked", "register.done",
		"served.attached", "serve.ready"}
	fillPath = []string{"fill.taken", "fill.read", "claim.entry", "claim.phase", "claim.word", "write.half",
		"write.done", "publish.meta", "publish.word", "publish.entry", "fill.stored", "fill.answered"}
	slotPath    = []string{"slot.intent", "slot.taken", "slot.named"}
	extentPath  = []string{"extent.intent", "extent.taken", "extent.named"}
	reclaimPath = []string{"reclaim.slot", "reclaim.cursor", "reclaim.word", "reclaim.entry"}
	drainPath   = []string{"drain.begun", "drain.sockets", "drain.fillers", "drain.clients", "drain.caches"}
)

var serverDeaths = []serverDeath{
	{"it makes a cache", slotted, append([]string{"served.created"}, servedPath...), dieStarting},
	{"it adopts one", slotted, append([]string{"served.opened"}, servedPath...), dieAdopting},
	{"it adopts one and reclaims what its predecessor had claimed", slotted, reclaimPath, dieReclaiming},
	{"it reclaims what a client had claimed", slotted, []string{"reclaim.slot", "reclaim.entry"}, dieInJanitor},
	{"it replaces one", slotted, []string{"served.removed", "served.created", "served.locked", "served.attached",
		"serve.ready"}, dieReplacing},
	{"it fills", slotted, slices.Concat(fillPath, slotPath), dieFilling},
	{"it fills an arena", pile,
		slices.Concat([]string{"fill.read", "claim.word", "write.half", "publish.meta", "publish.word"}, extentPath),
		dieFilling},
	{"it sends", narrow, []string{"fill.taken", "fill.read", "fill.answered", "send.piece"}, dieSending},
	{"a client attaches", slotted, []string{"send.descriptor"}, dieAttaching},
	{"it ends", dragging, drainPath, dieEnding},
	{"a reload removes the cache", slotted, []string{"change.unlinked"}, dieRemoving},
	{"a reload makes it another size", slotted,
		[]string{"change.shut", "served.removed", "served.created", "served.attached"}, dieExchanging},
	{"it empties an unused cache", fleeting, []string{"change.left", "served.created@2", "served.locked@2"},
		dieEmptying},
	{"it keeps an index of a tar file", shard, []string{"index.opened", "index.locked", "index.part", "index.synced",
		"index.renamed"}, dieStarting},
	{"it keeps an index of a folder", indexed, []string{"index.created", "index.written", "index.renamed"},
		dieStarting},
}

// notServers are the kinds of fault points that a server never passes, or only after another error, with the
// process that dies there.
var notServers = map[string]string{
	"find":    "every reader; it holds nothing",
	"abort":   "who gives up a claim, on a full tmpfs: ./cache",
	"clear":   "who clears: ./cache",
	"copy":    "who reads: ./cache",
	"evict":   "who evicts, which no server does yet: ./cache",
	"control": "who opens a disk cache: ./client",
}

// Ensure that a server dies at each fault point in its sources, and in those of the packages that
// it fills from and into.
func TestEveryServerPointIsTested(t *testing.T) {
	tested := map[string]bool{}
	for _, death := range serverDeaths {
		for _, order := range death.points {
			point, _, _ := strings.Cut(order, "@")
			tested[point] = true
		}
	}
	passed := map[string]bool{}
	for _, folder := range []string{"server", "server/fill", "server/served", "server/session", "server/prefetch",
		"server/admin", "cache", "source/tar", "source/dir", "source/raw", "source/npy", "source/wrap",
		"source/decode", "shm", "control"} {
		files, err := filepath.Glob("../../" + folder + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(folder, err)
		}
		for _, file := range files {
			text := fatal.Value(os.ReadFile(file))(t)
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range regexp.MustCompile(`"([a-z]+\.[a-z]+)"`).FindAllStringSubmatch(string(text), -1) {
				if strings.Contains(string(text), "fault.At(") &&
					(strings.Contains(string(text), `fault.At("`+m[1]) || folder == "cache") {
					passed[m[1]] = true
				}
			}
		}
	}
	for point := range passed {
		kind, _, _ := strings.Cut(point, ".")
		if other := notServers[kind] != "" || point == "reclaim.victim"; tested[point] == other {
			t.Errorf("%s: a server dies there: %v; another process does: %v", point, tested[point], other)
		}
	}
	for point := range maps.Keys(tested) {
		if !passed[point] {
			t.Errorf("%s is in no source", point)
		}
	}
	if len(passed) < 50 {
		t.Errorf("only %d fault points found", len(passed))
	}
}

// Ensure that a server that dies at any step tears nothing and loses nothing. Clients keep their
// hits and get an error. The next server has the same samples, reads only the missing ones, and
// serves.
func TestServerKilledAtEveryStep(t *testing.T) {
	for _, death := range serverDeaths {
		for _, point := range death.points {
			t.Run("when "+death.name+" at "+point, func(t *testing.T) {
				t.Parallel()
				death.die(newDoomed(t, death.of), point)
			})
		}
	}
}

func dieStarting(d *doomed, point string) {
	d.obey(point + "=kill")
	d.died()
	d.goesOn(0, doomedSamples)
}

func dieAdopting(d *doomed, point string) {
	d.fill()
	d.obey(point + "=kill")
	d.died()
	d.goesOn(doomedFilled, doomedSamples)
}

func dieReclaiming(d *doomed, point string) {
	d.obeying(fmt.Sprintf("write.half@%d=kill", doomedFilled+1))
	d.connect()
	d.refused(between(doomedFilled, doomedFilled+10))
	d.died()
	d.obey(point + "=kill")
	d.died()
	d.goesOn(doomedFilled, doomedSamples)
}

func dieInJanitor(d *doomed, point string) {
	d.fill()
	d.obeying(point + "=kill")
	seg := fatal.Value(shm.Open(filepath.Join(d.segments, "pets"), shm.OpenOptions{}))(d.t)
	defer seg.Close()
	locks := fatal.Value(seg.NewLocks())(d.t)
	dying := fatal.Value(cache.Attach(seg, cache.Options{Locks: locks}))(d.t)
	if _, r, err := dying.Claim(doomedFilled+5, servedBytes, 0); r != cache.Stored || err != nil {
		d.t.Fatal(r, err)
	}
	locks.Close() // as the kernel does when it dies
	d.died()
	d.goesOn(doomedFilled, doomedSamples)
}

func dieReplacing(d *doomed, point string) {
	d.fill()
	d.of.write(d.t, d.records, doomedSamples+1)
	d.obey(point + "=kill")
	d.died()
	expect.Equal(d.t, ready(d.t, d.client.Cache), doomedFilled, "samples that who has the old one finds")
	d.client = nil
	d.goesOn(0, doomedSamples+1)
}

// dieFilling dies with the 7th sample that is filled after the first ones.
func dieFilling(d *doomed, point string) {
	d.fill()
	d.obeying(point + "@7=kill")
	d.refused(between(doomedFilled, doomedFilled+20))
	d.died()
	left := doomedFilled + 6
	if slices.Contains([]string{"publish.word", "publish.entry", "fill.stored", "fill.answered"}, point) {
		left++
	}
	d.goesOn(left, doomedSamples)
}

// dieSending dies while it sends samples without a slot: a client gets none or a complete one, and
// its fetch fails.
func dieSending(d *doomed, point string) {
	d.start()
	c := d.dial()
	slots := c.Info().Slots
	if slots >= doomedSamples || slots == 0 {
		d.t.Fatalf("%d slots: there is nothing to send", slots)
	}
	wantSamples(d.t, c, first(slots))
	d.kill()
	d.client = c
	d.obeying(point + "@15=kill")
	d.refused(first(doomedSamples))
	d.died()
	d.start()
	expect.Equal(d.t, ready(d.t, c.Cache), slots, "samples are there")
	wantSamples(d.t, c, rand.Perm(doomedSamples))
	noClaims(d.t, c.Cache)
}

// change reloads a configuration in which new replaces old. The server dies before it answers, and the next one starts
// with the old configuration.
func (d *doomed) change(old, new string) {
	d.t.Helper()
	before := d.configuration("", "")
	d.configure(d.configuration(old, new))
	socket := fatal.Value(net.Dial("unix", filepath.Join(d.sockets, control.AdminSocket)))(d.t)
	defer socket.Close()
	fatal.Value(fmt.Fprint(socket, "POST /v1/reload HTTP/1.1\r\nHost: stocached\r\nContent-Length: 0\r\n\r\n"))(d.t)
	if answer, err := io.ReadAll(socket); len(answer) > 0 {
		d.t.Fatalf("%s, %v", answer, err)
	}
	d.died()
	d.configure(before)
	expect.Equal(d.t, ready(d.t, d.client.Cache), doomedFilled, "samples that who has the old one finds")
}

func dieRemoving(d *doomed, point string) {
	d.fill()
	d.obeying(point + "=kill")
	d.change("name: pets,", "name: other,")
	d.client = nil
	d.goesOn(0, doomedSamples) // the configuration still has it
}

func dieExchanging(d *doomed, point string) {
	d.fill()
	if point == "served.attached" {
		point += "@2"
	}
	d.obeying(point + "=kill")
	d.change("parallel: 1", "size: 4400000")
	left := doomedFilled // the configuration has the old size
	if point != "change.shut" {
		left, d.client = 0, nil
	}
	d.goesOn(left, doomedSamples)
}

func dieEmptying(d *doomed, point string) {
	d.obeying(point + "=kill")
	c := d.dial()
	wantSamples(d.t, c, first(doomedFilled))
	fatal.If(d.t, c.Close())
	d.died()
	d.goesOn(0, doomedSamples)
}

// dieAttaching dies when a client has its descriptor or is about to get it. The client must send no
// further request, which the server might still answer.
func dieAttaching(d *doomed, point string) {
	d.fill()
	d.obeying(point + "=kill")
	if err := stocclient.Ping(context.Background(), "pets",
		stocclient.DialOptions{SocketsDir: d.sockets, Timeout: 20 * time.Second}); err != nil &&
		!errors.Is(err, stocclient.ErrNoServer) {
		d.t.Error(err)
	}
	d.died()
	d.refused([]int{doomedFilled})
	d.goesOn(doomedFilled, doomedSamples)
}

// dieEnding dies while it ends and a fetch waits for its samples.
func dieEnding(d *doomed, point string) {
	d.fill()
	d.obeying(point + "=kill")
	answered := make(chan error, 1)
	go func() {
		_, err := d.client.FetchSamples(context.Background(), between(doomedFilled, doomedSamples))
		answered <- err
	}()
	fatal.Until(d.t, "it fills", func() bool {
		s, err := d.client.Stats()
		return err != nil || s.Ready > doomedFilled
	})
	d.process.Process.Signal(syscall.SIGTERM)
	d.died()
	left := ready(d.t, d.client.Cache)
	if left <= doomedFilled || left == doomedSamples {
		d.t.Errorf("it died with %d of %d samples there", left, doomedSamples)
	}
	var failed *stocclient.FetchError
	select {
	case err := <-answered:
		if errors.As(err, &failed) {
			for _, f := range failed.Failures {
				expect.Equal(d.t, f.Code, control.CodeClosing, "%+v", f)
			}
		} else if !errors.Is(err, stocclient.ErrNoServer) {
			d.t.Errorf("a fetch while the server ends: %v", err)
		}
	case <-time.After(time.Minute):
		d.t.Fatal("the fetch does not end")
	}
	d.goesOn(left, doomedSamples)
}

// clientPoints are the points and passes at which clients die in the middle of a fetch.
var clientPoints = map[string][]dataset{
	"fetch.attached": {lagging},
	"fetch.sent":     {lagging, narrow},
	"fetch.sample":   {narrow},
	"fetch.answered": {lagging, narrow},
	"register.done":  {lagging},
}

// Ensure that clients that die in the middle of a fetch affect no other client. Others get every
// sample, the server reads each one once if it has a slot, and no claim is left.
func TestClientKilledWhileItFetches(t *testing.T) {
	var code []byte
	for _, file := range []string{"link.go", "connection.go"} {
		code = append(code, fatal.Value(os.ReadFile("../../client/"+file))(t)...)
	}
	for _, m := range regexp.MustCompile(`fault\.At\("([^"]+)"\)`).FindAllStringSubmatch(string(code), -1) {
		if clientPoints[m[1]] == nil {
			t.Errorf("no client dies at %s", m[1])
		}
	}
	for point, datasets := range clientPoints {
		for k, of := range datasets {
			t.Run(fmt.Sprint(point, " ", k), func(t *testing.T) {
				t.Parallel()
				d := newDoomed(t, of)
				d.start()
				order := point + "=kill"
				if point == "fetch.sample" {
					order = point + "@5=kill"
				}
				var dying []*exec.Cmd
				for range 3 {
					p := exec.Command(os.Args[0], d.sockets)
					p.Env = append(os.Environ(), childVariable+"=fetch", "STOCACHED_FAULT="+order)
					fatal.If(t, p.Start())
					t.Cleanup(func() { p.Process.Kill() })
					dying = append(dying, p)
				}
				c := d.dial()
				var others sync.WaitGroup
				// so that some samples are left for the dying clients, however late they start
				others.Go(func() { wantSamples(t, c, first(doomedSamples/2)) })
				for _, p := range dying {
					wantKilled(t, p)
				}
				others.Wait()
				wantSamples(t, c, rand.Perm(doomedSamples))
				expect.Equal(t, ready(t, c.Cache), c.Info().Slots, "samples in all slots")
				if reads := int(d.metric("stocached_source_reads_total",
					`cache="pets"`)); c.Info().Slots == doomedSamples && reads != doomedSamples {
					t.Errorf("%d reads of %d samples", reads, doomedSamples)
				}
				fatal.Until(t, "the dead are forgotten", func() bool {
					s, err := c.Stats()
					return err == nil && s.ClientsLive == 2 && d.metric("stocached_queue_depth", `cache="pets"`) == 0
				})
				noClaims(d.t, c.Cache)
			})
		}
	}
}
