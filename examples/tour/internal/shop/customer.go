package shop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// longestPause bounds how long a server can make a customer wait before the next try.
const longestPause = 3 * time.Second

// Verdict is how a customer's request ended.
type Verdict int

const (
	Failed Verdict = iota // the zero value: no answer yet
	Bought
	Refused
)

// Answer is what a customer was told in the end.
type Answer struct {
	Order, Product string
	Verdict        Verdict
	Serial         int // of the unit bought
	Busy           int // answers 409 on the way
	Down           int // answers 503
	Err            error
}

// Ask sends the order once. With an error it says how long to pause before the next try, -1 for never.
func Ask(ctx context.Context, client *http.Client, shop string, a *Answer) (pause time.Duration, err error) {
	target := shop + "/products/" + url.PathEscape(a.Product) + "/buy"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return -1, err
	}
	req.Header.Set("Idempotency-Key", a.Order)
	resp, err := client.Do(req)
	if err != nil {
		return -1, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return -1, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		var r receipt
		if err := json.Unmarshal(body, &r); err != nil {
			return -1, err
		}
		if r.Product != a.Product {
			return -1, errors.New("got a " + r.Product + " for a " + a.Product)
		}
		a.Verdict, a.Serial = Bought, r.Serial
		return 0, nil
	case http.StatusGone:
		a.Verdict = Refused
		return 0, nil
	case http.StatusConflict:
		a.Busy++
		pause = retryAfter(resp)
	case http.StatusServiceUnavailable:
		a.Down++
		pause = retryAfter(resp)
	default:
		pause = -1
	}
	return pause, fmt.Errorf("POST %s: %s: %s", target, resp.Status, body)
}

// retryAfter returns the pause that the server asks for, and a little more so that the customers do not all come back at
// once.
func retryAfter(resp *http.Response) time.Duration {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		seconds = 1
	}
	return min(time.Duration(seconds)*time.Second, longestPause) + rand.N(200*time.Millisecond)
}
