package web

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

const (
	// retryLater is the Retry-After if nobody knows when Redis, or the lock, will be available.
	retryLater = 5 * time.Second

	// retrySoon is the Retry-After for a busy lock, whose holder usually releases it long before its lease expires.
	retrySoon = time.Second
)

// problem is the body of a refusal (RFC 9457). Without a type it is "about:blank": the status says it all.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// byLease marks an error whose Retry-After is what is left of the holder's lease.
type byLease struct{ error }

func (e *byLease) Unwrap() error { return e.error }

// Respond answers err, unless something has already been written. ctx is the request's.
func Respond(ctx context.Context, w Writer, err error) {
	if w.Written() {
		return
	}
	if over := holdfast.Err(ctx); over != nil {
		err = over // a driver may have reported it as context.Canceled
	}
	p, retry := describe(err)
	if p.Status == http.StatusInternalServerError && len(holdfast.Held(ctx)) > 0 {
		p.Detail = "The request failed." // a handler's own error: what it has done by then is not known here
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Del("Content-Length") // like http.Error: a handler may have set it for its own body
	if retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(retry.Seconds()))))
	}
	w.WriteHeader(p.Status)
	body, _ := json.Marshal(p) // strings and a number
	_, _ = w.Write(body)
}

func describe(err error) (p problem, retry time.Duration) {
	var held *holdfast.HeldError
	var key *KeyError
	var lease *byLease
	switch {
	case errors.Is(err, holdfast.ErrLost):
		p.Status = http.StatusServiceUnavailable
		p.Detail = "The lock was lost while the request ran. Its outcome is unknown."
	case errors.Is(err, holdfast.ErrNotAcquired):
		p.Status, retry = http.StatusConflict, retrySoon
		p.Detail = "Another request or job for the same resource is in progress. Nothing was done."
		if errors.As(err, &lease) {
			retry = retryLater
		}
		if errors.As(err, &held) {
			if lease != nil && held.TimeLeft > 0 {
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
		p.Detail = "The request has " + key.What + "."
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
