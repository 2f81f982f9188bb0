module github.com/stocached/stocached/bench

go 1.26.0

require (
	github.com/stocached/stocached v0.0.0
	golang.org/x/sys v0.49.0
)

require github.com/edsrzf/mmap-go v1.2.0 // indirect

replace github.com/stocached/stocached => ../
