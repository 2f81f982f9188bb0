package measure

import "testing"

func TestShare(t *testing.T) {
	const smaps = `7f00-7f10 rw-s 00000000 00:19 5 /dev/shm/d/cache
Size:                 64 kB
Pss:                  10 kB
Pss_Dirty:             7 kB
7f10-7f20 r--s 00200000 00:19 5 /dev/shm/d/cache
Pss:                   3 kB
7f20-7f30 rw-p 00000000 00:00 0
Pss:                 100 kB
7f30-7f40 r--s 00000000 00:19 6 /dev/shm/d/cache2
Pss:                 100 kB
`
	if got, err := share(smaps, 5); got != 13<<10 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	if got, err := share(smaps, 7); got != 0 || err != nil {
		t.Errorf("a file that is not mapped: %d, %v", got, err)
	}
}
