package source

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Objects are the named objects of a bucket or of a web server. A name is a whole address, such as
// s3://bucket/train/1.jpg. It is safe for concurrent use.
type Objects interface {
	// Stamp returns the state of an object.
	Stamp(ctx context.Context, name string) (Stamp, error)
	// ReadAt fills dst from offset with bytes of the object in this state. With an empty dst it
	// compares the state only. It returns ErrChanged if the object has another state, and
	// ErrUnavailable if another try may succeed.
	ReadAt(ctx context.Context, name string, stamp Stamp, dst []byte, offset int64) error
	// List calls each for the objects whose names begin with prefix, also those of StandsForFolder, in the order in
	// which the server lists them. It may be any order, and a name may come twice. List returns the first error of
	// each, and ErrInvalid if these objects cannot be listed.
	List(ctx context.Context, prefix string, each func(name string, stamp Stamp) error) error
	// Traffic returns what reads have cost so far. It is updated by them.
	Traffic() *Traffic
	// Notes returns what an operator should know of the objects whose Stamp was asked so far.
	Notes() []Note
	// Close closes idle connections. No call may be running.
	Close()
}

// StandsForFolder says whether an object is no file: the consoles of clouds make such objects, so that empty folders
// have a name. They have no data.
func StandsForFolder(name string) bool { return strings.HasSuffix(name, "/") }

type opening struct{}

// Opening returns the context of reads that open a source. Objects try these again themselves: package wrap tries reads
// of samples again, and has no source yet.
func Opening(ctx context.Context) context.Context { return context.WithValue(ctx, opening{}, true) }

// IsOpening says whether ctx comes from Opening.
func IsOpening(ctx context.Context) bool { return ctx.Value(opening{}) != nil }

type ofRecords struct{}

// OfRecords returns the context of reads of a file with records: it is no page of HTML, whatever its name is.
func OfRecords(ctx context.Context) context.Context { return context.WithValue(ctx, ofRecords{}, true) }

// IsOfRecords says whether ctx comes from OfRecords.
func IsOfRecords(ctx context.Context) bool { return ctx.Value(ofRecords{}) != nil }

type elsewhere struct{}

// Elsewhere returns the context of a list that ends with a FileError at a name that fits. Names are below the address.
func Elsewhere(ctx context.Context, fits func(name string) bool) context.Context {
	return context.WithValue(ctx, elsewhere{}, fits)
}

// CheckElsewhere returns a FileError if a name fits what Elsewhere got.
func CheckElsewhere(ctx context.Context, name string) error {
	if fits, ok := ctx.Value(elsewhere{}).(func(string) bool); ok && fits(name) {
		return &FileError{name}
	}
	return nil
}

// FileError names a file that the program reads itself.
type FileError struct{ Name string }

func (e *FileError) Error() string { return e.Name + " is a file that programs read themselves" }

// Writable are Objects that can also be written.
type Writable interface {
	Objects
	// Put writes an object, whole, also over another one.
	Put(ctx context.Context, name string, data []byte) error
}

// Traffic counts requests for parts of objects.
type Traffic struct {
	Requests  atomic.Uint64 // sent, also those that failed
	Bytes     atomic.Uint64 // received
	Hedged    atomic.Uint64 // second requests for reads that took long, among Requests
	HedgesWon atomic.Uint64 // hedges that were faster than the first
}

// ErrUnavailable is the error of a remote source that does not answer now. Another try may succeed.
var ErrUnavailable = errors.New("the source does not answer now")

// OpenObjects makes the Objects of a scheme. settings are the keys under `remote`. private was a part of an
// address of a web server.
type OpenObjects func(settings Settings, private Private) (Objects, error)

// Private is what an address may have that must be in no message: user and password, and a query such as a
// signature. Both go to the server with each request.
type Private struct{ User, Password, Query string }

// takePrivate removes what is private from an address.
func takePrivate(path *string) (p Private) {
	scheme, rest, _ := strings.Cut(*path, "://")
	if !IsRemote(*path) {
		return p
	}
	if isWeb(scheme) {
		rest, p.Query, _ = strings.Cut(rest, "?")
	}
	host, name, named := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(host, '@'); at >= 0 {
		p.User, p.Password, _ = strings.Cut(host[:at], ":")
		for _, text := range []*string{&p.User, &p.Password} {
			if plain, err := url.PathUnescape(*text); err == nil {
				*text = plain
			}
		}
		host = host[at+1:]
	}
	if *path = scheme + "://" + host; named {
		*path += "/" + name
	}
	return p
}

func isWeb(scheme string) bool { return scheme == "http" || scheme == "https" }

var schemes struct {
	sync.Mutex
	open map[string]OpenObjects
}

// RegisterScheme makes addresses of a scheme, such as s3, known to all kinds of source. Packages that
// implement Objects call it when they are imported. Package kinds imports all of them.
func RegisterScheme(scheme string, open OpenObjects) {
	schemes.Lock()
	defer schemes.Unlock()
	if schemes.open == nil {
		schemes.open = map[string]OpenObjects{}
	}
	schemes.open[scheme] = open
}

var address = regexp.MustCompile(`^([a-z][a-z0-9+.-]*)://`)

