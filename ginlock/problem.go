package ginlock

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

const (
	// retryLater is what a client is told to wait where it is not known when Redis will be back.
	retryLater = 5 * time.Second

	// retrySoon is the most that it is told to wait for a holder, which mostly releases long before its lease ends.
	retrySoon = time.Second

	// limitKey is set in a gin.Context whose middleware has WithLimit.
	limitKey = "github.com/holdfast-go/holdfast/ginlock.limit"

	// leaseKey is set in a gin.Context whose middleware has Policy.RetryAfterLease. It is a string because a gin.Context of the
	// oldest supported version has no other keys.
	leaseKey = "github.com/holdfast-go/holdfast/ginlock.retry-after-lease"
)

// problem is the body of a refusal (RFC 9457). Without a type it is "about:blank": the status says it all.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// Respond answers a request whose chain did not run under its lock to the end, with problem details (RFC 9457,
// application/problem+json). A middleware without [WithErrorHandler] calls it. It does nothing if something was written
// already, and tells the client neither key nor holder.
//
// Retry-After is in whole seconds: 1 for a lock that is held, unless [Policy.RetryAfterLease], and 5 for a 503, but none after
// a loss: we cannot say whether the request may be repeated.
//
// A handler may call Respond too, with an error of a lock of its own or of a fence. A [holdfast.ErrNotAcquired] is answered
// with 409; only for the lock of a middleware that has [WithLimit] is it 429. A [holdfast.ErrUnavailable] is answered with 503,
// and the client told to come again: see [holdfast.Locker.Do] for one that comes when the work was done. An error that matches
// [holdfast.ErrLost], as sqlfence.ErrStale does, is answered with 503: this holder was replaced while it worked, and Respond
// cannot tell what else it has done by then. A handler that writes under the fence alone may answer 409 itself, as nothing was
// written. Other errors of the handler's own need an answer of its own: Respond answers them with 500 and says no more, and an
// ErrInvalid, as of a key that the handler built, with 400.
//
// A loss may reach a handler as context.Canceled, from a driver that was given the context. So look at the lock too. Once the
// lock of c.Request.Context() is lost, Respond answers 503 as for a loss, whatever error it is given:
//
//	ctx := c.Request.Context()
//	err := fence.WithTx(ctx, db, nil, pay)
//	switch {
//	case err == nil: // committed, whatever has become of the lock since
//		...
//	case holdfast.Err(ctx) != nil || errors.Is(err, holdfast.ErrLost): // lost, or sqlfence.ErrStale
//		_ = c.Error(err) // the middleware adds the loss, unless err matches ErrLost
//		ginlock.Respond(c, err)
//	default:
//		...
//	}
func Respond(c *gin.Context, err error) {
	if c.Writer.Written() {
		return
	}
	if c.Request != nil {
		if over := holdfast.Err(c.Request.Context()); over != nil {
			err = &abandonedError{over} // of which a driver may have told as context.Canceled
		}
	}
	p, retry := describe(err)
	if p.Status == http.StatusInternalServerError && c.Request != nil && len(holdfast.Held(c.Request.Context())) > 0 {
		p.Detail = "The request failed." // a handler's own error: what it has done by then is not known here
	}
	if p.Status == http.StatusConflict && !c.GetBool(leaseKey) {
		retry = min(retry, retrySoon)
	}
	if p.Status == http.StatusConflict && c.GetBool(limitKey) {
		p.Status, p.Title = http.StatusTooManyRequests, http.StatusText(http.StatusTooManyRequests)
		p.Detail = "As many requests as are allowed at a time are in progress. Nothing was done."
	}
	h := c.Writer.Header()
	h.Set("Content-Type", "application/problem+json") // first: c.JSON keeps it
	h.Del("Content-Length")                           // as http.Error does: a handler may have set it for its own body
	if retry > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(retry), 10))
	}
	c.JSON(p.Status, p)
}

func describe(err error) (p problem, retry time.Duration) {
	var held *holdfast.HeldError
	var key *keyError
	switch {
	case errors.Is(err, holdfast.ErrLost):
		p.Status = http.StatusServiceUnavailable
		p.Detail = "The lock was lost while the request ran. Its outcome is unknown."
	case errors.Is(err, holdfast.ErrNotAcquired):
		p.Status, retry = http.StatusConflict, retryLater
		p.Detail = "Another request or job for the same resource is in progress. Nothing was done."
		if errors.As(err, &held) && held.TimeLeft > 0 {
			retry = held.TimeLeft
		}
	case errors.Is(err, holdfast.ErrUnavailable), errors.Is(err, holdfast.ErrClosed):
		p.Status, retry = http.StatusServiceUnavailable, retryLater
		p.Detail = "The lock for this request could not be taken. Nothing was done."
	case errors.As(err, &key):
		p.Status = http.StatusBadRequest
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			p.Status = http.StatusRequestEntityTooLarge
		}
		p.Detail = "The request has " + key.what + "."
	case errors.Is(err, holdfast.ErrInvalid):
		p.Status = http.StatusBadRequest
		p.Detail = "The request does not say what it is about."
	default:
		p.Status = http.StatusInternalServerError
		p.Detail = "The lock for this request could not be determined. Nothing was done."
	}
	p.Title = http.StatusText(p.Status)
	return p, retry
}

// seconds rounds up.
func seconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}
