// Package client is what a Go program imports to use a stocached cache: one cache of training samples in shared memory for all processes of a machine.
//
// A cache has room for some samples of a dataset, addressed by their index 0..N-1. Any process (Go, C, Python) fills it on first read; a filled sample stays until
// somebody clears the cache or overwrites the sample. A hit is plain memory access: no system call, no message, no daemon.
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
// View and Ready return memory of the cache, mapped read-only: writing to it is a fault. It stays valid until Close of its Cache. Its bytes are final unless
// somebody clears the cache or overwrites the sample; then it may show the old bytes, the new ones or a mix. Copies (Get, Gather, GetOrLoad) are checked after copying
// and are never torn.
//
// # Concurrency
//
// A Cache may be used by any number of goroutines, Close included: calls under way end first, later ones return ErrClosed. Nothing waits unless it is asked
// to (the flag Wait, Clear, GetOrLoad).
//
// # Errors
//
// Errors wrap one of the sentinels of this package, for errors.Is, with the numbers and the next step in their text. That a sample is not there is no error, and neither
// is that it could not be stored: that is a Result.
package client
