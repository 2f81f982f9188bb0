package faults_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/source/raw"
	"github.com/stocached/stocached/source/sourcetest"
	"github.com/stocached/stocached/source/wrap/faults"

	"golang.org/x/sys/unix"
)

const size = 16

func records(t *testing.T) (path string, want [][]byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "records.bin")
	for k := range 10 {
		want = append(want, bytes.Repeat([]byte{byte(k + 1)}, size))
	}
	if err := os.WriteFile(path, bytes.Join(want, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, want
}

func open(path string) (source.Source, error) {
	return raw.Kind.Open(context.Background(), source.Settings{"path": path, "sample_bytes": size})
}

func wrapped(t *testing.T, rules ...faults.Rule) (*faults.Source, [][]byte) {
	t.Helper()
	path, want := records(t)
	s, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return faults.Wrap(s, rules...), want
}

func read(s source.Source, i int) ([]byte, error) {
	sample := make([]byte, size)
	n, err := s.Read(context.Background(), i, sample)
	return sample[:n], err
}

// Ensure that a source without rules is like any other.
func TestSuite(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		path, want := records(t)
		return sourcetest.Fixture{Want: want, Files: []string{path}, Open: func(*testing.T) (source.Source, error) {
			s, err := open(path)
			if err != nil {
				return nil, err
			}
			return faults.Wrap(s), nil
		}}
	})
}

// Ensure that rules apply to the reads that they name, as often as they say, and to no others.
func TestRules(t *testing.T) {
	f, want := wrapped(t, faults.Rule{Samples: []int{3, 4}, Err: unix.EIO, Times: 2},
		faults.Rule{Every: 4, Err: unix.ESTALE}, faults.Rule{Samples: []int{9}, Wrong: true})
	var got []string
	for _, i := range []int{0, 3, 4, 3, 3, 9, 9, 9, 3} {
		sample, err := read(f, i)
		switch {
		case errors.Is(err, unix.EIO):
			got = append(got, "EIO")
		case errors.Is(err, unix.ESTALE):
			got = append(got, "ESTALE")
		case err != nil:
			t.Error(err)
		case bytes.Equal(sample, want[i]):
			got = append(got, "ok")
		case sample[0] == ^want[i][0] && sample[size-1] == ^want[i][0]:
			got = append(got, "wrong")
		}
	}
	// A read that fails by the first rule does not get the second's error, but counts as one of its
	// reads.
	if text := strings.Join(got, " "); text != "ok EIO EIO ESTALE ok wrong wrong ESTALE ok" {
		t.Error(text)
	}
	if f.Reads(3) != 4 || f.Reads(9) != 3 || f.Reads(1) != 0 || f.TotalReads() != 9 || f.Inside() != 0 {
		t.Errorf("%d, %d, %d, %d reads, %d inside", f.Reads(3), f.Reads(9), f.Reads(1), f.TotalReads(), f.Inside())
	}
	if _, err := read(f, 3); err != nil {
		t.Error(err)
	}
	f.Set(faults.Rule{Err: unix.EMFILE})
	if _, err := read(f, 3); !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), f.Where(3)) {
		t.Error(err)
	}
	f.Set()
	if sample, err := read(f, 3); err != nil || !bytes.Equal(sample, want[3]) {
		t.Error(sample, err)
	}
}

// Ensure that a delay ends with its context, and that only its channel ends a stuck read.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		f, want := wrapped(t, faults.Rule{Samples: []int{1}, Delay: time.Minute},
			faults.Rule{Samples: []int{2}, Stuck: stuck})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := f.Read(ctx, 1, make([]byte, size)); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if sample, err := read(f, 1); err != nil || !bytes.Equal(sample, want[1]) ||
			time.Since(begun) != time.Second+time.Minute {
			t.Errorf("%v, %v after %v", sample, err, time.Since(begun))
		}
		var stuckReads sync.WaitGroup
		for range 3 {
			stuckReads.Go(func() {
				// the source returns it after the delay
				if _, err := f.Read(ctx, 2, make([]byte, size)); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Hour)
		if f.Inside() != 3 {
			t.Errorf("%d reads are stuck", f.Inside())
		}
		if _, err := read(f, 3); err != nil {
			t.Error(err)
		}
		close(stuck)
		stuckReads.Wait()
	})
}
