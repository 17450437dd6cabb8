// Package shop is the shop of the tour: its servers, its books, its customers and its replicas, each of which runs in this
// process or in one of its own.
package shop

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// patience is how long a purchase waits in line for its product. A customer that is not served by then gets a 409 with
// Retry-After.
const patience = 10 * time.Second

// onePerProduct is what this program is about. Purchases of one product go one after the other, on whichever replica they
// arrive. Purchases of different products do not affect each other.
func onePerProduct(locker *holdfast.Locker) gin.HandlerFunc {
	return ginlock.New(locker, "product", ginlock.Param("id"), ginlock.WithBusy(ginlock.Wait(patience)))
}

// shop is the HTTP side of a replica. Its handler takes no lock.
type shop struct {
	replica string
	books   *Store
	charge  Charge
	fenced  bool

	// deaf makes writes ignore the loss of the lock. Under the lock's own context, a replica that wakes up after its lease
	// cannot write. But a write can be held up after the last check of the lock, on its way to the database or in code that
	// takes no context. deaf stands for that.
	deaf bool
}

func (s *shop) routes(middleware ...gin.HandlerFunc) http.Handler {
	r := gin.New()
	r.Use(gin.Recovery())
	r.POST("/products/:id/buy", append(middleware, s.buy)...)
	return r
}

// receipt is the body of a 200.
type receipt struct {
	Product string `json:"product"`
	Serial  int    `json:"serial"`
}

// buy sells one unit the way much code does: it reads, works, and writes what follows from the read. Another request between
// the read and the write makes the write wrong. A single UPDATE ... SET stock = stock-1 WHERE stock > 0 would be right on
// its own. It is not an option if the work in between concerns more than one row: another service (here the payment), a
// file, a second database.
func (s *shop) buy(c *gin.Context) {
	// Under the lock this is the lock's context: when the lock is lost it ends, and the queries end with it.
	ctx := c.Request.Context()
	product, order := c.Param("id"), c.GetHeader("Idempotency-Key")

	// A customer who got no answer asks again with the same order.
	switch serial, err := s.books.Sold(ctx, order); {
	case err == nil:
		c.JSON(http.StatusOK, receipt{product, serial})
		return
	case !errors.Is(err, sql.ErrNoRows):
		fail(c, err)
		return
	}

	left, err := s.books.Stock(ctx, product)
	if err != nil {
		fail(c, err)
		return
	}
	if left == 0 {
		c.JSON(http.StatusGone, gin.H{"error": "sold out"})
		return
	}
	if err := s.charge(ctx, product); err != nil {
		fail(c, err)
		return
	}
	// The units are numbered, and the highest number goes first: with 7 left this is number 7.
	if s.deaf {
		lock := holdfast.Held(ctx)[0]
		ctx = sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()}.In(context.Background())
	}
	write := s.books.Sell
	if s.fenced {
		write = s.books.SellFenced
	}
	err = write(ctx, Sale{Order: order, Product: product, Serial: left, Replica: s.replica}, left-1)
	if errors.Is(err, sqlfence.ErrStale) {
		// Nothing was written. Another replica has had the lock since, and the customer can ask again.
		_ = c.Error(err)
		c.Header("Retry-After", "1")
		c.JSON(http.StatusServiceUnavailable, gin.H{"error": err.Error()})
		return
	}
	if err != nil {
		fail(c, err)
		return
	}
	c.JSON(http.StatusOK, receipt{product, left})
}

// fail answers with a 500. If the request's context has ended it does not answer: either nobody is there to read the answer,
// or the lock was lost and the middleware answers.
func fail(c *gin.Context, err error) {
	_ = c.Error(err)
	if c.Request.Context().Err() != nil {
		return
	}
	c.JSON(http.StatusInternalServerError, gin.H{"error": err.Error()})
}

// Charge takes the payment for a unit of a product.
type Charge func(ctx context.Context, product string) error

// Pay stands for the payment provider, which answers in 4 to 10 ms.
func Pay(ctx context.Context, _ string) error {
	select {
	case <-time.After(4*time.Millisecond + rand.N(6*time.Millisecond)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
