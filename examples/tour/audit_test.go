package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

func TestAuditFindsEveryKindOfDamage(t *testing.T) {
	for name, c := range map[string]struct {
		tamper func(*shop.Ledger) // with sound books
		answer func([]shop.Answer)
		want   []string
	}{
		"sound books": {},
		"a unit sold twice": {
			tamper: func(l *shop.Ledger) { l.Sales = append(l.Sales, shop.Sale{Order: "o9", Product: "lamp", Serial: 3}) },
			want:   []string{"lamp: 1 sales were of a unit that was sold already", "lamp: 4 sold and 0 left of 3", "1 sales belong to no customer"},
		},
		"another's unit": {
			tamper: func(l *shop.Ledger) { l.Sales[1].Serial = 3 },
			want:   []string{"lamp: 1 sales were of a unit", "1 customers with a 200 do not have"},
		},
		"a unit that never was": {
			tamper: func(l *shop.Ledger) { l.Sales[0].Serial = 4 },
			want:   []string{"lamp: 1 serial numbers were sold that never existed", "1 customers with a 200"},
		},
		"unit zero": {
			tamper: func(l *shop.Ledger) { l.Sales[2].Serial = 0 },
			want:   []string{"lamp: 1 serial numbers were sold that never existed", "1 customers with a 200"},
		},
		"a lost update of the stock": {
			tamper: func(l *shop.Ledger) { l.Stock["tent"]++ },
			want:   []string{"tent: 1 sold and 3 left of 3"},
		},
		"a product that is gone": {
			tamper: func(l *shop.Ledger) { delete(l.Stock, "lamp") },
			want:   []string{"lamp: gone from the products"},
		},
		"a lost sale": {
			tamper: func(l *shop.Ledger) { l.Sales = slices.Delete(l.Sales, 1, 2) },
			want:   []string{"lamp: 2 sold and 0 left of 3", "1 customers with a 200"},
		},
		"a sale of the wrong product": {
			tamper: func(l *shop.Ledger) { l.Sales[1].Product, l.Sales[1].Serial = "tent", 2 },
			want:   []string{"lamp: 2 sold and 0 left of 3", "tent: 2 sold and 2 left of 3", "1 customers with a 200"},
		},
		"an order with two sales": {
			tamper: func(l *shop.Ledger) { l.Sales[1].Order = "o1" },
			want:   []string{"2 customers with a 200"},
		},
		"a refused customer who has a sale": {
			answer: func(as []shop.Answer) { as[0].Verdict = shop.Refused },
			want:   []string{"1 sales belong to no customer"},
		},
		"a customer sent away from full shelves": {
			answer: func(as []shop.Answer) { as[4].Product = "tent" },
			want:   []string{"tent: 1 customers were refused with 2 left"},
		},
		"another number than in the books": {
			answer: func(as []shop.Answer) { as[3].Serial = 2 },
			want:   []string{"1 customers with a 200"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			answers := []shop.Answer{
				{Order: "o1", Product: "lamp", Verdict: shop.Bought, Serial: 3},
				{Order: "o2", Product: "lamp", Verdict: shop.Bought, Serial: 2},
				{Order: "o3", Product: "lamp", Verdict: shop.Bought, Serial: 1},
				{Order: "o4", Product: "tent", Verdict: shop.Bought, Serial: 3},
				{Order: "o5", Product: "lamp", Verdict: shop.Refused},
			}
			books := &shop.Ledger{Stock: map[string]int{"lamp": 0, "tent": 2}}
			for _, a := range answers[:4] {
				books.Sales = append(books.Sales, shop.Sale{Order: a.Order, Product: a.Product, Serial: a.Serial, Replica: "replica-1"})
			}
			if c.tamper != nil {
				c.tamper(books)
			}
			if c.answer != nil {
				c.answer(answers)
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