// IsRemote says whether a path is an address, such as s3://bucket/name.
func IsRemote(path string) bool { return address.MatchString(path) }

// Public returns an address without what is private in it; another path as it is.
func Public(path string) string {
	takePrivate(&path)
	return path
}

// RefuseAddress returns ErrInvalid if the value of a key is an address. next says what the user can do.
func RefuseAddress(key, path, next string) error {
	if !IsRemote(path) {
		return nil
	}
	return fmt.Errorf("%w: %s is %s, an address, and must be a local path; %s", ErrInvalid, key, Public(path), next)
}

// Remote has the key of all kinds of source that says how to reach an address. Their settings embed it.
type Remote struct {
	Remote map[string]any `key:"remote"`
}

// Place opens the files of a dataset: local ones, or those at an address. The kind that opened it
// closes it, after all its files.
type Place struct {
	objects Objects // nil: local files
}

// Place returns where the files of a path lie. It removes from the path what is Private. Errors: ErrInvalid.
func (r Remote) Place(at *string) (*Place, error) {
	if *at == "" {
		return nil, fmt.Errorf("%w: no path", ErrInvalid)
	}
	if scheme, rest, _ := strings.Cut(*at, "://"); isWeb(scheme) && strings.Contains(rest, "#") {
		return nil, fmt.Errorf("%w: the address %s has a #, and no server gets what follows it; write %%23 for it", ErrInvalid,
			Public(*at))
	}
	private := takePrivate(at)
	path := *at
	m := address.FindStringSubmatch(path)
	if m == nil {
		if r.Remote != nil {
			return nil, fmt.Errorf("%w: remote is for addresses such as s3://bucket/name, and %s is a local path", ErrInvalid, path)
		}
		return &Place{}, nil
	}
	if private.User != "" && !isWeb(m[1]) {
		return nil, fmt.Errorf("%w: the address of %s has a user or a key before an @; leave it out, and give credentials as the "+
			"guide of remote sources says", ErrInvalid, path)
	}
	schemes.Lock()
	open := schemes.open[m[1]]
	var known []string
	for scheme := range schemes.open {
		known = append(known, scheme+"://")
	}
	schemes.Unlock()
	if open == nil {
		slices.Sort(known)
		return nil, fmt.Errorf("%w: %s: there is no reader for %s://; known are: %s; download the files, and give a local path",
			ErrInvalid, path, m[1], strings.Join(known, ", "))
	}
	if rest := path[len(m[0]):]; rest == "" || rest[0] == '/' {
		what, as := "bucket", "bucket/name"
		if isWeb(m[1]) {
			what, as = "host", "host/path"
		}
		return nil, fmt.Errorf("%w: %s names no %s; write %s%s", ErrInvalid, path, what, m[0], as)
	}
	objects, err := open(r.Remote, private)
	if err != nil {
		return nil, err
	}
	return &Place{objects}, nil
}

// Objects returns the objects of an address, and nil for local files.
func (p *Place) Objects() Objects { return p.objects }

// inAddress makes the path of an address of what url.QueryEscape makes.
var inAddress = strings.NewReplacer("+", "%20", "%2F", "/")

// Join returns the path of a file in a folder. Below an address of a web server, the name is quoted: in its plain form
// a ? would begin a query, and a % another character. Some storage reads a + as a space.
func (p *Place) Join(folder, name string) string {
	if scheme, _, _ := strings.Cut(folder, "://"); p.objects != nil && isWeb(scheme) {
		name = inAddress.Replace(url.QueryEscape(name))
	}
	return folder + "/" + name
}

// Traffic returns what reads of the objects have cost; nil: local files.
func (p *Place) Traffic() *Traffic {
	if p.objects == nil {
		return nil
	}
	return p.objects.Traffic()
}

// Notes returns what an operator should know of the objects that were opened so far.
func (p *Place) Notes() []Note {
	if p.objects == nil {
		return nil
	}
	return p.objects.Notes()
}

// Open opens a file for reading. Errors: those of OpenFile and of Objects.Stamp.
func (p *Place) Open(ctx context.Context, path string) (*File, error) {
	if p.objects == nil {
		return OpenFile(path)
	}
	stamp, err := p.Stamp(OfRecords(ctx), path)
	if err != nil {
		return nil, err
	}
	return &File{Path: path, Stamp: stamp, objects: p.objects}, nil
}

// OpenAs opens a file that had this stamp before. It returns ErrChanged for another one: at once for a
// local file, and at the first read for an object.
func (p *Place) OpenAs(path string, stamp Stamp) (*File, error) {
	if p.objects != nil {
		return &File{Path: path, Stamp: stamp, objects: p.objects}, nil
	}
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	if err := stamp.Check(path, f.Stamp); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Stamp returns the stamp of a file. Errors: those of StampOf and of Objects.Stamp.
func (p *Place) Stamp(ctx context.Context, path string) (Stamp, error) {
	if p.objects == nil {
		return StampOf(path)
	}
	return p.objects.Stamp(ctx, path)
}

// Close ends connections.
func (p *Place) Close() {
	if p != nil && p.objects != nil {
		p.objects.Close()
	}
}
