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
	// retryLater is the Retry-After if nobody knows when Redis, or the lock, will be available.
	retryLater = 5 * time.Second

	// retrySoon is the longest Retry-After for a busy lock, whose holder usually releases it long before its lease expires.
	retrySoon = time.Second

	// limitKey is set in a gin.Context whose middleware has WithLimit.
	limitKey = "github.com/holdfast-go/holdfast/ginlock.limit"

	// leaseKey is set in a gin.Context whose middleware has Policy.RetryAfterLease. Like limitKey it is a string, because a
	// gin.Context of the oldest supported version takes no other keys.
	leaseKey = "github.com/holdfast-go/holdfast/ginlock.retry-after-lease"
)

// problem is the body of a refusal (RFC 9457). Without a type it is "about:blank": the status says it all.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// Respond answers a request whose chain did not run under its lock to the end, with problem details (RFC 9457,
// application/problem+json). A middleware without [WithErrorHandler] calls it. It does nothing if something has already been
// written. The response names neither the key nor the holder.
//
// Retry-After is in whole seconds. It is 1 if another holder has the lock, unless [Policy.RetryAfterLease] is set, and 5
// with a 503. After a loss there is none, because nobody can say whether the request can be repeated.
//
// A handler can call Respond too, with an error from a lock of its own or from a fence. Respond answers by the first of
// these that the error matches:
//
//   - [holdfast.ErrLost], and so sqlfence.ErrStale: 503 without Retry-After. This holder was replaced while it worked, and
//     Respond cannot tell what else it has done by then. A handler whose only effect is one fenced transaction can answer
//     ErrStale with 409 itself: nothing was written.
//   - [holdfast.ErrNotAcquired]: 409. It is 429 only if the lock is that of a middleware with [WithLimit].
//   - [holdfast.ErrUnavailable] and [holdfast.ErrClosed]: 503 with Retry-After. An ErrUnavailable can also come after the
//     work was done: see [holdfast.Locker.Do].
//   - [holdfast.ErrInvalid], such as for a key that the handler built: 400, or 413 for a body that is too large.
//   - Any other error: 500 without details. A handler should answer such errors itself.
//
// A driver that was given the context might report a loss as context.Canceled, so check the lock too. Once the lock of
// c.Request.Context() is lost, or a Shutdown has abandoned it, Respond answers 503 without Retry-After, whatever error it is
// given:
//
//	ctx := c.Request.Context()
//	err := fence.WithTx(ctx, db, nil, pay)
//	switch {
//	case err == nil: // committed, whatever has happened to the lock since
//		...
//	case holdfast.Err(ctx) != nil || errors.Is(err, holdfast.ErrLost): // lost, abandoned, or sqlfence.ErrStale
//		_ = c.Error(err) // the middleware adds the loss, unless err matches ErrLost
//		ginlock.Respond(c, err)
//	default:
//		...
//	}
//
// To make a handler's token stale in a test, call sqlfence.Fence.Advance with a context of sqlfence.WithToken that carries a
// larger token: it raises the guard row above the handler's token.
func Respond(c *gin.Context, err error) {
	if c.Writer.Written() {
		return
	}
	if c.Request != nil {
		if over := holdfast.Err(c.Request.Context()); over != nil {
			err = &abandonedError{over} // a driver may have reported it as context.Canceled
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
		p.Detail = "The maximum number of requests for this resource is in progress. Nothing was done."
	}
	h := c.Writer.Header()
	h.Set("Content-Type", "application/problem+json") // first: c.JSON keeps it
	h.Del("Content-Length")                           // like http.Error: a handler may have set it for its own body
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
		p.Detail = "The request does not name its resource."
	default:
		p.Status = http.StatusInternalServerError
		p.Detail = "The lock for this request could not be determined. Nothing was done."
	}
	p.Title = http.StatusText(p.Status)
	return p, retry
}

// seconds rounds d up to whole seconds.
func seconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}
