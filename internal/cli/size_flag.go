package cli

import (
	"fmt"
	"reflect"

	bytesize "github.com/stocached/stocached/internal/size"
	"github.com/stocached/stocached/shm"
)

// size is a flag of bytes: "4096", "8GiB" (units of 1024), "500MB" (units of 1000), "1.5 GiB".
type size uint64

func (s *size) String() string { return fmt.Sprint(uint64(*s)) }
func (s *size) Type() string   { return "size" }

func (s *size) Set(text string) error {
	n, err := bytesize.ParseAbove0(text, "0 bytes; leave it out for the default")
	*s = size(n)
	return err
}

// optionBytes is a flag of bytes for an option of a cache, whose value is set.
type optionBytes struct {
	option *shm.Option
	value  reflect.Value
}

func (o optionBytes) String() string { return "0" } // no default is shown
func (o optionBytes) Type() string   { return "size" }

func (o optionBytes) Set(text string) error {
	n, err := bytesize.ParseAbove0(text, o.option.Refuse(0))
	o.value.SetUint(n)
	return err
}
