package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// replica is what would be a process of its own: it shares nothing with the others, only the servers.
type replica struct {
	name   string
	url    string
	client *redis.Client
	locker *holdfast.Locker
	books  *store
	server *http.Server
	served chan error
}

// plan is how a replica differs from others.
type plan struct {
	name           string
	tables         *tables
	locked, fenced bool
	deaf           bool // see shop
	lock           []holdfast.Option
	charge         func(context.Context) error // takes the payment
	middleware     []gin.HandlerFunc
	inside         func(*replica) gin.HandlerFunc // as a middleware behind the lock; nil for none
}

// startReplica returns a replica that accepts requests.
func startReplica(ctx context.Context, st *stage, p plan) (_ *replica, err error) {
	r := &replica{name: p.name, client: redis.NewClient(st.servers.redis), served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop(ctx))
		}
	}()
	options := append([]holdfast.Option{holdfast.WithPrefix(st.name + ":"), holdfast.WithLabel(p.name)}, p.lock...)
	if r.locker, err = holdfast.New(r.client, options...); err != nil {
		return nil, err
	}
	if r.books, err = p.tables.open(); err != nil {
		return nil, err
	}
	middleware := p.middleware
	if p.locked {
		middleware = append(middleware, onePerProduct(r.locker))
	}
	if p.inside != nil {
		middleware = append(middleware, p.inside(r))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	r.url = "http://" + listener.Addr().String()
	r.server = &http.Server{
		Handler:           (&shop{replica: p.name, books: r.books, fenced: p.fenced, deaf: p.deaf, charge: p.charge}).routes(middleware...),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { r.served <- r.server.Serve(listener) }()
	return r, nil
}

// stop ends the replica from the outside in: no more requests, then no more locks, then the connections. The
// locker goes after the handlers that hold its locks and before the client it releases them with.
func (r *replica) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	var errs []error
	if r.server != nil {
		if err := r.server.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("http: %w", err), r.server.Close())
		}
		if err := <-r.served; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	if r.locker != nil {
		if err := r.locker.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("locker: %w", err))
		}
	}
	errs = append(errs, r.client.Close())
	if r.books != nil {
		errs = append(errs, r.books.close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("shut down %s: %w", r.name, err)
	}
	return nil
}

type replicas []*replica

func (rs replicas) urls() []string {
	urls := make([]string, len(rs))
	for i, r := range rs {
		urls[i] = r.url
	}
	return urls
}

// stop ends all replicas at once and empties the list.
func (rs *replicas) stop(ctx context.Context) error {
	stopping := *rs
	*rs = nil
	ended := make(chan error)
	for _, r := range stopping {
		go func() { ended <- r.stop(ctx) }()
	}
	var errs []error
	for range stopping {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}
