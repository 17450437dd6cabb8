// Package ginlock runs Gin handlers under a distributed lock. Requests that name the same thing run one at a time, across
// all replicas, and never alongside a task or a cron job that locks the same key.
//
//	router.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), pay) // locker is holdfast.New(rdb)
//
// The lock's key is holdfast.Key("order", id). A [Part] takes the id from the request, or from a value that a middleware
// has set. Pass c.Request.Context() to everything that the handler calls: it ends when the lock is lost or the client
// goes away, and carries the lock, which [holdfast.Held] returns.
//
// Package httplock is the same for net/http, and limits calls to other services.
//
// # Guarantees
//
//   - The rest of the handler chain begins with the lock held, or does not run. [WithFailOpen] makes the one exception.
//   - The lock is held and renewed until the chain returns or panics, even if the client goes away.
//   - When the lock is lost, the request's context ends before another holder can start, as far as any lease can promise
//     that. Its cause matches [holdfast.ErrLost], and [holdfast.ErrClosed] too if a Shutdown abandoned the lock.
//   - Different values never make the same key: ("a:b", "c") and ("a", "b:c") are two locks.
//   - The release delays the end of the response by at most 1 s.
//
// # Errors
//
// If the chain does not run under the lock to its end, the request is answered by the first row that the error matches:
//
//	holdfast.ErrLost          503               the lock was lost or abandoned while the chain ran: its outcome is unknown
//	holdfast.ErrNotAcquired   409, Retry-After  another holder had the lock for the whole wait; 429 with WithLimit
//	holdfast.ErrUnavailable   503, Retry-After  Redis did not answer, or refused; see WithFailOpen
//	holdfast.ErrClosed        503, Retry-After  the Locker was shut down before the chain began
//	holdfast.ErrInvalid       400 or 413        the client left out the value of a part, or sent a malformed or too large one
//	holdfast.ErrSelfDeadlock  500               the chain already holds the lock, with a higher limit
//	any other                 500               a part failed for a reason of its own: c.Errors says why
//
// The error also matches that of the request's context if that ended the wait. After a loss the chain's own response stays,
// if it has written anything or set a status other than 200.
//
// c.Errors receives these errors, except ErrNotAcquired and ErrInvalid, and those of the release and of a run without the
// lock. A loss is there once.
//
// # Limits
//
// A lock is a lease. A process that is paused past its lease keeps writing alongside its successor. Only what stores the
// data can refuse those writes, by the fencing token: see package sqlfence, which finds it in the request's context.
//
// The lock covers neither goroutines that a handler leaves running nor a hijacked connection after its handler has
// returned. WithLock(holdfast.WithMaxHold(d)) ends the lock of a handler that hangs, but not the handler. So does WithProgress
// for one that calls holdfast.Progress.
//
// A slow client keeps the lock while the handler reads its upload or writes its response. The http.Server's ReadTimeout
// and WriteTimeout bound that, from the beginning of the request. With HTTP/1 the read or write that then fails ends the
// request's context; with HTTP/2 WriteTimeout does.
//
// The gin.Context does not see the lock: Acquire(c, key) in a handler would wait forever for the handler's own lock. Use
// c.Request.Context(), and look at its Err in each step of a [gin.Context.Stream], which goes on after a loss.
//
// Put authentication in front of this middleware, so that a client cannot block what it is not allowed to touch. Put a
// timeout middleware there too: behind, one that returns before its chain would release the lock while the handler works.
//
// A repeated Idempotency-Key runs again once the first request has finished. To answer it instead, store the outcome in one
// transaction with the effect: see examples/idempotency.
//
// Shut down the http.Server before the Locker.
package ginlock
