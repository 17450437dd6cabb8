package ginlock

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

const (
	// retryLater is the Retry-After if nobody knows when Redis, or the lock, will be available.
	retryLater = 5 * time.Second

	// retrySoon is the Retry-After for a busy lock, whose holder usually releases it long before its lease expires.
	retrySoon = time.Second

	// refusedKey is set in a gin.Context to the config of the middleware that refuses its request. It is a string,
	// because a gin.Context of the oldest supported version takes no other keys.
	refusedKey = "github.com/holdfast-go/holdfast/ginlock.refused"
)

// problem is the body of a refusal (RFC 9457). Without a type it is "about:blank": the status says it all.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// Respond answers err by the table in the package's description, unless something has already been written. The body is
// problem details (RFC 9457), which name neither the key nor the holder. Retry-After is 5 s with a 503, and 1 s with a
// 409 or 429 unless [Policy.RetryAfterLease] is set.
//
// A handler can call Respond too, with the error of another lock or of a fence:
//
//	if err := fence.WithTx(c.Request.Context(), db, nil, pay); err != nil {
//		_ = c.Error(err) // the middleware adds the loss, unless err matches ErrLost
//		ginlock.Respond(c, err)
//		return
//	}
//
// Once the lock of c.Request.Context() is lost, Respond answers that, whatever err is: a driver may report it as
// context.Canceled. sqlfence.ErrStale matches ErrLost. If the handler does nothing else, nothing was written, and 409
// will do.
func Respond(c *gin.Context, err error) {
	if c.Writer.Written() {
		return
	}
	if c.Request != nil {
		if over := holdfast.Err(c.Request.Context()); over != nil {
			err = over // a driver may have reported it as context.Canceled
		}
	}
	p, retry := describe(err)
	if p.Status == http.StatusInternalServerError && c.Request != nil && len(holdfast.Held(c.Request.Context())) > 0 {
		p.Detail = "The request failed." // a handler's own error: what it has done by then is not known here
	}
	if p.Status == http.StatusConflict || p.Status == http.StatusTooManyRequests {
		v, _ := c.Get(refusedKey)
		if by, ok := v.(*config); !ok || !by.busy.lease {
			retry = retrySoon
		}
	}
	h := c.Writer.Header()
	h.Set("Content-Type", "application/problem+json") // first: c.JSON keeps it
	h.Del("Content-Length")                           // like http.Error: a handler may have set it for its own body
	if retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(retry.Seconds()))))
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
		if errors.As(err, &held) {
			if held.TimeLeft > 0 {
				retry = held.TimeLeft
			}
			if held.Limit > 1 {
				p.Status = http.StatusTooManyRequests
				p.Detail = "The maximum number of requests for this resource is in progress. Nothing was done."
			}
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
