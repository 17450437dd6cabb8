package page

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// The types below are what the page receives. Times are in ms since 1970. Replicas use their own clock, which on one machine
// is the same as ours.

// picture is everything on the page except the log.
type picture struct {
	Now      int64     `json:"now"`
	Lease    int64     `json:"lease"` // ms
	Soft     bool      `json:"soft"`
	Refused  int       `json:"refused"`
	Lanes    []*lane   `json:"lanes"`
	Products []product `json:"products"`
	Payments lock      `json:"payments"`
	Hands    []lock    `json:"hands"`              // the locks of handKeys
	Terms    []term    `json:"terms"`              // of the leader and of the previous one
	Redis    string    `json:"redis,omitempty"`    // why it does not answer
	Database string    `json:"database,omitempty"` // the same for the database
}

// lane is what a replica reports about itself.
type lane struct {
	Name     string `json:"name"`
	Pid      int    `json:"pid"`
	State    string `json:"state"`              // starting, running, pausing, paused, ended
	PausedAt int64  `json:"pausedAt,omitempty"` // when it was paused: its reports are from before
	Rows     []row  `json:"rows"`               // one for each product
	Hands    []row  `json:"hands"`              // one for each of handKeys
}

// row is what a replica does about the lock of a product, or about a lock that is taken by hand.
type row struct {
	Product string `json:"product"`
	Act     string `json:"act,omitempty"`   // for a lock taken by hand: the act
	Phase   string `json:"phase"`           // "", waiting, held, or lost (but still at work)
	Since   int64  `json:"since,omitempty"` // when the phase began
	Until   int64  `json:"until,omitempty"` // the end of the lease; 0 until it is known
	Token   int64  `json:"token,omitempty"`
	Pay     string `json:"pay,omitempty"` // how far the holder's payment is: queued, pays, paid
}

// lock is what Redis says about a lock.
type lock struct {
	Name    string `json:"name"`
	Held    bool   `json:"held"`
	Holder  string `json:"holder"` // the label of a holder that is alone
	Holders int    `json:"holders"`
	Limit   int    `json:"limit"` // 0 for readers, and if nobody holds the lock
	Token   int64  `json:"token"`
	Until   int64  `json:"until"` // when the first lease ends
	Waiting int    `json:"waiting"`
	Shares  int    `json:"shares"` // how many names the waiters have, if any has one
}

// product is what Redis and the database say about a product.
type product struct {
	lock
	Sold  int   `json:"sold"`
	Twice int   `json:"twice"`
	Fence int64 `json:"fence"` // the largest token that the database has seen
}

// term is the time for which a replica leads, as reported by replicas: to Redis the leader's lock is like any other.
type term struct {
	Name  string `json:"name"`
	Token int64  `json:"token"`
	Since int64  `json:"since"`
	Ended string `json:"ended"` // how it ended, if known
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
	remembered  = 100 // how many lines of the log are kept for a page that is opened later
	keptRefused = 50  // how many refused writes are kept, which other lines would soon push out of the log
	backlog     = 128 // how many messages a page is allowed to be behind before it is dropped
	mostWatched = 32  // how many pages can watch
)

// board holds what the page shows, and sends every change to the pages that watch.
type board struct {
	mu       sync.Mutex
	picture  picture
	log      []entry
	refusals []entry
	last     int // the last ID in the log
	watchers map[*watcher]bool
	closed   bool
}

// watcher is a page that watches. It receives messages in their wire format, until it is dropped or the board is closed.
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

// watch adds a page, whose first message is everything so far. It returns nil if too many pages watch, or if the board is
// closed.
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
		panic(err) // every type here can be marshaled
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", kind, data)
}

// tell sends a message to all pages and does not wait. A page that reads too slowly is dropped, and reconnects on its own.
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

// change lets f change the picture, and sends the new picture to the pages.
func (b *board) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	b.picture.Now = time.Now().UnixMilli()
	b.tell("picture", &b.picture)
}

// note adds a line to the log. It is called within change.
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

// become sets the state of a replica and logs e.
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
				t.Ended = "" // if it finds its lease gone, it reports that later
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

// term returns the term of the leader, or nil if no replica has led.
func (b *board) term() *term {
	if n := len(b.picture.Terms); n > 0 {
		return &b.picture.Terms[n-1]
	}
	return nil
}

// endTerm records how a replica's term ended: the term with that token, or for 0 the present one. A replica might report the
// end later than its successor reports the next term.
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

// report applies a report of a replica.
func (b *board) report(replica string, r report) {
	b.change(func() {
		e := entry{At: r.At, Replica: replica, What: r.What, Product: r.Product, Token: r.Token, Current: r.Current}
		took := (time.Duration(r.Elapsed) * time.Millisecond).String()
		l := b.lane(replica)
		at := &row{} // stands in if the report is about no lock: only the log shows it
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
