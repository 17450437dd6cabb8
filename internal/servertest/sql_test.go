package servertest

import (
	"net/url"
	"testing"
)

func TestDatabasesGoWithTheirTest(t *testing.T) {
	for name, start := range map[string]func(testing.TB) string{"PostgreSQL": Postgres, "MariaDB": MariaDB} {
		var host string
		t.Run(name, func(t *testing.T) { host = parse(t, start(t)).Host })
		if host != "" && dial(host) == nil {
			t.Errorf("%s outlived its test", name)
		}
	}
}

func parse(t *testing.T, dsn string) *url.URL {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
