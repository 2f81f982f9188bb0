// Command stocached creates, lists, watches, checks, fills, serves and removes caches. Package
// internal/cli has its commands.
package main

import (
	"os"

	"github.com/stocached/stocached/internal/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr)) }
