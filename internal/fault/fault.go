// Package fault names the points at which a test may stop or kill a process, or run its own code.
//
// A process passes a point right after the step that gives the point its name;
// docs/spec/protocol.md lists the points. Without the build tag "faultpoints" At is an empty
// function that the compiler removes. With it, the environment variable
//
//	STOCACHED_FAULT="<point>[@<n>]=<kill|stop>"
//
// makes the process send itself SIGKILL or SIGSTOP when it passes the point for the n-th time
// (default 1, all goroutines counted together). SetHook installs a function that is called at every
// point. The C library obeys the same variable in its fault builds.
package fault
