package shm

import "github.com/stocached/stocached/shm/memory"

// NewAllowance returns the allowance of the client that owns a record. It resets the bytes that the
// record's last owner had drawn. It limits nothing if fills of this client allocate no memory: the
// payload was reserved at creation, or lies on the heap or on a disk. Draw and Room return ErrFull,
// with the numbers, when memory is short.
func (s *Segment) NewAllowance(record uint32) *memory.Allowance {
	own := s.Drawn(record)
	own.Store(0)
	if s.file == nil || s.backing != nil || s.Header.Flags&FlagReserved != 0 {
		return new(memory.Allowance)
	}
	return memory.NewAllowance(memory.Account{Own: own, Grant: s.Grant,
		Others: func() uint64 { return s.drawnBeside(record) },
		Usable: usable, File: s.file, Name: s.describe(), Full: ErrFull})
}

// drawnBeside adds up the bytes that other live clients have drawn and not settled.
func (s *Segment) drawnBeside(record uint32) (sum uint64) {
	for r := range s.RecordsUsed() {
		if drawn := s.Drawn(r).Load(); drawn != 0 && r != record && s.alive(r) {
			sum += drawn
		}
	}
	return sum
}

// alive says whether a client holds the lock of a record.
func (s *Segment) alive(record uint32) bool {
	_, _, held, err := firstLock(s.FD(), RecordLockByte(record), RecordLockByte(record))
	return held || err != nil
}
