// Package fault names the places at which a test may stop or kill a process, or run code of its
// own.
//
// A place is passed right after the step it is named for took effect; docs/spec/protocol.md lists
// them. Without the build tag "faultpoints" At is an empty function that the compiler removes. With
// it, the environment variable
//
//	STOCACHED_FAULT="<point>[@<n>]=<kill|stop>"
//
// makes the process send itself SIGKILL or SIGSTOP when it passes the point for the n-th time
// (default 1, all goroutines counted together), and SetHook installs a function that is called at
// every point. The C library obeys the same variable in its fault builds.
package fault
