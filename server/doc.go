// Package server fills caches for their clients: it reads each sample that somebody misses from the cache's source once for everybody, and puts it into shared memory.
//
// A hosted cache (hosted.go) is a segment, a client of it, and a source; its filler (fill.go) has the queues of wanted samples, and the goroutines that read them (reader.go). A
// connection (connection.go) is one client on the data socket, whose protocol is docs/control.md. Server (server.go) listens and holds all of it. Caches come, go and change while
// it runs (change.go, reload.go), asked for by operators (admin.go, admin_change.go), if they fit beside the others (room.go); the janitor looks after them (janitor.go).
// Nothing here lies on the path of a hit, and every cache goes on without its server.
package server
