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

const lookEvery = 200 * time.Millisecond

// watch asks the servers themselves, beside what the replicas say.
type watch struct {
	servers  *shop.Servers
	board    *board
	products []string
	books    *shop.Store
	client   *redis.Client
	locker   *holdfast.Locker
}

func newWatch(servers *shop.Servers, b *board, products []string, books *shop.Store) (*watch, error) {
	w := &watch{servers: servers, board: b, products: products, books: books, client: redis.NewClient(servers.Redis)}
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
	for shop.Sleep(ctx, lookEvery) == nil {
		seen := make([]product, len(w.products))
		paying, redisErr := w.askRedis(ctx, seen)
		databaseErr := w.askDatabase(ctx, seen)
		if ctx.Err() != nil {
			return
		}
		w.board.change(func() {
			for i, p := range seen {
				old := w.board.picture.Products[i]
				if redisErr != nil { // what was true last stays, and the page says that it is old
					p.Held, p.Holder, p.Token, p.Until, p.Waiting = old.Held, old.Holder, old.Token, old.Until, old.Waiting
				}
				if databaseErr != nil {
					p.Sold, p.Twice, p.Fence = old.Sold, old.Twice, old.Fence
				}
				w.board.picture.Products[i] = p
			}
			if redisErr == nil {
				w.board.picture.Payments = paying
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

func (w *watch) askRedis(ctx context.Context, seen []product) (paying provider, err error) {
	for i, name := range w.products {
		s, err := w.locker.Inspect(ctx, holdfast.Key("product", name))
		if err != nil {
			return paying, err
		}
		p := &seen[i]
		p.Name, p.Held, p.Holder, p.Token, p.Waiting = name, s.Held, s.Label, s.Token, s.Waiting
		if s.Held {
			p.Until = time.Now().Add(s.TimeLeft).UnixMilli()
		}
	}
	s, err := w.locker.Inspect(ctx, payments)
	return provider{s.Holders, s.Limit, time.Now().Add(s.TimeLeft).UnixMilli(), s.Waiting}, err
}

func (w *watch) askDatabase(ctx context.Context, seen []product) error {
	counts, err := w.books.Counts(ctx)
	if err != nil {
		return err
	}
	for i, name := range w.products {
		p := &seen[i]
		p.Name, p.Sold, p.Twice = name, counts[name].Sold, counts[name].Twice
		p.Fence, err = w.books.Newest(ctx, w.servers.Prefix+":"+holdfast.Key("product", name))
		if err != nil {
			return err
		}
	}
	return nil
}

// flush makes Redis forget every lock, with its tokens and its line: an embedded one everything, another one what is
// this program's.
func (w *watch) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.Goodbye)
	defer cancel()
	// In the log before it is done, as others may acquire before the reply is here.
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
