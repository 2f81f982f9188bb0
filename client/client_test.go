package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stocached/stocached/client"
	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/tmpfs"
)

func create(t testing.TB, o client.Options) *client.Cache {
	t.Helper()
	c := fatal.Value(client.Create("", o))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// named makes a cache that other handles can attach to, in a directory of the test's own, and
// returns its path.
func named(t testing.TB, o client.Options) (*client.Cache, string) {
	t.Helper()
	dir := tmpfs.Folder(t)
	o.Dir = dir
	c := fatal.Value(client.Create("test", o))(t)
	t.Cleanup(func() { c.Close() })
	return c, c.Info().Path
}

func sample(i, n int) []byte { return slices.Repeat([]byte{byte(i + 1)}, n) }

// After Close all calls return ErrClosed, and a second Close is harmless.
func TestUseAfterClose(t *testing.T) {
	c := create(t, client.Options{Samples: 4, SampleBytes: 8})
	c.Set(0, sample(0, 8), 0)
	claim, r, err := c.Claim(1, 8, 0)
	if r != client.Stored || err != nil {
		t.Fatal(r, err)
	}
	fatal.If(t, c.Close())
	fatal.If(t, c.Close())
	calls := map[string]func() error{
		"get":  func() error { _, _, err := c.Get(0, make([]byte, 8)); return err },
		"view": func() error { _, _, err := c.View(0); return err },
		"gather": func() error {
			_, err := c.Gather([]int{0}, make([]byte, 8), client.GatherOptions{Stride: 8})
			return err
		},
		"packed": func() error {
			_, err := c.GatherPacked([]int{0}, make([]byte, 8), []uint64{0}, []uint64{8}, nil, 1)
			return err
		},
		"lengths":  func() error { _, err := c.Lengths([]int{0}, make([]uint64, 1)); return err },
		"set":      func() error { _, err := c.Set(2, sample(2, 8), 0); return err },
		"wait":     func() error { _, err := c.Set(1, sample(2, 8), client.Wait); return err },
		"claim":    func() error { _, _, err := c.Claim(2, 8, 0); return err },
		"write":    func() error { _, err := claim.WriteAt(sample(1, 8), 0); return err },
		"publish":  func() error { return claim.Publish() },
		"state":    func() error { _, err := c.Inspect().State(0); return err },
		"states":   func() error { return c.Inspect().States(0, make([]client.State, 4)) },
		"verify":   func() error { _, err := c.Inspect().Verify(0, 4); return err },
		"clear":    func() error { _, err := c.Clear(context.Background()); return err },
		"recover":  func() error { _, err := c.Inspect().Recover(); return err },
		"stats":    func() error { _, err := c.Stats(); return err },
		"clients":  func() error { _, err := c.Inspect().Clients(); return err },
		"passed":   func() error { return c.Loads().CountPassed(1) },
		"get/load": func() error { _, err := c.GetOrLoad(context.Background(), 3, nil); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, client.ErrClosed) {
			t.Errorf("%s after close: %v", name, err)
		}
	}
	expect.NoError(t, claim.Abort())
	for range c.Ready() {
		t.Error("iterating over a closed cache")
	}
}

// Close while goroutines read and write: they end with ErrClosed, and none accesses unmapped memory
// (that would crash the test).
func TestCloseUnderUse(t *testing.T) {
	for range 20 {
		c, path := named(t, client.Options{Samples: 64, SampleBytes: 40000, Slots: 32})
		other := fatal.Value(client.Attach(path, client.AttachOptions{}))(t)
		var wait sync.WaitGroup
		var calls atomic.Int64
		for g := range 8 {
			wait.Go(func() {
				buffer := make([]byte, 2*40000)
				for k := g; ; k++ {
					var err error
					switch k % 5 {
					case 0:
						_, err = c.Set(k%64, buffer[:40000], client.Overwrite)
					case 1:
						_, _, err = c.View(k % 64)
					case 2:
						_, err = c.Gather([]int{k % 64, (k + 1) % 64}, buffer, client.GatherOptions{Stride: 40000, Threads: 2})
					case 3:
						for range c.Ready() {
							runtime.Gosched()
						}
						_, err = c.Stats()
					default:
						_, _, err = c.Get(k%64, buffer)
					}
					calls.Add(1)
					if errors.Is(err, client.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for calls.Load() < 200 {
			runtime.Gosched()
		}
		expect.NoError(t, c.Close())
		wait.Wait()
		expect.Gives(other.Inspect().Recover())(t, 0)
		if v, err := other.Inspect().Verify(0, 64); v.Corrupt != 0 || err != nil {
			t.Error(v, err)
		}
		other.Close()
	}
}

// A call that waits ends when its handle is closed.
func TestCloseEndsWaiting(t *testing.T) {
	c := create(t, client.Options{Samples: 4, SampleBytes: 8})
	if _, r, err := c.Claim(0, 8, 0); r != client.Stored {
		t.Fatal(r, err)
	}
	ended := make(chan error, 2)
	go func() { _, err := c.Set(0, sample(0, 8), client.Wait); ended <- err }()
	go func() { _, err := c.Clear(context.Background()); ended <- err }()
	time.Sleep(5 * time.Millisecond) // probably waiting by then; in both cases both must end
	expect.NoError(t, c.Close())
	for range 2 {
		expect.Error(t, <-ended, client.ErrClosed)
	}
}

// Concurrent callers of one cache load a sample once.
func TestGetOrLoadOnce(t *testing.T) {
	for _, o := range []client.Options{{Samples: 8, SampleBytes: 1000}, {Samples: 8, Variable: true, Size: 8 << 20}} {
		c := create(t, o)
		var loads atomic.Int64
		entered, release := make(chan struct{}), make(chan struct{})
		var wait sync.WaitGroup
		for k := range 50 {
			wait.Go(func() {
				data, err := c.GetOrLoad(t.Context(), 5, func(context.Context) ([]byte, error) {
					if loads.Add(1) == 1 {
						close(entered)
					}
					<-release
					return sample(5, 1000), nil
				})
				expect.NoError(t, err)
				if !slices.Equal(data, sample(5, 1000)) {
					t.Error("caller", k, "got other bytes")
				} else {
					data[0] = 0xff // the caller owns the slice: no other caller sees this
				}
			})
		}
		<-entered
		close(release)
		wait.Wait()
		expect.Equal(t, loads.Load(), 1, "loads")
		if data, err := c.GetOrLoad(t.Context(), 5, nil); err != nil || !slices.Equal(data, sample(5, 1000)) {
			t.Error("the cache holds other bytes", err)
		}
	}
}

// All waiting callers get an error of load, and the next caller loads again.
func TestGetOrLoadError(t *testing.T) {
	c := create(t, client.Options{Samples: 8, SampleBytes: 4})
	errDisk := errors.New("the disk is gone")
	inside, fail := make(chan struct{}), make(chan struct{})
	waited := make(chan error)
	go func() {
		_, err := c.GetOrLoad(t.Context(), 1, func(context.Context) ([]byte, error) {
			close(inside)
			<-fail
			return nil, errDisk
		})
		waited <- err
	}()
	<-inside
	go func() {
		_, err := c.GetOrLoad(t.Context(), 1, func(context.Context) ([]byte, error) { return nil, errDisk })
		waited <- err
	}()
	close(fail)
	for range 2 {
		expect.Error(t, <-waited, errDisk)
	}
	if data, err := c.GetOrLoad(t.Context(), 1, func(context.Context) ([]byte, error) { return []byte("good"), nil }); err != nil || string(data) != "good" {
		t.Error(string(data), err)
	}
	if data, err := c.GetOrLoad(t.Context(), 2,
		func(context.Context) ([]byte, error) { return []byte("wrong size"), nil }); !errors.Is(err, client.ErrSchema) {
		t.Errorf("a sample of a wrong size: %q, %v", data, err)
	}
}

// A caller that waits for another caller's load ends with its own context, and not with the
// loader's.
func TestGetOrLoadContexts(t *testing.T) {
	c := create(t, client.Options{Samples: 8, SampleBytes: 4})
	inside := make(chan struct{})
	loaderCtx, cancelLoader := context.WithCancel(t.Context())
	loader := make(chan error)
	go func() {
		_, err := c.GetOrLoad(loaderCtx, 1, func(ctx context.Context) ([]byte, error) {
			close(inside)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		loader <- err
	}()
	<-inside
	impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	expect.Fails(c.GetOrLoad(impatient, 1, nil))(t, context.DeadlineExceeded)
	patient := make(chan string)
	go func() {
		data, err := c.GetOrLoad(t.Context(), 1, func(context.Context) ([]byte, error) { return []byte("mine"), nil })
		patient <- fmt.Sprint(string(data), err)
	}()
	time.Sleep(2 * time.Millisecond) // probably waiting by then; the result must be the same in both cases
	cancelLoader()
	expect.Error(t, <-loader, context.Canceled)
	expect.Equal(t, <-patient, "mine<nil>", "the patient caller gets")
	dead, cancelDead := context.WithCancel(t.Context())
	cancelDead()
	expect.Fails(c.GetOrLoad(dead, 2, nil))(t, context.Canceled)
}

// A panic in load reaches its caller, and no other caller waits for ever.
func TestGetOrLoadPanic(t *testing.T) {
	c := create(t, client.Options{Samples: 8, SampleBytes: 4})
	inside, fail := make(chan struct{}), make(chan struct{})
	panicked, waited := make(chan any), make(chan error)
	go func() {
		defer func() { panicked <- recover() }()
		c.GetOrLoad(t.Context(), 1, func(context.Context) ([]byte, error) {
			close(inside)
			<-fail
			panic("boom")
		})
	}()
	<-inside
	go func() {
		_, err := c.GetOrLoad(t.Context(), 1,
			func(context.Context) ([]byte, error) { return nil, errors.New("loaded myself") })
		waited <- err
	}()
	close(fail)
	expect.Equal(t, <-panicked, "boom", "what the caller recovered")
	if err := <-waited; err == nil {
		t.Error("who waited got no error")
	}
	if data, err := c.GetOrLoad(t.Context(), 1, func(context.Context) ([]byte, error) { return []byte("good"), nil }); err != nil || string(data) != "good" {
		t.Error(string(data), err)
	}
}

// A loaded sample is returned even if it is not stored.
func TestGetOrLoadWithoutRoom(t *testing.T) {
	c, path := named(t, client.Options{Samples: 8, SampleBytes: 4, Slots: 1})
	load := func(context.Context) ([]byte, error) { return []byte("good"), nil }
	for i := range 8 {
		if data, err := c.GetOrLoad(t.Context(), i, load); err != nil || string(data) != "good" {
			t.Error(i, string(data), err)
		}
	}
	reader := fatal.Value(client.Attach(path, client.AttachOptions{ReadOnly: true}))(t)
	defer reader.Close()
	if data, err := reader.GetOrLoad(t.Context(), 3, load); err != nil || string(data) != "good" {
		t.Error(string(data), err)
	}
}

// A view is memory of the cache: a write to it is a fault and changes nothing.
func TestViewIsReadOnly(t *testing.T) {
	if os.Getenv("STOCACHED_TEST_WRITE_VIEW") != "" {
		c := create(t, client.Options{Samples: 8, SampleBytes: 4})
		c.Set(1, []byte("good"), 0)
		view, _, _ := c.View(1)
		view[0] = 'b'
		os.Exit(0)
	}
	err := runSelf(t, "TestViewIsReadOnly", "STOCACHED_TEST_WRITE_VIEW=1")
	if err == nil {
		t.Error("a view could be written to")
	}
}

// Attach checks the fingerprint, a second Create returns ErrExists, and names are checked.
func TestCreateAttachErrors(t *testing.T) {
	c, path := named(t, client.Options{Samples: 8, SampleBytes: 4, Fingerprint: "flowers"})
	expect.Fails(client.Attach(path, client.AttachOptions{Fingerprint: "birds"}))(t, client.ErrFingerprint)
	if _, err := client.Attach(path+"s", client.AttachOptions{}); !errors.Is(err, client.ErrNotFound) || !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	dir := path[:strings.LastIndexByte(path, '/')]
	expect.Fails(client.Create("test", client.Options{Samples: 8, SampleBytes: 4, Dir: dir}))(t, client.ErrExists)
	for _, o := range []client.Options{{}, {Samples: -1, SampleBytes: 4}, {Samples: 8}, {Samples: 8, SampleBytes: -4},
		{Samples: 8, SampleBytes: 4, Slots: -1},
		{Samples: 8, SampleBytes: 4, Clients: -1}, {Samples: 8, SampleBytes: 4, Clients: 4096},
		{Samples: 8, Variable: true}} {
		if _, err := client.Create("other", o); !errors.Is(err, client.ErrInvalid) || strings.Contains(err.Error(), "18446744073") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	expect.NoError(t, client.Remove(path))
	expect.Error(t, client.Remove(path), client.ErrNotFound)
	expect.Gives(c.Set(1, []byte("good"), 0))(t, client.Stored, "a removed cache serves those who have it:")
}

// A cache of another version that no process uses is replaced, and the program's log says so.
func TestCreateReplacesAnotherVersion(t *testing.T) {
	c, path := named(t, client.Options{Samples: 8, SampleBytes: 4})
	c.Close()
	f := fatal.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	if _, err := f.WriteAt([]byte{2}, 8); err != nil { // layout_version
		t.Fatal(err)
	}
	f.Close()
	var said strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	defer slog.SetDefault(before)
	dir := path[:strings.LastIndexByte(path, '/')]
	again := fatal.Value(client.Create("test", client.Options{Samples: 8, SampleBytes: 4, Dir: dir}))(t)
	defer again.Close()
	if !strings.Contains(said.String(), "an empty cache replaces one of another version") ||
		!strings.Contains(said.String(), "layout 2,") {
		t.Errorf("%q", said.String())
	}
}

// AttachFD attaches to a cache without a name through its descriptor. The other handle may close.
func TestAttachFD(t *testing.T) {
	first := create(t, client.Options{Samples: 8, SampleBytes: 4, Fingerprint: "flowers"})
	first.Set(1, []byte("good"), 0)
	second := fatal.Value(client.AttachFD(first.Info().FD, client.AttachOptions{Fingerprint: "flowers"}))(t)
	defer second.Close()
	fatal.If(t, first.Close())
	if view, hit, err := second.View(1); !hit || err != nil || string(view) != "good" {
		t.Error(string(view), hit, err)
	}
	expect.Gives(second.Set(2, []byte("more"), 0))(t, client.Stored)
	expect.Fails(client.AttachFD(second.Info().FD, client.AttachOptions{Fingerprint: "birds"}))(t, client.ErrFingerprint)
	null := fatal.Value(os.Open(os.DevNull))(t)
	defer null.Close()
	for _, fd := range []int{-1, int(null.Fd())} {
		if c, err := client.AttachFD(fd, client.AttachOptions{}); err == nil {
			c.Close()
			t.Errorf("attached through descriptor %d", fd)
		}
	}
}

// The error of a full client table has the number, and the record of a closed client is free again.
func TestClientTableFull(t *testing.T) {
	c, path := named(t, client.Options{Samples: 8, SampleBytes: 4, Clients: 2})
	second := fatal.Value(client.Attach(path, client.AttachOptions{}))(t)
	expect.Fails(client.Attach(path, client.AttachOptions{}))(t, client.ErrClients, "2")
	if reader, err := client.Attach(path, client.AttachOptions{ReadOnly: true}); err != nil {
		t.Error("readers need no record:", err)
	} else {
		reader.Close()
	}
	second.Close()
	third := fatal.Value(client.Attach(path, client.AttachOptions{Label: "the third"}))(t)
	defer third.Close()
	clients, err := c.Inspect().Clients()
	if err != nil || len(clients) != 2 || !clients[1].Live || clients[1].Label != "the third" ||
		clients[1].Registrations != 2 || clients[1].PID != uint32(os.Getpid()) {
		t.Errorf("%+v, %v", clients, err)
	}
}

// Split returns the fields that Join was given, for several fields and sizes.
func TestSplitJoinVariable(t *testing.T) {
	c := create(t, client.Options{Samples: 8, Variable: true, Size: 8 << 20, Fields: []client.Field{
		{Name: "image", DType: client.Uint16, Dims: []uint64{client.VariableDim, client.VariableDim, 3}},
		{Name: "label", DType: client.Int64},
		{Name: "text", DType: client.Bytes, Dims: []uint64{client.VariableDim}},
	}})
	parts := []client.Part{{Dims: []uint64{5, 2, 3}, Data: sample(1, 60)}, {Data: sample(2, 8)}, {Dims: []uint64{0}}}
	data, err := c.Join(parts)
	if err != nil || len(data) != 128+64+64 {
		t.Fatal(len(data), err)
	}
	back, err := c.Split(data)
	if err != nil || !slices.Equal(back[0].Dims, []uint64{5, 2, 3}) || !slices.Equal(back[0].Data, sample(1, 60)) ||
		!slices.Equal(back[1].Data, sample(2, 8)) ||
		len(back[2].Data) != 0 || len(back[1].Dims) != 0 {
		t.Errorf("%+v, %v", back, err)
	}
	for n := range len(data) {
		if n == 192 { // the last field is empty
			continue
		}
		if _, err := c.Split(data[:n]); n < 192 && !errors.Is(err, client.ErrSchema) {
			t.Fatalf("a sample cut to %d bytes: %v", n, err)
		}
	}
	for k := range data[:120] { // for any header: no panic, and no access outside the sample
		for _, b := range []byte{0xff, 0x80, data[k] + 1} {
			bad := slices.Clone(data)
			bad[k] = b
			c.Split(bad)
		}
	}
	for name, parts := range map[string][]client.Part{
		"two fields": parts[:2],
		"dims":       {{Dims: []uint64{5, 2, 4}, Data: sample(1, 80)}, parts[1], parts[2]},
		"ndim":       {{Dims: []uint64{10, 3}, Data: sample(1, 60)}, parts[1], parts[2]},
		"bytes":      {{Dims: []uint64{5, 2, 3}, Data: sample(1, 59)}, parts[1], parts[2]},
		"overflow":   {{Dims: []uint64{1 << 62, 1 << 62, 3}}, parts[1], parts[2]},
	} {
		if _, err := c.Join(parts); !errors.Is(err, client.ErrSchema) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bare := create(t, client.Options{Samples: 8, Variable: true, Size: 8 << 20, Fields: []client.Field{{Name: "x", DType: client.Float32, Dims: []uint64{client.VariableDim}}}})
	if parts, err := bare.Split(sample(1, 12)); err != nil || parts[0].Dims[0] != 3 {
		t.Error(parts, err)
	}
	expect.Fails(bare.Split(sample(1, 13)))(t, client.ErrSchema)
}

// runSelf runs one test of this binary in its own process.
func runSelf(t *testing.T, test string, env ...string) error {
	t.Helper()
	exe := fatal.Value(os.Executable())(t)
	null := fatal.Value(os.Open(os.DevNull))(t)
	defer null.Close()
	p, err := os.StartProcess(exe, []string{exe, "-test.run=^" + test + "$"},
		&os.ProcAttr{Env: append(os.Environ(), env...), Files: []*os.File{null, null, null}})
	fatal.If(t, err)
	state := fatal.Value(p.Wait())(t)
	if !state.Success() {
		return fmt.Errorf("%v, signal %v", state, state.Sys().(syscall.WaitStatus).Signal())
	}
	return nil
}

// A program that asks for a policy gets a cache with it, or an error that names both.
func TestPolicyThatIsAskedFor(t *testing.T) {
	c, path := named(t, client.Options{Samples: 10, SampleBytes: 8, Slots: 5, Policy: client.PolicyLRU})
	for policy, want := range map[string]string{"": "", "lru": "", "dearest": `"dearest" is not one of first-come,`,
		"first-come": "the policy of " + path + " is lru, and this program asks for first-come", "cost": "asks for cost"} {
		other, err := client.Attach(path, client.AttachOptions{Policy: policy})
		if want == "" {
			if err != nil || !other.Info().Evicts {
				t.Fatalf("%q: %v", policy, err)
			}
			other.Close()
			continue
		}
		if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Fatalf("%q: %v", policy, err)
		}
		if _, err := client.AttachFD(c.Info().FD, client.AttachOptions{Policy: policy}); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q by descriptor: %v", policy, err)
		}
	}
	if stats, err := c.Stats(); err != nil || stats.ClientsLive != 1 {
		t.Errorf("%+v, %v", stats, err)
	}
	p := &peer{greet: greetWell, options: client.Options{Samples: 10, SampleBytes: 8, Slots: 5, Policy: client.PolicyLRU}}
	startPeer(t, p)
	served, err := client.Dial(t.Context(), "test", client.DialOptions{SocketsDir: p.dir, Policy: "fifo"})
	if served != nil {
		served.Close()
	}
	expect.Error(t, err, client.ErrInvalid, "is lru, and this program asks for fifo")
}
