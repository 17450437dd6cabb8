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
	traces    traces
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// WithTable sets the name of the table of guard rows. Default: sqlfence. All programs that write the same data must use the
// same table, or they do not see each other's tokens.
//
// On PostgreSQL include the schema, as in "public.sqlfence". PostgreSQL looks up a bare name along search_path, so two users
// with different paths may each have a table of their own. On MySQL include the database, for the same reason.
//
// The names of the table and of the schema in front have 1 to 63 letters, digits, _ and $ each, do not begin with a digit,
// and have a dot between them. They are quoted wherever they are used, so upper case matters if it does to the database.
func WithTable(name string) Option {
	return option(func(c *config) error {
		if !validName(name) {
			return invalid("WithTable(%.80q): want words of 1 to %d letters, digits, _ and $, with dots between them", name, maxName)
		}
		c.table = name
		return nil
	})
}

// WithRetries sets how many times [Fence.WithTx], [With], [WithPgx] and [Fence.Advance] repeat a transaction that the
// database broke off: see [WithRetryable]. Advance also repeats after an [ErrCommitUnknown]. [Fence.Prune] repeats each of its batches as often. Default: 10. Bounds: 0, which
// turns repeats off, to 1000. The pause before a repeat is random, at first up to 2 ms and later up to 500 ms.
//
// With too few retries, some of many holders that start together fail although their turn would have come. Many retries
// multiply a lock timeout of the database, so bound the whole call by its context.
//
// At REPEATABLE READ and SERIALIZABLE a transaction can fail at the guard because another one has committed. Unless repeats
// are off or used up, up to 1000 repeats for that reason do not count.
func WithRetries(n int) Option {
	return option(func(c *config) error {
		if n < 0 || n > maxRetries {
			return invalid("WithRetries(%d): want 0 to %d", n, maxRetries)
		}
		c.retries = n
		return nil
	})
}

// WithRetryable adds errors after which a Fence repeats a transaction, for a driver whose errors it does not recognize, or
// for more kinds of errors. Default: none.
//
// Without it a Fence repeats after these errors. It imports no driver to recognize them.
//
//   - PostgreSQL (pgx, lib/pq): SQLSTATE 40001, 40P01 and 55P03.
//   - MySQL (go-sql-driver): the numbers 1205, 1213, 1020 and 3572.
//   - SQLite (modernc.org and glebarez, mattn, ncruces): the codes BUSY and LOCKED.
//   - Everywhere, except from COMMIT: [driver.ErrBadConn], and an error of pgx that is safe to retry.
//
// retryable is called with errors of the database, COMMIT's included, and with errors of the function given to WithTx. It
// must return true only if nothing of the transaction remains in the database after such an error.
func WithRetryable(retryable func(error) bool) Option {
	return option(func(c *config) error {
		if retryable == nil {
			return invalid("WithRetryable(nil)")
		}
		c.transient = retryable
		return nil
	})
}
