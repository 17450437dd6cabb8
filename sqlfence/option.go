package sqlfence

// Option configures a [Fence].
type Option interface{ apply(*config) error }

const (
	defaultTable   = "sqlfence"
	defaultRetries = 10
	maxRetries     = 1000
	maxName        = 63 // bytes of an identifier: PostgreSQL cuts longer ones off
)

type config struct {
	table     string
	retries   int
	transient func(error) bool
	trace     *Trace
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// WithTable names the table of the guard rows. Default: sqlfence. On PostgreSQL give the schema too, as in
// "public.sqlfence": PostgreSQL looks a name by itself up along search_path, and two users with different paths may each have
// a table of their own, where neither sees the other's tokens. On MySQL the same goes for the database. Each word has up to 63
// letters, digits, _ and $; a dot separates a schema in front. The name is quoted wherever it is used, so that upper case
// counts where the database says so. All programs that write the same data must use the same table, or they do not see each
// other's tokens.
func WithTable(name string) Option {
	return option(func(c *config) error {
		if !validName(name) {
			return invalid("WithTable(%.80q): want words of 1 to %d letters, digits, _ and $, with dots between them", name, maxName)
		}
		c.table = name
		return nil
	})
}

// WithRetries bounds how many times [Fence.WithTx], [With], [WithPgx] and [Fence.Advance] repeat a transaction that the
// database broke off. Default 10, at most 1000; 0 turns it off. Between two attempts there is a random pause that grows from 2
// ms to 500 ms. With too few retries, holders that start together fail where their turn would have come. Many retries multiply
// a lock timeout of the database, so bound the whole by the context.
func WithRetries(n int) Option {
	return option(func(c *config) error {
		if n < 0 || n > maxRetries {
			return invalid("WithRetries(%d): want 0 to %d", n, maxRetries)
		}
		c.retries = n
		return nil
	})
}

// WithRetryable adds errors after which a transaction may be repeated, for a driver whose errors are not
// recognized, or for more kinds of errors. Default: none.
//
// Without it a Fence repeats after SQLSTATE 40001, 40P01 and 55P03 on PostgreSQL (pgx, lib/pq), the numbers 1205, 1213, 1020
// and 3572 on MySQL (go-sql-driver), and the codes BUSY and LOCKED on SQLite (modernc.org and glebarez, mattn, ncruces). No
// driver is imported.
//
// retryable must return true only for an error after which nothing of the transaction remains in the database, also when
// COMMIT has returned it. It is asked about errors of the database and about errors of the function given to WithTx.
func WithRetryable(retryable func(error) bool) Option {
	return option(func(c *config) error {
		if retryable == nil {
			return invalid("WithRetryable(nil)")
		}
		c.transient = retryable
		return nil
	})
}
