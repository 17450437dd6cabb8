// Package ginlock runs Gin handlers under a distributed lock: of all requests that name the same thing, on
// whichever replica, one runs at a time, and none beside a task or a cron job that locks the same key.
//
//	locker, err := holdfast.New(rdb)
//	...
//	router.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), pay)
//
// The lock's key is holdfast.Key("order", id). Its context is the request's: pass c.Request.Context() on to
// whatever the handler calls, so that work ends when the lock is lost or the client goes away, and so that a
// fence finds the token.
//
//	func pay(c *gin.Context) {
//		err := payments.Pay(c.Request.Context(), c.Param("id"))
//		...
//	}
//
// What several values name together takes Parts(Param("tenant"), Param("id")); what a client names,
//
//	ginlock.New(locker, "request",
//		ginlock.Parts(ginlock.Value("user"), ginlock.Header("Idempotency-Key")), ginlock.WithRouteScope())
//
// and anything else a function of the form [Part]. How requests are refused is described at [New].
//
// # Guarantees
//
//   - The rest of the chain runs while the lock is held, or not at all, unless [WithFailOpen] or [WithSkipper]
//     say otherwise. Redis being down is a refusal.
//   - The lock is held and renewed until the chain returns, whatever becomes of the client and of the request's
//     context. A client that gives up and sends its request again is refused while the first one still runs.
//   - It is released when the chain returns or panics. The panic goes on; no response is written on top of it.
//   - The request's context ends, with a cause that matches [holdfast.ErrLost], before another holder can start, as
//     far as any lease can promise that.
//   - Different values never make the same key, whatever they contain: ("a:b", "c") and ("a", "b:c") are two
//     locks. A request without a value is refused, and never shares a lock with other such requests.
//   - A request waits for the lock, and a response for the release, for a bounded time: see [WithBusy]; the
//     release gets 1 s and goes on in the background.
//
// # Limits
//
// A lock is a lease. A process that was paused past it goes on writing beside its successor; only a fence stops
// that: compare [holdfast.Lock.Token] where the work is stored.
//
// The lock covers the chain and nothing that outlives it: no goroutine that a handler leaves behind, with
// [gin.Context.Copy] or without (their copy's request context ends with the handler), and no hijacked
// connection after the handler that hijacked it has returned. A WebSocket handler that serves the connection
// until its end keeps the lock for all that time. Bound it with WithLock(holdfast.WithMaxHold(d)): it ends the
// context, not the handler.
//
// A client can make a handler last: by an upload that drips, or by not reading a large response, and it keeps the lock for
// that time. What bounds it are time-outs of the http.Server, which has none by default: ReadTimeout for the upload, whose
// next read then fails, and WriteTimeout for the response, whose next write does; both for the whole of the request.
// ReadHeaderTimeout and IdleTimeout do nothing here. For one route, set the deadlines of http.NewResponseController(c.Writer)
// before this middleware. WithLock(holdfast.WithMaxHold(d)) ends the lock, and not the handler.
//
// The gin.Context itself sees nothing of the lock: its Done, Err and Value ignore the request unless the
// engine's ContextWithFallback is set. So Acquire(c, key) in a handler would wait for the handler's own lock,
// for ever; Acquire(c.Request.Context(), key) returns [holdfast.ErrSelfDeadlock]. [gin.Context.Stream] watches for
// the client alone, a step has to look by itself:
//
//	c.Stream(func(w io.Writer) bool {
//		if c.Request.Context().Err() != nil {
//			return false // the client is gone, or the lock is lost
//		}
//		...
//	})
//
// A middleware that runs the chain in a goroutine of its own and goes on without it, as timeout middlewares do,
// must be outside of this one: inside, the lock would be released while the handler still works. Authentication
// belongs outside too: who may not touch an order must not be able to block it.
//
// Shut down the http.Server before the Locker: a Locker that is shut down under its handlers gives their locks
// up when its patience ends.
//
// [gin.Engine.HandleContext] runs the new chain under the lock that is already held, if that is its key. Call
// c.Abort after it: before v1.11 gin went on with the handlers of the new route, outside of its middlewares,
// this one included.
//
// A lock orders requests, it does not remember them: a repeated Idempotency-Key runs again once the first
// request is through. Store the outcome, under the lock, to answer from it.
//
// Values are compared byte by byte: "42" and "042" are two orders to the lock. Where the handler takes them for
// one, use a [Part] that brings them into one form.
//
// # Errors
//
// What the client sees, and a handler given to [WithErrorHandler] gets:
//
//	holdfast.ErrNotAcquired   409, Retry-After   somebody else had the lock for all of the wait of WithBusy
//	holdfast.ErrUnavailable   503, Retry-After   Redis did not answer; see WithFailOpen
//	holdfast.ErrClosed        503, Retry-After   the Locker was shut down
//	holdfast.ErrLost          503                the lock was lost while the chain ran: its outcome is unknown
//	holdfast.ErrInvalid       400                the client left out what a part takes, or sent a malformed value
//	any other             500                a Part failed: the route has no such parameter, the value was never set
//
// The chain ran for holdfast.ErrLost alone, and where it has answered itself, its answer stays.
// All but 409 and 400 are in c.Errors as well, and so is a release that Redis did not confirm.
//
// # Tests
//
// A handler under a lock needs no special double: use a miniredis, a second Locker on it that holds the key for
// "held", and a closed one for "unavailable".
package ginlock
