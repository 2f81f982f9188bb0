package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/stocached/stocached/internal/cli/table"
	"github.com/stocached/stocached/shm"
)

// version is the version of the product. tools/version.py copies it from python/pyproject.toml.
const version = "0.1.0"

// commit is the commit of the source in a package, with a + if the source had changes: tools/release/native.py sets it
// by the linker's -X. Go's own record would depend on settings of the machine, and on the tags of the clone.
var commit string

var versionColumns = table.Columns[*debug.BuildInfo]{
	table.Listed("version", "version", "of stocached", func(*debug.BuildInfo) any { return version }),
	table.Listed("layout", "layout",
		"of the segments that it makes; it attaches to no others",
		func(*debug.BuildInfo) any { return shm.LayoutVersion }),
	table.Listed("signature", "signature",
		"of the sizes in the layout: builds that differ refuse each other's segments", func(*debug.BuildInfo) any {
			return fmt.Sprintf("%#x", shm.Signature())
		}),
	table.Listed("revision", "revision", "of the source, if the build knows it; + if the source had changes",
		func(b *debug.BuildInfo) any { return revision(b) }),
	table.Listed("go", "go", "that it was built with", func(*debug.BuildInfo) any { return runtime.Version() }),
	table.Listed("platform", "platform", "that it was built for",
		func(*debug.BuildInfo) any { return runtime.GOOS + "/" + runtime.GOARCH }),
}

// revision returns the commit of the source; "" if the build does not know it.
func revision(b *debug.BuildInfo) string {
	if commit != "" || b == nil {
		return commit
	}
	recorded, changed := "", ""
	for _, s := range b.Settings {
		switch {
		case s.Key == "vcs.revision":
			recorded = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	return recorded + changed
}

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of program and segment layout",
		Long: paragraphs(`Prints the version of this program and of the segments that it understands.`,
			versionColumns.Explain("OUTPUT"), exitStatus()),
		Args: arguments(0, 0, "none"),
		RunE: func(c *cobra.Command, _ []string) error {
			build, _ := debug.ReadBuildInfo()
			return versionColumns.One(c.OutOrStdout(), build, asJSON)
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
