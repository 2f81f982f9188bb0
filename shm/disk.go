package shm

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// DiskFile is the file of a segment on a disk: an *os.File.
type DiskFile interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error
}

// diskClients is the number of client records of a segment on a disk, which one process uses.
const diskClients = 1

// OpenDisk opens a segment in an ordinary file, or makes it: docs/spec/segment.md, On a disk. One process
// uses the file at a time. Nothing of it is mapped: the control part is in memory, and each change of a
// sample's index record is also written to the file. So the segment serves Cache.Get and Set of one
// process, and no views. Samples in the file are not checked here: who reads one compares its checksum.
//
// Options are those of Create; Name, Dir, Reserve, UnlinkLast and ClientRecords are ignored. A file with
// other options, another Fingerprint among them, is replaced. replaced says why; "": the file was kept,
// or there was none.
//
// Errors: ErrInvalid; ErrExists: another process uses the file; ErrMemory: the file system has less space
// than the segment needs, with the numbers; ErrSystem.
func OpenDisk(path string, o Options) (s *Segment, replaced string, err error) {
	h, g, err := o.planDisk()
	if err != nil {
		return nil, "", err
	}
	if err := CheckLocal(filepath.Dir(path)); err != nil {
		return nil, "", err
	}
	h.stamp()
	for range 100 {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) {
			f, err = makeDisk(path, &h, &g)
			if errors.Is(err, unix.EEXIST) {
				continue // another process has just made it
			}
		}
		if err != nil {
			return nil, "", asError(err)
		}
		if err = lockDisk(f); err == nil && !isAt(f, path) {
			f.Close() // another process has replaced it before we had the lock
			continue
		}
		if err == nil {
			s, err = loadDisk(f, path, h, g)
		}
		if err == nil {
			var session [16]byte
			rand.Read(session[:]) // never fails
			err = writeSession(f, session, KindServer)
		}
		if err == nil {
			return s, replaced, nil
		}
		f.Close()
		if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrVersion) {
			return nil, "", asError(err)
		}
		replaced = err.Error()
		if err := os.Remove(path); err != nil {
			return nil, "", asError(err)
		}
	}
	return nil, "", fail(ErrExists, "%s: other processes make and replace it all the time", path)
}

// DiskBytes returns the size of the file that OpenDisk would make. Errors: those of SegmentBytes.
func (o Options) DiskBytes() (uint64, error) {
	_, g, err := o.planDisk()
	return g.SegmentBytes, err
}

// DiskSlots returns how many samples the file that OpenDisk would make holds; 0: they differ in size. Errors: those of
// SegmentBytes.
func (o Options) DiskSlots() (uint64, error) {
	_, g, err := o.planDisk()
	if err != nil || o.Variable {
		return 0, err
	}
	return min(g.Slots, g.Samples), nil
}

// planDisk is plan for a segment on a disk.
func (o Options) planDisk() (Header, Geometry, error) {
	o.Name, o.Dir, o.Reserve, o.UnlinkLast, o.ClientRecords = "", "", false, false, diskClients
	h, g, err := o.plan()
	if err == nil && g.Chains() {
		err = fail(ErrInvalid, "policy: on a disk, samples that differ in size need %s", PolicyFirstCome)
	}
	return h, g, err
}

func asError(err error) error {
	for _, known := range []error{ErrInvalid, ErrExists, ErrMemory, ErrSystem} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fail(ErrSystem, "%w", err)
}

// makeDisk makes the file with its header. It links the name last.
func makeDisk(path string, h *Header, g *Geometry) (*os.File, error) {
	dir := filepath.Dir(path)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if free := uint64(fs.Bavail) * uint64(fs.Bsize); free < g.SegmentBytes {
		return nil, fail(ErrMemory, "%s: the file needs %d bytes, and %s has %d free; make size smaller, or free some", path,
			g.SegmentBytes, dir, free)
	}
	made, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, err
	}
	temporary := made.Name()
	defer os.Remove(temporary)
	err = made.Truncate(int64(g.SegmentBytes))
	if err == nil { // so that changes of the index do not fail for space; some file systems cannot
		if err = unix.Fallocate(int(made.Fd()), 0, 0, int64(g.PayloadOffset)); errors.Is(err, unix.EOPNOTSUPP) {
			err = nil
		}
	}
	if err == nil {
		_, err = made.WriteAt(h.encode(g), 0)
	}
	if err == nil {
		err = made.Sync()
	}
	if err == nil {
		err = os.Link(temporary, path)
	}
	if err != nil {
		made.Close()
		return nil, err
	}
	return made, nil
}

