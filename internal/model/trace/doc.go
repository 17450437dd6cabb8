// Package trace is the specification of the lock on one Redis server, and a check that the running code keeps to it.
//
// # What Redis keeps for a lock
//
// A lock is a key whose value is its owner, with an end by the server's clock. An owner is one tenure: its id is used once.
// Beside the lock Redis keeps, see [State]:
//
//   - a fence: the largest token ever issued, the token of the tenure that nobody has released, and which tenures were lost
//   - a line of the waiters, each with what it asked for, by when it counts as dead, and the inbox in which it is told
//   - a list of those inside, if several hold the lock together: each with its limit, and the end of its lease
//   - tombstones of owners whose release may have overtaken their acquire
//
// All of that ends by itself. Nothing else decides anything: what a call does follows from what it finds, from its
// arguments, from the clock, and from what the server says of inboxes and of publishing.
//
// # What a call may do
//
// There are three calls, and each is one step, as Redis runs one script at a time.
//
//   - An acquire takes the lock, or is refused. One that waits joins the line, and looks again now and then.
//   - A renewal lengthens a lease.
//   - A forget ends a hold, a wait, or an acquire whose answer was lost, and passes the lock on to those in line.
//
// The file rules.go has the rules, each as a sentence and as code: [Explain] says what a call leaves behind, answers and
// publishes, from what it found. It shares no code with the lock.
//
// # What is checked
//
// In a build with the tag holdfast_trace, each script appends to a Redis list what it found, was asked, did and answered. As
// the script itself does that, the events are in the server's order. A [Checker] takes them one by one. An event is explained if
//
//   - what the last call left, less what has ended since, is what this one finds;
//   - the rules lead from there to exactly what it leaves, answers and publishes.
//
// Nothing is excused. A program that changes the keys of a lock otherwise has to say so in the trace, see [Outside]. Of each rule the
// tests also require that some event has no explanation without it, so that no rule is there only in name.
//
// To check it, run one of these. The first takes a minute, and prints for each rule an event that needs it:
//
//	go test -count=1 -v -run TestScriptsDoWhatTheirSpecificationSays ./core
//	HOLDFAST_SOAK=1 DURATION=1h go test -timeout 0 -tags holdfast_trace -run '^TestTraced$' -v ./core
//	make soak DURATION=8h
//
// To see it fail, change a .lua file in core/internal/protocol, and run the first again.
//
// # Limits
//
// A trace shows what happened, and nothing about what could have: [github.com/holdfast-go/holdfast/internal/model] searches
// that. Events are of one server. The scripts of several masters and of ticks write none, and in such a build a command is of
// one call. What a script sets to end counts from some moment within its run, and servers round to a millisecond. A clock that
// is set back has to be announced as a change from outside.
// A server that is killed while it appends to its file may have half of a script there and come back with that half. Such a
// server is not checked. A key of another type is not explained, nor is a fence or a line that somebody has damaged.
package trace
