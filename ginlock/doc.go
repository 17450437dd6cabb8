// Package ginlock runs Gin handlers under a distributed lock. Of all requests that name the same thing, on whichever replica,
// one runs at a time, and none beside a task or a cron job that locks the same key. If the Locker has [holdfast.WithLimit], n
// run at a time here too, and one more is refused with 409.
//
//	locker, err := holdfast.New(rdb)
//	...
//	router.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), pay)
//
// The lock's key is holdfast.Key("order", id). A [Part] takes what the request names from its path, query, header or JSON
// body, or from a middleware. Pass c.Request.Context() on to what the handler calls. It ends when the lock is lost or the
// client goes away, and it carries the lock, which [holdfast.Held] returns, and the token, which a fence finds.
//
// # Guarantees
//
//   - The rest of the chain begins with the lock held, or not at all, unless [WithFailOpen] says otherwise. While Redis is
//     down, requests are refused.
//   - The lock is held and renewed until the chain returns, whatever becomes of the client and of the request's context. A
//     client that gives up and sends its request again is refused while the first one still runs.
//   - The lock is released when the chain returns or panics. A panic goes on, and no response is written on top of it.
//   - The request's context ends before another holder can start, as far as any lease can promise that. Its cause matches
//     [holdfast.ErrLost], or [holdfast.ErrClosed] if a Shutdown gave the lock up, which this package treats as a loss.
//   - Different values never make the same key, whatever they contain: ("a:b", "c") and ("a", "b:c") are two locks. A request
//     without a value is refused.
//   - [WithAlso] takes several locks for a request, in one order everywhere: a transfer's accounts, an order and its customer.
//   - A request waits for the lock as long as [WithBusy] says. The end of a response, unless net/http has sent it already,
//     waits at most 1 s for the release, which then goes on in the background.
//
// # Limits
//
// A lock is a lease. A process that was paused past it goes on writing beside its successor. Only a fence stops that: compare
// [holdfast.Lock.Token] where the work is stored, as package sqlfence does; see [Respond].
//
// The lock covers the chain and nothing that outlives it, and a slow client can make the chain last. The gin.Context does not
// end with the lock. [New] says what to do about each.
//
// Authentication belongs in front of this middleware: a client that may not touch an order must not be able to block it. A
// middleware that runs the chain in a goroutine of its own and goes on without it, as timeout middlewares do, belongs in front
// too: behind, the lock would be released while the handler still works.
//
// A lock orders requests and does not remember them. A repeated Idempotency-Key runs again once the first request is through.
// Store the outcome, under the lock and in one transaction with the effect, to answer from it: examples/idempotency does. A
// middleware cannot, as it does not have that transaction.
//
// Shut down the http.Server before the Locker. A Locker that is shut down under its handlers gives their locks up when the
// context of its Shutdown ends.
//
// # Errors
//
//	holdfast.ErrNotAcquired   409, Retry-After   another holder had the lock for all of the wait of WithBusy; 429 with WithLimit
//	holdfast.ErrUnavailable   503, Retry-After   Redis did not answer; see WithFailOpen
//	holdfast.ErrClosed        503, Retry-After   the Locker was shut down before the chain began
//	holdfast.ErrLost          503                the lock was lost, or given up, while the chain ran: its outcome is unknown
//	holdfast.ErrInvalid       400 or 413         the client left out what a part takes, or sent a malformed or too large one
//	any other                 500                a part failed for a reason of its own, or a lock is shared here: see New
//
// A handler given to [WithErrorHandler] gets these too. Only with holdfast.ErrLost has the chain run, and its answer stays if
// it gave one. All but 409, 429, 400 and 413 are in c.Errors as well, and so is a release that Redis did not confirm, unless a
// hook of a [Trace] takes them.
//
// For tests, on a miniredis, a second Locker that holds the key makes the 409, and closing the miniredis the 503.
package ginlock
