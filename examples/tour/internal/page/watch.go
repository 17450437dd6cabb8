package page

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// watch asks Redis and the database themselves, in addition to what the replicas report.
type watch struct {
	servers  *shop.Servers
	board    *board
	every    time.Duration
	products []string
	books    *shop.Store
	client   *redis.Client
	locker   *holdfast.Locker
}

func newWatch(servers *shop.Servers, b *board, every time.Duration, products []string, books *shop.Store) (*watch, error) {
	w := &watch{servers: servers, board: b, every: every, products: products, books: books, client: redis.NewClient(servers.Redis)}
	var err error
	if w.locker, err = holdfast.New(w.client, holdfast.WithPrefix(servers.Prefix+":")); err != nil {
		return nil, errors.Join(err, w.client.Close())
	}
	return w, nil
}

func (w *watch) close() error {
	return errors.Join(shop.AtEnd(context.Background(), w.locker.Shutdown), w.client.Close())
}

func (w *watch) run(ctx context.Context) {
	for shop.Sleep(ctx, w.every) == nil {
		seen := make([]product, len(w.products))
		locks, redisErr := w.askRedis(ctx)
		databaseErr := w.askDatabase(ctx, seen)
		if ctx.Err() != nil {
			return
		}
		w.board.change(func() {
			for i, p := range seen {
				old := w.board.picture.Products[i]
				p.lock = old.lock // the last known state stays, and the page marks it as old
				if redisErr == nil {
					p.lock = locks[i]
				}
				if databaseErr != nil {
					p.Sold, p.Twice, p.Fence = old.Sold, old.Twice, old.Fence
				}
				w.board.picture.Products[i] = p
			}
			if redisErr == nil {
				w.board.picture.Payments = locks[len(seen)]
				w.board.picture.Hands = locks[len(seen)+1:]
			}
			w.board.picture.Redis, w.board.picture.Database = text(redisErr), text(databaseErr)
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// askRedis returns the locks of the products, the lock of the payments, and the locks that are taken by hand.
func (w *watch) askRedis(ctx context.Context) (locks []lock, err error) {
	var keys, names []string
	for _, name := range w.products {
		keys, names = append(keys, holdfast.Key("product", name)), append(names, name)
	}
	keys, names = append(append(keys, payments), handKeys...), append(append(names, payments), handKeys...)
	for s, err := range w.locker.InspectAll(ctx, keys...) {
		if err != nil {
			return nil, err
		}
		l := lock{
			Name: names[len(locks)], Held: s.Held, Holder: s.Label, Holders: s.Holders, Limit: s.Limit, Token: s.Token, Waiting: s.Waiting, Shares: s.Shares,
		}
		if s.Held {
			l.Until = time.Now().Add(s.TimeLeft).UnixMilli()
		}
		locks = append(locks, l)
	}
	return locks, nil
}

func (w *watch) askDatabase(ctx context.Context, seen []product) error {
	counts, err := w.books.Counts(ctx)
	if err != nil {
		return err
	}
	for i, name := range w.products {
		p := &seen[i]
		p.Sold, p.Twice = counts[name].Sold, counts[name].Twice
		p.Fence, err = w.books.Newest(ctx, w.servers.Prefix+":"+holdfast.Key("product", name))
		if err != nil {
			return err
		}
	}
	return nil
}

// flush makes Redis forget every lock, with its tokens and its line. An embedded Redis forgets everything, another Redis
// only the keys of this program.
func (w *watch) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.Goodbye)
	defer cancel()
	// Log it before it is done, because replicas can acquire locks before the reply is here.
	embedded := w.servers.Embedded()
	what := "FLUSHALL: Redis forgets who holds what"
	if !embedded {
		what = "Redis forgets this program's keys"
	}
	w.board.change(func() { w.board.note(entry{What: "flushed", Text: what}) })
	var err error
	if embedded {
		err = w.client.FlushAll(ctx).Err()
	} else {
		for _, pattern := range []string{w.servers.Prefix + ":*", "{" + w.servers.Prefix + ":*"} {
			keys := w.client.Scan(ctx, 0, pattern, 1000).Iterator()
			for keys.Next(ctx) {
				err = errors.Join(err, w.client.Del(ctx, keys.Val()).Err())
			}
			err = errors.Join(err, keys.Err())
		}
	}
	if err != nil {
		err = fmt.Errorf("not flushed: %w", err)
		w.board.change(func() { w.board.note(entry{What: "failed", Text: err.Error()}) })
	}
	return err
}