func lockDisk(f *os.File) error {
	locks := fileLocks{fd: int(f.Fd())}
	ok, err := locks.set(unix.F_WRLCK, diskFileByte)
	if err == nil && !ok {
		return fail(ErrExists, "%s: %s and perhaps others use it; end them, or give this one another folder", f.Name(),
			diskMaker(f))
	}
	return err
}

func isAt(f *os.File, path string) bool {
	ours, err := f.Stat()
	there, missing := os.Lstat(path)
	return err == nil && missing == nil && os.SameFile(ours, there)
}

// LoadDisk is OpenDisk of a file that OpenDisk has made with the same options. It does not lock it: tests
// give it a file that fails. ErrFormat, ErrVersion: it is another segment.
func LoadDisk(f DiskFile, path string, o Options) (*Segment, error) {
	h, g, err := o.planDisk()
	if err != nil {
		return nil, err
	}
	return loadDisk(f, path, h, g)
}

func loadDisk(f DiskFile, path string, want Header, g Geometry) (*Segment, error) {
	page := make([]byte, HeaderBytes)
	if _, err := f.ReadAt(page, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	h, _, err := decodeHeader(page, g.SegmentBytes)
	if err != nil {
		return nil, err
	}
	if h.Fingerprint != want.Fingerprint {
		return nil, fail(ErrFormat, "it has samples of another source")
	}
	want.UUID, want.Created, want.UID = h.UUID, h.Created, h.UID
	if !bytes.Equal(want.encode(&g), page) {
		return nil, fail(ErrFormat, "it was made with other settings, or for other samples")
	}
	s := &Segment{Header: h, disk: f, path: path, heap: newHeapLocks(), fileHeader: h, fileGeometry: g}
	s.Geometry = g
	s.control = make([]byte, g.PayloadOffset)
	copy(s.control, page)
	if err := s.readIndex(); err != nil {
		return nil, err
	}
	return s, nil
}

// readIndex reads the index, and keeps the samples that are READY with a place of their own. Two samples
// with one place are both dropped: the file does not say whose bytes lie there.
func (s *Segment) readIndex() error {
	err := s.readRegion(s.IndexOffset, s.fileGeometry.IndexOffset, s.Samples*IndexRecordBytes)
	if err == nil && s.Variable() {
		err = s.readRegion(s.SumsOffset, s.fileGeometry.SumsOffset, s.Samples*SumRecordBytes)
	}
	if err != nil {
		return err
	}
	layout := s.WordLayout()
	var extents []extent
	for sample := range s.Samples {
		w := Word(s.Word(sample).Load())
		place := layout.Place(w)
		meta := Meta(s.Meta(sample).Load())
		// Fills 0: half of a record; an empty sample has the checksum of zeros.
		if w.State() != Ready || meta.Fills() == 0 || place == 0 || !s.possible(sample, place, meta) {
			s.Word(sample).Store(0)
			continue
		}
		if s.Variable() {
			extents = append(extents, extent{place - 1, place - 1 + UnitsFor(s.Length(meta)), sample})
			continue
		}
		if !s.HasSlotTable() {
			continue
		}
		if other := s.SlotSample(place - 1).Load(); other != 0 {
			s.Word(other - 1).Store(0)
			s.Word(sample).Store(0)
			continue
		}
		s.SlotSample(place - 1).Store(sample + 1)
	}
	s.freeUnnamed(layout)
	s.keepExtents(extents)
	return nil
}

// readRegion reads n bytes of the file into the control part, before other processes have it.
func (s *Segment) readRegion(to, from, n uint64) error {
	for at := uint64(0); at < n; at += 1 << 20 {
		part := s.control[to+at : to+min(at+1<<20, n)]
		if got, err := readAll(s.disk, part, int64(from+at)); err != nil {
			return fail(ErrSystem, "read the index of %s: %w", s.path, err)
		} else if got < len(part) {
			return fail(ErrFormat, "the file was truncated")
		}
	}
	return nil
}

// readAll reads less than all of p only at the end of the file.
func readAll(f DiskFile, p []byte, at int64) (int, error) {
	n, err := f.ReadAt(p, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// possible says whether a place and a length lie inside the payload.
func (s *Segment) possible(sample, place uint64, m Meta) bool {
	if s.Variable() {
		n := s.Length(m)
		return n <= s.Header.SampleBytes && place-1 < s.Units() && UnitsFor(n) <= s.Units()-(place-1)
	}
	return place <= s.Slots && (s.HasSlotTable() || place == sample+1)
}

// freeUnnamed frees the slots whose samples were dropped because another one had the same.
func (s *Segment) freeUnnamed(layout WordLayout) {
	if !s.HasSlotTable() {
		return
	}
	for slot := range s.Slots {
		if holder := s.SlotSample(slot).Load(); holder != 0 && layout.Place(Word(s.Word(holder-1).Load())) != slot+1 {
			s.SlotSample(slot).Store(0)
		}
	}
}

// extent is the units [first, end) of an arena that a sample has.
type extent struct{ first, end, sample uint64 }

// keepExtents drops samples whose extents overlap, and sets where the arena goes on.
func (s *Segment) keepExtents(extents []extent) {
	if !s.Variable() {
		return
	}
	slices.SortFunc(extents, func(a, b extent) int {
		if a.first != b.first {
			return int(min(max(int64(a.first)-int64(b.first), -1), 1))
		}
		return int(min(max(int64(a.sample)-int64(b.sample), -1), 1))
	})
	last := extent{}
	for k, e := range extents {
		if k > 0 && e.first < last.end {
			s.Word(e.sample).Store(0)
			s.Word(last.sample).Store(0)
		}
		if e.end > last.end {
			last = e
		}
	}
	s.ArenaNext().Store(uint64(NewArenaNext(0, last.end)))
}

// Persist writes the index record of a sample to the file of a segment on a disk, after the record has
// changed. Other segments need it not. A failure costs hits after the next start, and stands in
// DiskError: the checksum of a sample decides, not the record.
func (s *Segment) Persist(sample uint64) {
	if s.disk == nil {
		return
	}
	if s.Variable() {
		s.persist(s.fileGeometry.SumsOffset+sample*SumRecordBytes, s.Sum(sample).Load())
	}
	s.persist(s.fileGeometry.IndexOffset+sample*IndexRecordBytes, s.Word(sample).Load(), s.Meta(sample).Load())
}

// PersistAll writes the whole index to the file of a segment on a disk, as Persist does.
func (s *Segment) PersistAll() {
	if s.disk == nil {
		return
	}
	const step = 4096 // samples
	for first := uint64(0); first < s.Samples; first += step {
		var sums, records []uint64
		for i := first; i < min(first+step, s.Samples); i++ {
			records = append(records, s.Word(i).Load(), s.Meta(i).Load())
			if s.Variable() {
				sums = append(sums, s.Sum(i).Load())
			}
		}
		if s.Variable() {
			s.persist(s.fileGeometry.SumsOffset+first*SumRecordBytes, sums...)
		}
		s.persist(s.fileGeometry.IndexOffset+first*IndexRecordBytes, records...)
	}
}

func (s *Segment) persist(at uint64, words ...uint64) {
	b := make([]byte, 0, 16)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	if _, err := s.disk.WriteAt(b, int64(at)); err != nil {
		s.diskError.CompareAndSwap(nil, &err)
	}
}

// OnDisk says whether the segment is that of OpenDisk or OpenSharedDisk: its payload has no memory, and Bytes must not be
// called.
func (s *Segment) OnDisk() bool { return s.disk != nil }

// DiskError returns the first error of a Persist since the last call, or nil.
func (s *Segment) DiskError() error {
	if err := s.diskError.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// ProbeDisk writes the header to the file again and reads it back: whether the disk works.
func (s *Segment) ProbeDisk() error {
	page, back := s.fileHeader.encode(&s.fileGeometry), make([]byte, HeaderBytes)
	if _, err := s.disk.WriteAt(page, 0); err != nil {
		return fail(ErrSystem, "write the header of %s: %w", s.path, err)
	}
	if _, err := s.disk.ReadAt(back, 0); err != nil {
		return fail(ErrSystem, "read the header of %s: %w", s.path, err)
	}
	if !slices.Equal(page, back) {
		return fail(ErrSystem, "the header of %s comes back changed", s.path)
	}
	return nil
}

// readDisk reads zeros where a file that was truncated has nothing more.
func (s *Segment) readDisk(p []byte, offset uint64) error {
	n, err := s.disk.ReadAt(p, int64(s.fileGeometry.PayloadOffset+offset))
	if errors.Is(err, io.EOF) {
		clear(p[n:])
	} else if err != nil {
		return payloadError("read", uint64(len(p)), offset, err)
	}
	return nil
}

func (s *Segment) writeDisk(p []byte, offset uint64) (int, error) {
	n, err := s.disk.WriteAt(p, int64(s.fileGeometry.PayloadOffset+offset))
	if err != nil {
		return n, payloadError("write", uint64(len(p)), offset, err)
	}
	return n, nil
}

func (s *Segment) closeDisk() error {
	var err error
	if s.controlPath == "" {
		err = s.disk.Sync() // others still write to a shared file, and no sample needs it
	}
	err = errors.Join(err, s.disk.Close())
	if err != nil {
		return fail(ErrSystem, "close %s: %w", s.path, err)
	}
	return nil
}
