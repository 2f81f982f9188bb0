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

// MaxSocketPath is the largest length of a socket's path in bytes.
const MaxSocketPath = 107

// SocketsVariable is the environment variable for the folder of the sockets.
const SocketsVariable = "STOCACHED_SOCKETS_DIR"

// SocketsDir returns the folder of the sockets: that of the environment, else one in the user's
// runtime folder, else the user's folder under /tmp.
func SocketsDir() string {
	if dir := os.Getenv(SocketsVariable); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "stocached")
	}
	return fmt.Sprintf("/tmp/stocached-%d", os.Getuid())
}
