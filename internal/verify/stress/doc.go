// Package stress kills worker processes at random while they fill, read and overwrite one cache,
// and then checks the cache. Workers may be written in any language. This page is their contract;
// Work is the worker in Go (internal/verify/stress/cmd/stress).
//
// # Command line
//
//	worker <cache> <samples> <seconds> <seed>
//
// attaches to the cache by path. Until the seconds are over or it is killed, it does one operation
// after the other on sample = random(seed) mod samples:
//
//   - of 16 operations, 9 get a copy of the sample, verify it on a hit, and set it on a miss;
//   - 4 overwrite it;
//   - 2 gather 8 samples starting there (wrapping around), and verify each hit; in a variable-size
//     cache they get them one by one;
//   - 1 claims it and writes it in two pieces, then publishes or aborts it in turn.
//
// Sets and publishes tell a cost: 2^((sample + t) mod 12) us, with t = quarters of a second since 1970. So samples cost very
// different times, each costs much the same for all workers, and the policy `cost` evicts all the time.
//
// All results (BUSY, FULL, EXISTS, ...) are valid. The worker exits with 0 when the time is over,
// and when the client table is full. It exits with 3 after a line that begins with "TORN" on stderr
// when a sample does not verify. It exits with 4 after a line that begins with "ERROR" when a call
// fails with any other error.
//
// # Forks
//
// An interpreter that is slow to start may fork workers:
//
//	worker fork
//
// starts one for each line "<cache> <samples> <seconds> <seed>" on stdin, until stdin ends. When
// the worker writes its pid as a line to stdout, its parent has ended. The kernel kills the worker
// when its new parent ends.
//
// # Payload
//
// A sample has the cache's sample_bytes, at least 32; in a variable-size cache a length of the
// writer's choice in 32..sample_bytes. In little-endian 64-bit words:
//
//	0  sample    its index
//	1  sequence  how many samples this writer has written before, plus 1
//	2  writer    pid of the writer
//	3  check     splitmix64(sample ^ rotl(sequence, 21) ^ rotl(writer, 42) ^ length)
//	4  stream    the splitmix64 generator with state = check, word after word:
//	             state += 0x9e3779b97f4a7c15, word = mix(state)
//
// A length that is not a multiple of 8 cuts the last word (low bytes first). splitmix64(x) is mix(x
// + 0x9e3779b97f4a7c15) and
//
//	mix(z): z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;  z = (z ^ z >> 27) * 0x94d049bb133111eb;  z ^ z >> 31
//
// so every byte of a sample follows from its first 24 and its length, and a reader can check each
// byte. Test vector: sample 5, sequence 7, writer 1234, length 45:
//
//	0500000000000000 0700000000000000 d204000000000000 00b77615df6feacf f6bb854794aefff9 898ee19516
package stress
