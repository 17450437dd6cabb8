package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	_ "modernc.org/sqlite"             // driver "sqlite"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// Database says how to open the shop's database. Every replica opens it for itself.
type Database struct {
	Name    string // for humans
	Driver  string
	DSN     string
	dialect sqlfence.Dialect
	conns   int    // of each replica
	dir     string // to be removed at the end; "" if nothing is
}

func openDatabase(databaseURL string) (*Database, error) {
	if databaseURL == "" {
		dir, err := os.MkdirTemp("", "holdfast-tour-")
		if err != nil {
			return nil, err
		}
		d := sqliteFile(filepath.Join(dir, "shop.db"), true)
		d.Name, d.dir = "embedded (SQLite)", dir
		return d, nil
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, errors.New("not a URL") // not err itself: like the URL, it can contain a password
	}
	switch u.Scheme {
	case "postgres", "postgresql":
		return &Database{
			Name: "PostgreSQL at " + u.Host, Driver: "pgx", DSN: databaseURL, dialect: sqlfence.Postgres, conns: 10,
		}, nil
	case "mysql", "mariadb":
		return mysqlServer(u)
	case "sqlite":
		if u.Host != "" || u.Path == "" {
			return nil, errors.New("want sqlite:///path/to/file, with three slashes")
		}
		// The journal mode outlives this program, so that of an existing file is left to its owner.
		_, err := os.Stat(u.Path)
		d := sqliteFile(u.Path, errors.Is(err, os.ErrNotExist))
		d.Name = "SQLite in " + u.Path
		return d, nil
	}
	return nil, fmt.Errorf("unknown scheme %q: want postgres://, mysql:// or sqlite:///", u.Scheme)
}

// sqliteFile lets a writer wait for its turn. "Immediate" makes a transaction take the write lock when it begins, because
// one that needs it only later cannot wait for it any more.
func sqliteFile(path string, wal bool) *Database {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {"busy_timeout(10000)"}}
	if wal {
		q["_pragma"] = append(q["_pragma"], "journal_mode(WAL)", "synchronous(NORMAL)")
	}
	path = filepath.ToSlash(path)
	if filepath.VolumeName(path) != "" {
		path = "/" + path
	}
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
	return &Database{Driver: "sqlite", DSN: dsn, dialect: sqlfence.SQLite, conns: 4}
}

// mysqlServer translates the URL into the driver's own notation.
func mysqlServer(u *url.URL) (*Database, error) {
	addr := u.Host
	if u.Port() == "" {
		addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	cfg, err := mysql.ParseDSN("tcp(" + addr + ")" + u.EscapedPath() + "?" + u.RawQuery)
	if err != nil {
		return nil, err
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	return &Database{
		Name: "MySQL or MariaDB at " + addr, Driver: "mysql", DSN: cfg.FormatDSN(), dialect: sqlfence.MySQL, conns: 10,
	}, nil
}

func (d *Database) open() (*sql.DB, error) {
	db, err := sql.Open(d.Driver, d.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(d.conns)
	db.SetMaxIdleConns(d.conns)
	return db, nil
}

func (d *Database) ping(ctx context.Context) error {
	db, err := d.open()
	if err != nil {
		return err
	}
	return errors.Join(db.PingContext(ctx), db.Close())
}

func (d *Database) close() error {
	if d.dir == "" {
		return nil
	}
	return os.RemoveAll(d.dir)
}
