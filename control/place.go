package control

import (
	"fmt"
	"os"
	"path/filepath"
)

// Names of the sockets in their folder.
const (
	DataSocket  = "data.sock"
	AdminSocket = "admin.sock"
)

// MaxSocketPath is how many bytes the path of a socket may have.
const MaxSocketPath = 107

// SocketsVariable names the folder of the sockets in the environment.
const SocketsVariable = "STOCACHED_SOCKETS_DIR"

// SocketsDir returns the folder of the sockets: of the environment, else in the user's runtime folder, else one of the user's own under /tmp.
func SocketsDir() string {
	if dir := os.Getenv(SocketsVariable); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "stocached")
	}
	return fmt.Sprintf("/tmp/stocached-%d", os.Getuid())
}
