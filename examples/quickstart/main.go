// Quickstart sells more than a shop has, and then does not. Three replicas of a Gin route serve the same rush of customers
// twice: without the lock and with it.
//
//	go run -C examples/quickstart .
//
// It needs nothing but Go: the database is SQLite in memory, and so is Redis (miniredis), unless REDIS_ADDR names a real one
// as host:port. The exit status is 1 if an invariant broke under the lock, or if a server could not be reached.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/sqlfence"
)

const products, stock, requests = 4, 20, 300

var fence, _ = sqlfence.New(sqlfence.SQLite)

// buy reads, works, and writes what follows from the read. Another request in between makes that write wrong. Under the
// lock, ctx ends if the lock is lost, and WithTx makes the database refuse a replica that was paused past its lease.
func buy(ctx context.Context, db *sql.DB, product string) (unit int, err error) {
	err = db.QueryRowContext(ctx, "SELECT stock FROM products WHERE id = ?", product).Scan(&unit)
	if err != nil || unit == 0 {
		return 0, err
	}
	time.Sleep(2 * time.Millisecond) // the payment
	const update = "UPDATE products SET stock = ? WHERE id = ?"
	if len(holdfast.Held(ctx)) == 0 {
		_, err = db.ExecContext(ctx, update, unit-1, product)
		return unit, err
	}
	return unit, fence.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, update, unit-1, product)
		return err
	})
}

// replica stands for a process of its own: it shares Redis and the database with the others, and nothing else.
func replica(redisAddr string, db *sql.DB, locked bool) (url string) {
	router := gin.New()
	if locked {
		locker := check(holdfast.New(redis.NewClient(&redis.Options{Addr: redisAddr}), holdfast.WithPrefix("quickstart:")))
		router.Use(ginlock.New(locker, "product", ginlock.Param("id"), ginlock.WithBusy(ginlock.Wait(time.Minute))))
	}
	router.POST("/products/:id/buy", func(c *gin.Context) {
		switch unit, err := buy(c.Request.Context(), db, c.Param("id")); {
		case err != nil:
			c.String(http.StatusInternalServerError, err.Error())
		case unit == 0:
			c.Status(http.StatusGone)
		default:
			c.String(http.StatusOK, "unit %d of product %s", unit, c.Param("id"))
		}
	})
	listener := check(net.Listen("tcp", "127.0.0.1:0"))
	server := &http.Server{Handler: router, ReadTimeout: 10 * time.Second}
	go func() { log.Fatal(server.Serve(listener)) }()
	return "http://" + listener.Addr().String()
}

// rush sends all purchases to a new shop and compares what the customers were told with what the shop has left.
func rush(name, redisAddr string, locked bool) (sold, left, twice int) {
	db := check(sql.Open("sqlite", ":memory:"))
	db.SetMaxOpenConns(1) // each connection would be a database of its own
	check(db.Exec(fence.DDL() + "; CREATE TABLE products (id INTEGER PRIMARY KEY, stock INTEGER)"))
	for id := range products {
		check(db.Exec("INSERT INTO products VALUES (?, ?)", id, stock))
	}
	urls := []string{replica(redisAddr, db, locked), replica(redisAddr, db, locked), replica(redisAddr, db, locked)}
	receipts := make(chan string, requests)
	var customers sync.WaitGroup
	for i := range requests {
		customers.Go(func() {
			resp := check(http.Post(fmt.Sprintf("%s/products/%d/buy", urls[i%len(urls)], i%products), "", nil))
			switch body := string(check(io.ReadAll(resp.Body))); resp.StatusCode {
			case http.StatusOK:
				receipts <- body
			case http.StatusGone: // sold out
			default:
				log.Fatal(resp.Status, ": ", body)
			}
		})
	}
	customers.Wait()
	close(receipts)
	units := map[string]bool{}
	for unit := range receipts {
		units[unit] = true
		sold++
	}
	twice = sold - len(units)
	check(0, db.QueryRow("SELECT SUM(stock) FROM products").Scan(&left))
	fmt.Printf("%-16s  %8d  %4d  %4d  %10d\n", name, products*stock, sold, left, twice)
	return sold, left, twice
}

func main() {
	gin.SetMode(gin.ReleaseMode)
	redisAddr := os.Getenv("REDIS_ADDR")
	if redisAddr == "" {
		redisAddr = check(miniredis.Run()).Addr()
	}
	locker := check(holdfast.New(redis.NewClient(&redis.Options{Addr: redisAddr})))
	check(0, locker.Ping(context.Background())) // is Redis there?
	fmt.Printf("%d purchases at once on three replicas, %d products with %d units each.\n\n", requests, products, stock)
	fmt.Printf("%-16s  %8s  %4s  %4s  %10s\n", "", "in stock", "sold", "left", "sold twice")
	rush("without the lock", redisAddr, false)
	if sold, left, twice := rush("with the lock", redisAddr, true); sold != products*stock || left != 0 || twice != 0 {
		log.Fatal("under the lock every unit must be sold, once")
	}
	fmt.Println("\nThe difference is one argument on the route: ginlock.New(locker, \"product\", ginlock.Param(\"id\")).")
}

// check ends the program on an error.
func check[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
