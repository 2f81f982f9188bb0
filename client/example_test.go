package client_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stocached/stocached/client"
)

// A cache without a name, for one process and its children.
func Example() {
	c, err := client.Create("", client.Options{Samples: 1000, SampleBytes: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	result, err := c.Set(7, []byte("seed"), 0)
	fmt.Println(result, err)
	result, err = c.Set(7, []byte("wilt"), 0)
	fmt.Println(result, err)

	view, hit, err := c.View(7)
	fmt.Printf("%s %v %v\n", view, hit, err)
	_, hit, err = c.View(8)
	fmt.Println(hit, err)
	// Output:
	// STORED <nil>
	// EXISTS <nil>
	// seed true <nil>
	// false <nil>
}

// The first process creates the cache, the others attach.
func ExampleAttach() {
	name := fmt.Sprintf("example-%d", os.Getpid())
	open := func() (*client.Cache, error) {
		c, err := client.Create(name, client.Options{Samples: 100, SampleBytes: 5, Fingerprint: "flowers, resized", UnlinkLast: true})
		if errors.Is(err, client.ErrExists) {
			return client.Attach(name, client.AttachOptions{Fingerprint: "flowers, resized"})
		}
		return c, err
	}
	first, err := open()
	if err != nil {
		fmt.Println(err)
		return
	}
	second, err := open()
	if err != nil {
		fmt.Println(err)
		return
	}
	first.Set(3, []byte("tulip"), 0)
	first.Close()
	view, _, _ := second.View(3)
	fmt.Printf("%s\n", view)
	second.Close() // the last user: the cache goes

	_, err = client.Attach(name, client.AttachOptions{})
	fmt.Println(errors.Is(err, client.ErrNotFound))
	// Output:
	// tulip
	// true
}

// The first epoch loads, the second one hits.
func ExampleCache_GetOrLoad() {
	c, err := client.Create("", client.Options{Samples: 3, SampleBytes: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	loads := 0
	for range 2 {
		for i := range c.Info().Samples {
			data, err := c.GetOrLoad(context.Background(), i, func(context.Context) ([]byte, error) {
				loads++
				return fmt.Appendf(nil, "sample %d", i), nil
			})
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Printf("%s, loads %d\n", data, loads)
		}
	}
	// Output:
	// sample 0, loads 1
	// sample 1, loads 2
	// sample 2, loads 3
	// sample 0, loads 3
	// sample 1, loads 3
	// sample 2, loads 3
}

// Samples on a disk survive the program. The second turn stands for a later one.
func ExampleOpenDisk() {
	folder, err := os.MkdirTemp("", "stocached") // such as /mnt/nvme/stocached
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	loads := 0
	load := func(context.Context) ([]byte, error) {
		loads++
		return make([]byte, 4096), nil
	}
	for range 2 {
		disk, err := client.OpenDisk(filepath.Join(folder, "squares.tier"),
			client.DiskOptions{Samples: 1000, SampleBytes: 4096, Size: 64 << 20, Fingerprint: "squares-1"})
		if err != nil {
			fmt.Println(err)
			return
		}
		cache, err := client.Create("", client.Options{Samples: 1000, SampleBytes: 4096, Slots: 250, Disk: disk})
		if err != nil {
			fmt.Println(err)
			return
		}
		for i := range 1000 {
			if _, err := cache.GetOrLoad(context.Background(), i, load); err != nil {
				fmt.Println(err)
			}
		}
		cache.Close()
		disk.Close()
	}
	fmt.Println(loads, "loads")
	// Output: 1000 loads
}

// A batch with one call: rows of misses keep their bytes.
func ExampleCache_Gather() {
	c, err := client.Create("", client.Options{Samples: 10, SampleBytes: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for i := 0; i < 10; i += 2 {
		c.Set(i, fmt.Appendf(nil, "s%d", i), 0)
	}
	batch, hit := []byte("-- -- -- --"), make([]bool, 4)
	n, err := c.Gather([]int{8, 1, 0, 4}, batch, client.GatherOptions{Stride: 3, Hit: hit})
	fmt.Printf("%s %v %d %v\n", batch, hit, n, err)
	// Output:
	// s8 -- s0 s4 [true false true true] 3 <nil>
}

// A fill in pieces, at any offset.
func ExampleCache_Claim() {
	c, err := client.Create("", client.Options{Samples: 10, SampleBytes: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	claim, result, err := c.Claim(4, 10, 0)
	if result != client.Stored {
		fmt.Println(result, err)
		return
	}
	claim.WriteAt([]byte("world"), 5)
	claim.WriteAt([]byte("hello"), 0)
	fmt.Println(claim.Publish())
	view, _, _ := c.View(4)
	fmt.Printf("%s\n", view)
	// Output:
	// <nil>
	// helloworld
}

// All samples in the cache, without a call for each.
func ExampleCache_Ready() {
	c, err := client.Create("", client.Options{Samples: 1000, Variable: true, Size: 8 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	c.Set(500, []byte("in the middle"), 0)
	c.Set(20, []byte("early"), 0)
	for i, view := range c.Ready() {
		fmt.Printf("%d: %s\n", i, view)
	}
	// Output:
	// 20: early
	// 500: in the middle
}

// Samples of several fields: an image and its label.
func ExampleCache_Split() {
	c, err := client.Create("", client.Options{Samples: 10, Fields: []client.Field{
		{Name: "image", DType: client.Uint8, Dims: []uint64{2, 3}},
		{Name: "label", DType: client.Int64},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	label := binary.LittleEndian.AppendUint64(nil, 42)
	sample, err := c.Join([]client.Part{{Data: []byte{1, 2, 3, 4, 5, 6}}, {Data: label}})
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Set(0, sample, 0)

	view, _, _ := c.View(0)
	parts, err := c.Split(view)
	if err != nil {
		fmt.Println(err)
		return
	}
	for k, f := range c.Info().Fields {
		fmt.Println(f.Name, f.DType, parts[k].Dims, parts[k].Data)
	}
	// Output:
	// image uint8 [2 3] [1 2 3 4 5 6]
	// label int64 [] [42 0 0 0 0 0 0 0]
}
