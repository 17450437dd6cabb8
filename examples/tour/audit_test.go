package main

import (
	"slices"
	"strings"
	"testing"
)

// openStore returns the books of a shop with 3 lamps and 3 tents.
func openStore(t *testing.T) *store {
	t.Helper()
	d, err := openDatabase("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	s, err := d.tables("test", "audit").open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	if err := s.create(t.Context(), []string{"lamp", "tent"}, 3); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAuditFindsEveryKindOfDamage(t *testing.T) {
	for name, c := range map[string]struct {
		tamper string // a statement on sound books
		answer func([]answer)
		want   []string
	}{
		"sound books": {},
		"a unit sold twice": {
			tamper: `INSERT INTO SALES VALUES ('o9', 'lamp', 3, 'replica-2')`,
			want:   []string{"lamp: 1 sales were of a unit that was sold already", "lamp: 4 sold and 0 left of 3", "1 sales have no customer"},
		},
		"another's unit": {
			tamper: `UPDATE SALES SET serial = 3 WHERE order_id = 'o2'`,
			want:   []string{"lamp: 1 sales were of a unit", "1 customers with a 200 do not have"},
		},
		"a unit that never was": {
			tamper: `UPDATE SALES SET serial = 4 WHERE order_id = 'o1'`,
			want:   []string{"lamp: 1 serial numbers were sold that never existed", "1 customers with a 200"},
		},
		"unit zero": {
			tamper: `UPDATE SALES SET serial = 0 WHERE order_id = 'o3'`,
			want:   []string{"lamp: 1 serial numbers were sold that never existed", "1 customers with a 200"},
		},
		"a lost update of the stock": {
			tamper: `UPDATE PRODUCTS SET stock = stock + 1 WHERE id = 'tent'`,
			want:   []string{"tent: 1 sold and 3 left of 3"},
		},
		"a product that is gone": {
			tamper: `DELETE FROM PRODUCTS WHERE id = 'lamp'`,
			want:   []string{"lamp: gone from the products"},
		},
		"a lost sale": {
			tamper: `DELETE FROM SALES WHERE order_id = 'o2'`,
			want:   []string{"lamp: 2 sold and 0 left of 3", "1 customers with a 200"},
		},
		"a sale of the wrong product": {
			tamper: `UPDATE SALES SET product = 'tent', serial = 2 WHERE order_id = 'o2'`,
			want:   []string{"lamp: 2 sold and 0 left of 3", "tent: 2 sold and 2 left of 3", "1 customers with a 200"},
		},
		"an order with two sales": {
			tamper: `UPDATE SALES SET order_id = 'o1' WHERE order_id = 'o2'`,
			want:   []string{"2 customers with a 200"},
		},
		"a refused customer who has a sale": {
			answer: func(as []answer) { as[0].verdict = refused },
			want:   []string{"1 sales have no customer"},
		},
		"a customer sent away from full shelves": {
			answer: func(as []answer) { as[4].product = "tent" },
			want:   []string{"tent: 1 customers were refused with 2 left"},
		},
		"another number than in the books": {
			answer: func(as []answer) { as[3].serial = 2 },
			want:   []string{"1 customers with a 200"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			answers := []answer{
				{order: "o1", product: "lamp", verdict: bought, serial: 3},
				{order: "o2", product: "lamp", verdict: bought, serial: 2},
				{order: "o3", product: "lamp", verdict: bought, serial: 1},
				{order: "o4", product: "tent", verdict: bought, serial: 3},
				{order: "o5", product: "lamp", verdict: refused},
			}
			for _, a := range answers[:4] {
				err := s.sell(t.Context(), sale{a.order, a.product, a.serial, "replica-1"}, a.serial-1)
				if err != nil {
					t.Fatal(err)
				}
			}
			if c.tamper != "" {
				if _, err := s.db.ExecContext(t.Context(), s.query(c.tamper)); err != nil {
					t.Fatal(err)
				}
			}
			if c.answer != nil {
				c.answer(answers)
			}
			books, err := s.ledger(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, broken := audit([]string{"lamp", "tent"}, 3, answers, books)
			if len(broken) != len(c.want) {
				t.Errorf("got %q, want %q", broken, c.want)
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(broken, func(got string) bool { return strings.HasPrefix(got, want) }) {
					t.Errorf("%q is not in %q", want, broken)
				}
			}
		})
	}
}

func TestTableAddsUp(t *testing.T) {
	var out strings.Builder
	err := printTable(&out, []*result{{
		act: act{name: "with the lock", locked: true},
		lines: []line{
			{product: "lamp", requests: 7, sold: 3, refused: 4, waited: 5, longest: 1_500_000_000, busy: 1},
			{product: "tent", requests: 2, sold: 2, waited: 1, longest: 20_000_000, stockLeft: 1, soldTwice: 1},
		},
	}, {
		act:   act{name: "without"},
		lines: []line{{product: "lamp", requests: 1, sold: 1}},
	}})
	const want = `
               requests  sold  refused  waited  longest wait  told busy  stock left  sold twice
with the lock
  lamp                7     3        4       5        1.50 s          1           0           0
  tent                2     2        0       1        0.02 s          0           1           1
  all                 9     5        4       6        1.50 s          1           1           1
without
  lamp                1     1        0       -             -          -           0           0
  all                 1     1        0       -             -          -           0           0

`
	if got := "\n" + out.String(); err != nil || got != want {
		t.Errorf("got %v%s\nwant%s", err, got, want)
	}
}
