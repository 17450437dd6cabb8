// Package ginlock runs Gin handlers under a distributed lock. Requests that name the same thing run one at a time, across
// all replicas, and never alongside a task or a cron job that locks the same key.
//
//	locker, err := holdfast.New(rdb)
//	...
//	router.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), pay)
//
// The lock's key is holdfast.Key("order", id). A [Part] takes the id from the request's path, query, header or JSON body, or
// from a value that a middleware has set. Pass c.Request.Context() to everything that the handler calls. It ends when the
// lock is lost or the client goes away, and it carries the lock, which [holdfast.Held] returns. [WithLimit] lets several
// requests run at a time.
//
// # Guarantees
//
//   - The rest of the handler chain begins with the lock held, or does not run. [WithFailOpen] makes the one exception.
//   - The lock is held and renewed until the chain returns, even if the client goes away or the request's context ends. A
//     client that leaves and sends its request again is refused while the first one still runs.
//   - The lock is released when the chain returns or panics. A panic propagates, and no response is written on top of it.
//   - When the lock is lost, the request's context ends before another holder can start, as far as any lease can promise
//     that. Its cause matches [holdfast.ErrLost], or [holdfast.ErrClosed] if a Shutdown abandoned the lock.
//   - Different values never make the same key: ("a:b", "c") and ("a", "b:c") are two locks. A request without a value is
//     refused.
//   - [WithAlso] takes several locks for a request, in the same order everywhere: a transfer's accounts, an order and its
//     customer.
//   - A request waits for the lock as long as [WithBusy] says. The release delays the end of the response by at most 1 s, or
//     not at all if net/http has already sent it. A release that takes longer goes on in the background.
//
// # Limits
//
// A lock is a lease. A process that is paused past its lease keeps writing alongside its successor. Only what stores the data
// can refuse those writes, by the fencing token, [holdfast.Lock.Token]: see package sqlfence, which finds it in the request's
// context. [Respond] shows how to answer then.
//
// The lock covers the chain and nothing that outlives it. A slow client can make the chain last, and the gin.Context does
// not end with the lock. [New] says what to do about each.
//
// Put authentication before this middleware: a client that is not allowed to touch an order must not be able to block it. A
// timeout middleware that runs the chain in its own goroutine and returns early belongs before it too. After it, the lock
// would be released while the handler still works.
//
// A lock orders requests but does not remember them. A repeated Idempotency-Key runs again once the first request has
// finished. To answer the repetition, store the outcome under the lock, in one transaction with the effect: see
// examples/idempotency. A middleware cannot do that, as it does not have the transaction.
//
// Shut down the http.Server before the Locker. A Locker that is shut down while handlers run abandons their locks when the
// context of its Shutdown ends.
//
// # Errors
//
//	holdfast.ErrNotAcquired   409, Retry-After   another holder had the lock for the whole wait; 429 with WithLimit
//	holdfast.ErrUnavailable   503, Retry-After   Redis did not answer, or refused; see WithFailOpen
//	holdfast.ErrClosed        503, Retry-After   the Locker was shut down before the chain began
//	holdfast.ErrLost          503                the lock was lost or abandoned while the chain ran: its outcome is unknown
//	holdfast.ErrInvalid       400 or 413         the client left out the value of a part, or sent a malformed or too large one
//	holdfast.ErrSelfDeadlock  500                the chain already holds the lock, with a higher limit: see New
//	any other                 500                a part failed for a reason of its own
//
// A handler given to [WithErrorHandler] receives the same errors. Only with holdfast.ErrLost has the chain run, and its
// response stays if it gave one. [New] says which errors go to c.Errors. In a test with miniredis, hold the key with a
// second Locker for a 409, and close the server for a 503.
package ginlock
