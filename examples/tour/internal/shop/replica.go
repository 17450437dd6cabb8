package shop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/core"
)

// Replica stands for a process of its own: it shares only the servers with the others.
type Replica struct {
	Name   string
	URL    string
	Books  *Store
	Locker *holdfast.Locker
	client *redis.Client
	server *http.Server
	served chan error
}

// Plan is how a replica differs from others.
type Plan struct {
	Name           string
	Scene          string // whose tables it uses
	Locked, Fenced bool
	Deaf           bool // see the type shop
	Lock           []holdfast.Option
	Charge         Charge                         // takes the payment
	Outside        []gin.HandlerFunc              // around the lock
	Inside         func(*Replica) gin.HandlerFunc // makes a middleware that runs under the lock; nil for none
}

// StartReplica returns a replica that accepts requests.
func (s *Servers) StartReplica(ctx context.Context, p Plan) (_ *Replica, err error) {
	r := &Replica{Name: p.Name, client: redis.NewClient(s.Redis), served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop(ctx))
		}
	}()
	options := append([]holdfast.Option{holdfast.WithPrefix(s.Prefix + ":"), holdfast.WithLabel(p.Name)}, p.Lock...)
	if r.Locker, err = holdfast.New(r.client, options...); err != nil {
		return nil, err
	}
	if r.Books, err = s.Store(p.Scene); err != nil {
		return nil, err
	}
	middleware := p.Outside
	if p.Locked {
		middleware = append(middleware, onePerProduct(r.Locker))
	}
	if p.Inside != nil {
		middleware = append(middleware, p.Inside(r))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	r.URL = "http://" + listener.Addr().String()
	r.server = &http.Server{
		Handler:     (&shop{replica: p.Name, books: r.Books, fenced: p.Fenced, deaf: p.Deaf, charge: p.Charge}).routes(middleware...),
		ReadTimeout: 10 * time.Second,
	}
	go func() { r.served <- r.server.Serve(listener) }()
	return r, nil
}

// Stop stops the replica from the outside in: first the requests, then the locks, then the connections. The Locker stops
// after the handlers that hold its locks, and before the client through which it releases them.
func (r *Replica) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Goodbye)
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
	if r.Locker != nil {
		if err := r.Locker.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("locker: %w", err))
		}
	}
	errs = append(errs, r.client.Close())
	if r.Books != nil {
		errs = append(errs, r.Books.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("shut down %s: %w", r.Name, err)
	}
	return nil
}
