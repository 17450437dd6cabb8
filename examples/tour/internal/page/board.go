package page

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// What the page is told. Times are in ms since 1970: those of replicas by their own clock, which on one machine is ours.

// picture is all there is to see but for the log.
type picture struct {
	Now      int64     `json:"now"`
	Lease    int64     `json:"lease"` // ms
	Soft     bool      `json:"soft"`
	Refused  int       `json:"refused"`
	Lanes    []*lane   `json:"lanes"`
	Products []product `json:"products"`
	Payments lock      `json:"payments"`
	Hands    []lock    `json:"hands"`              // of handKeys
	Terms    []term    `json:"terms"`              // of the leader, and of the one before
	Redis    string    `json:"redis,omitempty"`    // why it cannot be asked
	Database string    `json:"database,omitempty"` // likewise
}

// lane is what a replica says of itself.
type lane struct {
	Name     string `json:"name"`
	Pid      int    `json:"pid"`
	State    string `json:"state"`              // starting, running, pausing, paused, ended
	PausedAt int64  `json:"pausedAt,omitempty"` // of a paused one: what it says is of then
	Rows     []row  `json:"rows"`               // one for each product
	Hands    []row  `json:"hands"`              // one for each of handKeys
}

// row is what it does about the lock of a product, or about one that is taken by hand.
type row struct {
	Product string `json:"product"`
	Act     string `json:"act,omitempty"`   // by hand: what it is after
	Phase   string `json:"phase"`           // "", waiting, held, lost: and still at work
	Since   int64  `json:"since,omitempty"` // of the phase
	Until   int64  `json:"until,omitempty"` // the end of the lease; 0 until it is known
	Token   int64  `json:"token,omitempty"`
	Pay     string `json:"pay,omitempty"` // where a held one is with its payment: queued, pays, paid
}

// lock is what Redis says of one.
type lock struct {
	Name    string `json:"name"`
	Held    bool   `json:"held"`
	Holder  string `json:"holder"` // the label of one that is alone
	Holders int    `json:"holders"`
	Limit   int    `json:"limit"` // 0 of readers, and where nobody holds it
	Token   int64  `json:"token"`
	Until   int64  `json:"until"` // the end of the first lease
	Waiting int    `json:"waiting"`
}

// product is what the servers say.
type product struct {
	lock
	Sold  int   `json:"sold"`
	Twice int   `json:"twice"`
	Fence int64 `json:"fence"` // the largest token that the database has seen
}

// term is the time for which a replica leads, by what the replicas say: to Redis its lock is one like any other.
type term struct {
	Name  string `json:"name"`
	Token int64  `json:"token"`
	Since int64  `json:"since"`
	Ended string `json:"ended"` // how, as far as it is known
}

// entry is a line of the log.
type entry struct {
	ID      int    `json:"id"`
	At      int64  `json:"at"`
	Replica string `json:"replica,omitempty"`
	What    string `json:"what"`
	Product string `json:"product,omitempty"`
	Token   int64  `json:"token,omitempty"`
	Current int64  `json:"current,omitempty"`
	Text    string `json:"text"`
}

const (
	remembered  = 100 // lines of the log, for a page that is opened later
	keptRefused = 50  // likewise of refused writes, which the other lines would soon push out
	backlog     = 128 // messages that a page may be behind before it is dropped
	mostWatched = 32  // pages
)

// board has what the page shows, and tells the pages that watch of every change.
type board struct {
	mu       sync.Mutex
	picture  picture
	log      []entry
	refusals []entry
	last     int // ID of the log
	watchers map[*watcher]bool
	closed   bool
}

// watcher is a page. It gets messages as they go over the wire, until it is dropped or the board is closed.
type watcher struct{ messages chan []byte }

func newBoard(l live, replicas, products []string) *board {
	b := &board{watchers: map[*watcher]bool{}}
	b.picture.Lease, b.picture.Soft = l.lease.Milliseconds(), l.soft
	for _, p := range products {
		b.picture.Products = append(b.picture.Products, product{lock: lock{Name: p}})
	}
	for _, key := range handKeys {
		b.picture.Hands = append(b.picture.Hands, lock{Name: key})
	}
	for _, name := range replicas {
		b.picture.Lanes = append(b.picture.Lanes, &lane{Name: name, State: "starting", Rows: idle(products), Hands: idle(handKeys)})
	}
	return b
}

func idle(products []string) []row {
	rows := make([]row, len(products))
	for i, p := range products {
		rows[i].Product = p
	}
	return rows
}

// watch begins with all that there is. It returns nil when there are too many, or the board is closed.
func (b *board) watch() *watcher {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.watchers) >= mostWatched {
		return nil
	}
	w := &watcher{make(chan []byte, backlog)}
	b.watchers[w] = true
	b.picture.Now = time.Now().UnixMilli()
	w.messages <- message("all", struct {
		Picture  *picture `json:"picture"`
		Log      []entry  `json:"log"`
		Refusals []entry  `json:"refusals"`
	}{&b.picture, b.log, b.refusals})
	return w
}

func (b *board) unwatch(w *watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(w)
}

func (b *board) drop(w *watcher) {
	if b.watchers[w] {
		delete(b.watchers, w)
		close(w.messages)
	}
}

func (b *board) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for w := range b.watchers {
		b.drop(w)
	}
}

func message(kind string, v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // no type here has anything that could not be written
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", kind, data)
}

