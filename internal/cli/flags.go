package cli

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// wanted describes the values of a flag, by the type of the flag.
var wanted = map[string]string{
	"bool":     "true or false, or no value at all",
	"duration": "a time with a unit, such as 500ms, 30s or 1.5h",
	"float64":  "a number",
	"int":      "a whole number",
	"uint32":   "a whole number, 0 or above",
	"uint64":   "a whole number, 0 or above",
}

// flagError describes an invalid flag.
func flagError(_ *cobra.Command, err error) error {
	var none *pflag.NotExistError
	if errors.As(err, &none) {
		if number := none.GetSpecifiedShortnames(); number != "" && strings.Trim(number, "0123456789") == "" {
			return usage("-%s is below 0: indices and numbers begin with 0", number)
		}
	}
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return usageError{err}
	}
	flag, value := "--"+bad.GetFlag().Name, bad.GetValue()
	want, known := wanted[bad.GetFlag().Value.Type()]
	switch {
	case errors.Is(err, strconv.ErrRange):
		return usage("%s: %s is too large", flag, value)
	case known:
		return usage("%s: %q is not %s", flag, value, want)
	}
	return usage("%s: %w", flag, bad.Unwrap())
}

// checkFlags returns an error if a required flag is missing, or a flag is an empty text, as from an
// unset variable.
func checkFlags(c *cobra.Command, _ []string) (err error) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		switch needed := f.Annotations[cobra.BashCompOneRequiredFlag]; {
		case err != nil:
		case len(needed) > 0 && needed[0] == "true" && !f.Changed:
			err = usage("--%s is needed: %s", f.Name, strings.TrimSuffix(f.Usage, " (required)"))
		case f.Changed && f.Value.Type() == "string" && f.Value.String() == "":
			err = usage("--%s is empty; leave it out, or give it a value", f.Name)
		}
	})
	return err
}

// must panics on an error of cobra about a flag that was just added.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// choices offers the values of a flag to the shell.
func choices(c *cobra.Command, flag string, values ...string) {
	must(c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// exclusive allows only one of several flags, in completions too.
func exclusive(c *cobra.Command, flags ...string) {
	c.MarkFlagsMutuallyExclusive(flags...)
	check := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if check != nil {
			if err := check(c, args); err != nil {
				return err
			}
		}
		given := slices.DeleteFunc(slices.Clone(flags), func(name string) bool { return !c.Flags().Changed(name) })
		if len(given) > 1 {
			return usage("--%s: give one of them, not both", strings.Join(given, " and --"))
		}
		return nil
	}
}

// defaultReaders is the number of goroutines that read: enough to keep a disk busy, and few enough
// for any disk.
const defaultReaders = 8

func readersFlag(c *cobra.Command, readers *int) {
	c.Flags().IntVarP(readers, "jobs", "j", defaultReaders,
		"samples to read at a time; more are faster on slow disks and networks")
}

func checkReaders(n int) error {
	if n < 1 || n > 4096 {
		return usage("--jobs %d is not in 1..4096", n)
	}
	return nil
}
