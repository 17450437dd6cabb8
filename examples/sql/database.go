package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/sqlfence"
	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	_ "modernc.org/sqlite"             // driver "sqlite"
)

type database struct {
	*sql.DB
	dialect sqlfence.Dialect
	dir     string // of the embedded one
}

func openDatabase() (*database, error) {
	u, err := backend.DatabaseURL()
	if err != nil {
		return nil, err
	}
	d := &database{}
	if u == nil {
		if d.dir, err = os.MkdirTemp("", "holdfast-sql-"); err != nil {
			return nil, err
		}
		u = &url.URL{Scheme: "sqlite", Path: filepath.ToSlash(filepath.Join(d.dir, "shop.db"))}
	}
	switch u.Scheme {
	case "postgres", "postgresql":
		d.dialect = sqlfence.Postgres
		d.DB, err = sql.Open("pgx", u.String())
	case "mysql", "mariadb":
		d.dialect = sqlfence.MySQL
		cfg := mysql.NewConfig()
		cfg.Net, cfg.Addr, cfg.User, cfg.DBName = "tcp", u.Host, u.User.Username(), strings.TrimPrefix(u.Path, "/")
		cfg.Passwd, _ = u.User.Password()
		d.DB, err = sql.Open("mysql", cfg.FormatDSN())
	case "sqlite":
		// A transaction takes the write lock when it begins, and waits for it. One that finds out later that it needs the
		// lock is refused.
		d.dialect = sqlfence.SQLite
		d.DB, err = sql.Open("sqlite", "file:"+(&url.URL{Path: u.Path}).EscapedPath()+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	default:
		err = fmt.Errorf("DATABASE_URL: unknown scheme %q", u.Scheme)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(d.dir))
	}
	return d, nil
}

// bind writes the parameters the database's way.
func (d *database) bind(query string) string {
	for n := 1; d.dialect == sqlfence.Postgres && strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprint("$", n), 1)
	}
	return query
}

func (d *database) close() error {
	var errs []error
	for _, table := range []string{"holdfast_example_orders", "holdfast_example_fence"} {
		_, err := d.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+table)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, d.Close(), os.RemoveAll(d.dir))...)
}
