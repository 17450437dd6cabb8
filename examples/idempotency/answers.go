package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// createOrder answers a request under its lock. Whatever goes wrong, the client can send the request again and gets its one
// order.
func createOrder(c *gin.Context, stored *answers, out io.Writer) {
	ctx := c.Request.Context()
	item, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, 1<<10))
	if err != nil || len(item) == 0 { // a request for nothing has no effect, so its answer need not be stored
		c.String(http.StatusBadRequest, "name an item of at most 1024 bytes\n")
		return
	}
	a, replayed, err := stored.once(ctx, item, func(tx *sql.Tx) (answer, error) {
		result, err := tx.ExecContext(ctx, "INSERT INTO orders (account, item) VALUES (?, ?)", c.GetString(gin.AuthUserKey), string(item))
		if err != nil {
			return answer{}, err
		}
		id, err := result.LastInsertId()
		return answer{http.StatusCreated, fmt.Sprintf("order %d\n", id)}, err
	})
	switch {
	case errors.Is(err, errOtherPayload):
		c.Header("Content-Type", "application/problem+json")
		c.JSON(http.StatusUnprocessableEntity, gin.H{"title": "Idempotency-Key is already used", "status": http.StatusUnprocessableEntity, "detail": err.Error()})
	case err != nil: // the lock was lost, or the database failed, perhaps at COMMIT
		_ = c.Error(err)
		ginlock.Respond(c, err)
	case replayed:
		c.Header("Idempotency-Replayed", "true")
		c.String(a.status, "%s", a.body)
	default:
		fmt.Fprint(out, "made ", a.body)
		c.String(a.status, "%s", a.body)
	}
}

// answers are in the database of the orders, and are committed with them. A middleware could not do that. It would store the
// answer in Redis or in a transaction of its own, and a crash would leave an answer without its order, or an order without
// its answer.
type answers struct {
	db    *sql.DB
	fence *sqlfence.Fence
}

// An answer and the guard row of its request have the same name, the key of the lock. Publish how long you keep answers,
// perhaps a day, and delete older ones. Delete guard rows later, with fence.Prune(ctx, db, 7*24*time.Hour): they are what
// stops a handler that was paused for that long.
//
//	DELETE FROM answers WHERE made_at < datetime('now', '-1 day')
const answersDDL = `
CREATE TABLE IF NOT EXISTS answers (
  request TEXT PRIMARY KEY, payload TEXT NOT NULL, status INT NOT NULL, body TEXT NOT NULL,
  made_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)`

type answer struct {
	status int
	body   string
}

var errOtherPayload = errors.New("this Idempotency-Key came with another payload before: make a new key for a new request")

// once returns the answer to the request whose lock ctx carries. That is the stored answer, or else the answer of effect,
// which commits together with what effect writes. The lock makes repeated requests wait, and spares the database. It is not
// what keeps the order unique: the fence lets two holders in one after the other, and the second finds the answer of the
// first.
//
// After a deadlock effect runs again, so it must do nothing but use tx. Its answer is stored, even a refusal. If effect
// returns an error nothing is stored, and a repeated request runs it again.
func (s *answers) once(ctx context.Context, payload []byte, effect func(*sql.Tx) (answer, error)) (a answer, replayed bool, err error) {
	request, hash := holdfast.Held(ctx)[0].Key(), fmt.Sprintf("%x", sha256.Sum256(payload))
	err = s.fence.WithTx(ctx, s.db, nil, func(ctx context.Context, tx *sql.Tx) error {
		var first string
		err := tx.QueryRowContext(ctx, "SELECT payload, status, body FROM answers WHERE request = ?", request).Scan(&first, &a.status, &a.body)
		replayed = err == nil
		switch {
		case replayed && first != hash:
			return errOtherPayload
		case !errors.Is(err, sql.ErrNoRows):
			return err // nil if the answer is replayed
		}
		if a, err = effect(tx); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO answers (request, payload, status, body) VALUES (?, ?, ?, ?)", request, hash, a.status, a.body)
		return err
	})
	return a, replayed, err
}
