package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stocached/stocached/internal/verify/expect"
	"github.com/stocached/stocached/internal/verify/fatal"
	"github.com/stocached/stocached/internal/verify/redistest"
	"github.com/stocached/stocached/source"
	"github.com/stocached/stocached/tier"
)

// A peer that answers one command with bytes that no engine sends, and all others like a single server.
func hostilePeer(t *testing.T, command string, answer func(w io.Writer)) string {
	l := fatal.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					words, err := readCommand(r)
					switch {
					case err != nil:
						return
					case strings.HasPrefix(words, command):
						answer(c)
					case strings.HasPrefix(words, "cluster slots"):
						io.WriteString(c, "-ERR This instance has cluster support disabled\r\n")
					case strings.HasPrefix(words, "hello"):
						io.WriteString(c, "-ERR unknown command 'hello'\r\n")
					case strings.HasPrefix(words, "get"):
						io.WriteString(c, "$-1\r\n")
					case strings.HasPrefix(words, "hset"), strings.HasPrefix(words, "expire"):
						io.WriteString(c, ":1\r\n")
					case strings.HasPrefix(words, "hgetall"):
						io.WriteString(c, "*0\r\n")
					default:
						io.WriteString(c, "+OK\r\n")
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func readCommand(r *bufio.Reader) (string, error) {
	head, err := r.ReadString('\n')
	n, _ := strconv.Atoi(strings.Trim(head, "*\r\n"))
	var words []string
	for range n {
		if _, err = r.ReadString('\n'); err != nil {
			return "", err
		}
		word, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		words = append(words, strings.ToLower(strings.TrimSpace(word)))
	}
	return strings.Join(words, " "), err
}

// forEver writes a text until the other end closes.
func forEver(text string) func(io.Writer) {
	return func(w io.Writer) {
		all := strings.Repeat(text, 1+1<<16/len(text))
		for {
			if _, err := io.WriteString(w, all); err != nil {
				return
			}
		}
	}
}

func once(text string) func(io.Writer) { return func(w io.Writer) { io.WriteString(w, text) } }

// Ensure that no number in an answer costs memory before its bytes have come, and that no answer goes on for ever.
func TestHostileAnswers(t *testing.T) {
	for name, answer := range map[string]func(io.Writer){
		"a list of 2^31 elements":     once("*2147483647\r\n"),
		"a list of 2^63 elements":     once("*9223372036854775807\r\n"),
		"a list of less than none":    once("*-2147483648\r\n"),
		"a list in a list":            once("*1\r\n*2147483647\r\n"),
		"lists in lists":              forEver("*1\r\n"),
		"a value of 2^31 bytes":       once("$2147483647\r\n"),
		"a value of 2^29 bytes":       once("$536870912\r\n"),
		"a value of less than none":   once("$-7\r\n"),
		"a value of 2^28 in a list":   once("*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$268435456\r\n"),
		"an error without an end":     func(w io.Writer) { once("-ERR ")(w); forEver("x")(w) },
		"a number without an end":     func(w io.Writer) { once("*1")(w); forEver("0")(w) },
		"a list that goes on":         func(w io.Writer) { once("*65000\r\n")(w); forEver("$4096\r\n" + strings.Repeat("v", 4096) + "\r\n")(w) },
		"a map of 2^31 pairs":         once("%2147483647\r\n"),
		"another protocol":            once("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"a line with nothing but \\n": once("\n"),
	} {
		for _, command := range []string{"cluster slots", "hgetall", "info", "get", "set", "ping"} {
			t.Run(name+" to "+command, func(t *testing.T) {
				address := hostilePeer(t, command, answer)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				from := newCounted(4, 1000)
				about := tier.About{Cache: "c", Info: from.Info(), Log: slog.New(slog.DiscardHandler)}
				settings := source.Settings{"addresses": []any{address}, "timeout": "5s"}
				tt := fatal.Value(open(settings, about))(t)
				if e, err := tt.connect(t.Context()); err == nil {
					tt.engine.Store(e)
					tt.compare()
					for _, n := range e.all() {
						n.measure()
					}
					tt.Get(context.Background(), 0, 1000, make([]byte, 1000+tier.Spare))
					tt.Put(context.Background(), 0, make([]byte, 1000))
				} else if command != "cluster slots" {
					t.Error(err)
				} else if !strings.Contains(err.Error(), "the node answers") && !strings.Contains(err.Error(), "parse") {
					t.Errorf("the error says %q", err)
				}
				expect.Works(Examine(t.Context(), settings, about))(t)
				expect.NoError(t, tt.Close())
				runtime.ReadMemStats(&after)
				if took := after.TotalAlloc - before.TotalAlloc; took > 128<<20 {
					t.Errorf("it took %d MiB", took>>20)
				}
			})
		}
	}
}

// What an engine answers passes whole and in pieces: large values, nils, errors, lists in lists.
func TestAnswersOfEngines(t *testing.T) {
	value := strings.Repeat("v", 200_000)
	text := "+OK\r\n$-1\r\n*-1\r\n:7\r\n-ERR no\r\n*0\r\n$0\r\n\r\n" +
		fmt.Sprintf("$%d\r\n%s\r\n", len(value), value) +
		"*2\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\nh\r\n:6379\r\n*0\r\n" + "+PONG\r\n"
	for _, piece := range []int{1, 2, 7, 4096, len(text)} {
		a := answers{most: len(value)}
		for k := 0; k < len(text); k += piece {
			if err := a.follow([]byte(text[k:min(k+piece, len(text))])); err != nil {
				t.Fatalf("pieces of %d bytes, at %d: %v", piece, k, err)
			}
		}
		if len(a.line) != 0 || a.skip != 0 || len(a.left) != 0 {
			t.Errorf("pieces of %d bytes: %d, %d and %d are left", piece, len(a.line), a.skip, len(a.left))
		}
	}
	server := redistest.Start(t)
	h := connect(t, newCounted(3, 100_000), true, []*redistest.Server{server}, nil)
	h.read(t, 100_000, 0, 1, 2)
	h.written(t)
	h.read(t, 100_000, 0, 1, 2)
	fatal.Until(t, "hits", func() bool { return h.tier.Status().Hits == 3 })
}
