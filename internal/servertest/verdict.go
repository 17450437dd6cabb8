package servertest

// A Verdict is the fate of one command or one published message.
// The zero value is [Pass].
type Verdict struct {
	action action
	until  <-chan struct{}
}

type action uint8

const (
	pass action = iota
	loseReply
	loseReplyAndClose
	loseRequest
	loseRequestAndClose
	holdRequest
	holdReply
	loseMessage // what loseReply means for a published message
)

// What can happen to a command. As on TCP, nothing overtakes on a connection:
// what is behind a lost or held part is lost or held with it, while the other
// connections of the client are not touched.
var (
	// Pass lets the command through.
	Pass = Verdict{}
	// LoseReply lets the server act; the reply and all that follows it on the
	// connection never arrive, so that the client runs into its own time limit.
	// A published message judged so is lost alone, as Redis may lose one.
	LoseReply = Verdict{action: loseReply}
	// LoseReplyAndClose lets the server act and closes the connection in place
	// of the reply.
	LoseReplyAndClose = Verdict{action: loseReplyAndClose}
	// LoseRequest keeps the command, and all that follows on the connection,
	// from the server; the client runs into its own time limit.
	LoseRequest = Verdict{action: loseRequest}
	// LoseRequestAndClose closes the connection before the command arrives.
	LoseRequestAndClose = Verdict{action: loseRequestAndClose}
)

// HoldRequest delays the command until the channel is closed. It then arrives
// even if the client has given up and closed the connection in the meantime,
// like a packet that took a long way round. A nil channel holds it for ever.
func HoldRequest(until <-chan struct{}) Verdict {
	return Verdict{action: holdRequest, until: orNever(until)}
}

// HoldReply lets the server act at once and delays the reply, or the published
// message, until the channel is closed. A nil channel holds it for ever.
func HoldReply(until <-chan struct{}) Verdict {
	return Verdict{action: holdReply, until: orNever(until)}
}

// orNever replaces the nil channel, which stands for no wait further on.
func orNever(until <-chan struct{}) <-chan struct{} {
	if until == nil {
		return make(chan struct{})
	}
	return until
}

// request returns what the command must wait for on its way up.
func (v Verdict) request() <-chan struct{} {
	if v.action == holdRequest {
		return v.until
	}
	return nil
}

// reply returns what the reply must wait for on its way down.
func (v Verdict) reply() <-chan struct{} {
	if v.action == holdReply {
		return v.until
	}
	return nil
}
