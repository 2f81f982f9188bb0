// Package client is what a Go program imports to use a stocached cache: training samples in shared
// memory, once for all processes of a machine.
//
// A cache holds samples of a dataset, or some of them, addressed by index 0..N-1. Any process (Go,
// C, Python) may fill a sample at its first read. The sample stays until a client clears the cache
// or overwrites the sample, or until a cache that evicts gives its slot to another one. A hit is
// plain memory access: no system call, no message, no daemon.
//
//	c, err := client.Create("imagenet", client.Options{Samples: 1281167, SampleBytes: 3 * 224 * 224, Size: 64 << 30})
//	if errors.Is(err, client.ErrExists) {
//		c, err = client.Attach("imagenet", client.AttachOptions{})
//	}
//	...
//	defer c.Close()
//	image, err := c.GetOrLoad(ctx, i, func(ctx context.Context) ([]byte, error) { return decode(ctx, files[i]) })
//
// # Memory
//
// View and Ready return memory of the cache, mapped read-only: a write to it is a fault. It is
// valid until Close of its Cache. Its bytes change only if a client clears the cache or overwrites
// the sample. Then it may show the old bytes, the new ones or a mix. A cache that evicts gives out
// no views: View returns ErrInvalid, and Ready yields copies. Copies (Get, Gather, GetOrLoad) are
// checked and never torn.
//
// # Concurrency
//
// A Cache is safe for concurrent use, Close too: Close waits for calls under way, and later calls
// return ErrClosed. Only the flag Wait, Clear and GetOrLoad wait.
//
// # Errors
//
// An error wraps a sentinel of this package, for errors.Is. Its text has the numbers and the next
// step. A miss is no error. A sample that could not be stored is a Result, not an error.
package client
