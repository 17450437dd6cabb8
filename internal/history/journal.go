package history

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// An Entry is a line of a worker's journal. It is written before the worker goes on, so that the journal of one that is
// killed tells what it was at.
type Entry struct {
	Kind Kind
	At   Stamp
	Op   int // the call that it is about, by number in this process
	Loop int `json:",omitempty"` // which of the worker's loops

	// Of a call.
	What  What   `json:",omitempty"`
	Key   string `json:",omitempty"`
	Owner string `json:",omitempty"` // of an acquisition that may be entered again
	Of    int    `json:",omitempty"` // the acquisition that a release, a read or a write belongs to
	Waits bool   `json:",omitempty"` // for its turn, if it must
	Limit int    `json:",omitempty"` // of an acquisition that names one
	Tick  int64  `json:",omitempty"`
	Gap   int64  `json:",omitempty"`
	Based int64  `json:",omitempty"` // the value that a write replaces

	// Of its outcome.
	Out   Outcome `json:",omitempty"`
	Token int64   `json:",omitempty"` // of a write also in the call
	Value int64   `json:",omitempty"` // of a read; of a write in the call

	Until Stamp `json:",omitempty"` // of a hold that counts: its deadline
}

// A Kind says what an entry tells of a call.
type Kind string

const (
	Began  Kind = "call"
	Done   Kind = "done"
	Counts Kind = "counts" // At is a moment at which the holder counted on its hold
	NoMore Kind = "gone"   // the holder has noticed that it does not any more
)

// What names a call.
type What string

const (
	Locking   What = "lock"
	Reentrant What = "reentrant"
	Permitted What = "permit"
	Sharing   What = "shared"
	Several   What = "several" // one entry for each key of a call
	Releasing What = "release"
	Claiming  What = "claim"
	Reading   What = "read"
	Writing   What = "write"
)

// acquires tells whether it is the acquisition of a lock.
func (w What) acquires() bool {
	return w == Locking || w == Reentrant || w == Permitted || w == Sharing || w == Several
}

// An Outcome is what a call came to.
type Outcome string

const (
	Granted  Outcome = "granted"
	Refused  Outcome = "refused" // somebody else has the lock, or had the tick
	Released Outcome = "released"
	Lost     Outcome = "lost"
	Unknown  Outcome = "unknown" // it may have taken effect, at any time, or never
	Nothing  Outcome = "nothing" // it has had no effect
	Stuck    Outcome = "stuck"   // it waited for longer than anything but a hang takes
)

// journal writes entries, one write to each.
type journal struct {
	mu   sync.Mutex // guards what follows, while a line is written
	to   io.Writer
	next int
}

// begin writes that a call begins, and returns its number.
func (j *journal) begin(e Entry) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next++
	e.Kind, e.Op = Began, j.next
	j.write(e, func() Stamp { return Before(time.Now()) })
	return e.Op
}

// done writes what has come of a call.
func (j *journal) done(e Entry) {
	at := After(time.Now()) // not when the journal is free
	j.mu.Lock()
	defer j.mu.Unlock()
	e.Kind = Done
	j.write(e, func() Stamp { return at })
}

func (j *journal) note(e Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.write(e, func() Stamp { return e.At })
}

func (j *journal) write(e Entry, at func() Stamp) {
	e.At = at()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.to.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // the test is gone
	}
}

// ReadJournal hands entries on as they come, until the end. A last line that was not written to its end is none.
func ReadJournal(from io.Reader, each func(Entry)) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		each(e)
	}
}