// tell waits for nobody: a page that does not read as fast as things happen is dropped, and comes back by itself.
func (b *board) tell(kind string, v any) {
	m := message(kind, v)
	for w := range b.watchers {
		select {
		case w.messages <- m:
		default:
			b.drop(w)
		}
	}
}

// change lets f change what is shown, and tells of it.
func (b *board) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	b.picture.Now = time.Now().UnixMilli()
	b.tell("picture", &b.picture)
}

// note adds to the log, within change.
func (b *board) note(e entry) {
	b.last++
	e.ID = b.last
	if e.At == 0 {
		e.At = time.Now().UnixMilli()
	}
	b.log = latest(append(b.log, e), remembered)
	if e.What == "refused" {
		b.refusals = latest(append(b.refusals, e), keptRefused)
	}
	b.tell("log", e)
}

func latest[E any](all []E, most int) []E { return all[max(0, len(all)-most):] }

func (b *board) lane(replica string) *lane {
	for _, l := range b.picture.Lanes {
		if l.Name == replica {
			return l
		}
	}
	return nil
}

// become says what became of a replica.
func (b *board) become(replica, state string, pid int, e entry) {
	b.change(func() {
		l := b.lane(replica)
		l.State, l.PausedAt = state, 0
		switch state {
		case "paused":
			l.PausedAt = time.Now().UnixMilli()
			b.endTerm(replica, 0, "was paused")
			for _, r := range l.Rows {
				if r.Phase == "held" {
					e.Text += ", holds " + r.Product
				}
			}
		case "running":
			if t := b.term(); t != nil && t.Name == replica && t.Ended == "was paused" {
				t.Ended = "" // it may find its lease gone, and says so then
			}
		case "starting", "ended":
			for _, rows := range [][]row{l.Rows, l.Hands} {
				for i := range rows {
					rows[i] = row{Product: rows[i].Product}
				}
			}
			if how := "ended"; state == "ended" {
				if e.What == "killed" {
					how = "was killed"
				}
				b.endTerm(replica, 0, how)
			}
		}
		if pid != 0 {
			l.Pid = pid
		}
		if e.Text != "" {
			e.Replica = replica
			b.note(e)
		}
	})
}

// term is that of the leader, nil if none has led.
func (b *board) term() *term {
	if n := len(b.picture.Terms); n > 0 {
		return &b.picture.Terms[n-1]
	}
	return nil
}

// endTerm says how a replica's term ended, that of a token or for 0 the present one. The replicas may tell of it later than
// its successor tells of the next.
func (b *board) endTerm(replica string, token int64, how string) {
	for i := range b.picture.Terms {
		t := &b.picture.Terms[i]
		if t.Name == replica && t.Ended == "" && (t.Token == token || token == 0) {
			t.Ended = how
		}
	}
}

func (b *board) refused() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.picture.Refused
}

// report takes a report of a replica.
func (b *board) report(replica string, r report) {
	b.change(func() {
		e := entry{At: r.At, Replica: replica, What: r.What, Product: r.Product, Token: r.Token, Current: r.Current}
		took := (time.Duration(r.Elapsed) * time.Millisecond).String()
		l := b.lane(replica)
		at := &row{} // of no product: nothing to show but the log
		for _, rows := range [][]row{l.Rows, l.Hands} {
			for i := range rows {
				if rows[i].Product == r.Product {
					at = &rows[i]
				}
			}
		}
		current := at.Token == r.Token && at.Phase == "held"
		switch r.What {
		case "tries":
			*at = row{Product: r.Product, Act: r.Text}
		case "waiting":
			*at = row{Product: r.Product, Act: at.Act, Phase: "waiting", Since: r.At}
		case "acquired":
			*at = row{Product: r.Product, Act: at.Act, Phase: "held", Since: r.At, Token: r.Token}
			e.Text = "acquired after " + took
			if r.Product == outbox {
				e.Text = "leads, after " + took + " in line"
				b.picture.Terms = latest(append(b.picture.Terms, term{Name: replica, Token: r.Token, Since: r.At}), 2)
			}
		case "lease", "renewed":
			if current {
				at.Until = r.Until
			}
		case "lost":
			e.Text = "lost after " + took
			if at.Act == "" {
				e.Text += "; the payment and the write after it do not look, and go on"
			}
			b.endTerm(replica, r.Token, "lost the lock")
			if current {
				if at.Pay == "queued" {
					e.Text = "lost after " + took + ", before it could pay"
				}
				at.Phase, at.Since, at.Until = "lost", r.At, 0
			}
		case "queued", "pays", "paid":
			if current {
				at.Pay = r.What
			}
		case "displaced":
			e.Text = "lost its place at the payment provider after " + took
		case "released":
			if at.Token == r.Token {
				*at = row{Product: r.Product, Act: at.Act}
			}
			if r.Text == errResigned.Error() {
				e.Text = "resigned after " + took
				b.endTerm(replica, r.Token, "resigned")
			}
			if r.Text == "" {
				e.Text = "released after " + took
			}
		case "sold":
			e.Text = "sold one unit"
		case "refused":
			b.picture.Refused++
			e.Text = "the database refused the write"
		case "done":
			*at = row{Product: r.Product}
		case "redis":
			e.Text = "redis: " + r.Text
		}
		if e.Text != "" {
			b.note(e)
		}
	})
}
