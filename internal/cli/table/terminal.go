package table

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// TerminalSize returns columns and lines of a terminal, and whether it said so; else 80 by 24.
func TerminalSize(w io.Writer) (width, height int, said bool) {
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
			return int(size.Col), int(size.Row), true
		}
	}
	return 80, 24, false
}
