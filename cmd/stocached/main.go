// Command stocached creates, lists, watches, checks and removes caches. It needs no daemon, and looks at caches without being one of their clients.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
