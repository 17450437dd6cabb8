package main

import (
	"fmt"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// line is the row of a product in the table.
type line struct {
	product                 string
	requests, sold, refused int
	waited, busy            int64
	longest                 int64 // ns
	stockLeft               int
	soldTwice               int // sales of a unit that had already been sold
}

// audit compares what the customers were told with what the books say. It returns the lines of the table and every invariant
// that broke, in words:
//
//   - No unit was sold twice, and none that did not exist.
//   - Units sold and units left add up to the stock at the beginning.
//   - A customer that got a 200 has exactly one sale, of the unit named in the answer. Nobody else has a sale.
//   - Nobody was sent away while there was stock left.
func audit(products []string, stock int, answers []shop.Answer, books *shop.Ledger) (lines []line, broken []string) {
	report := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }

	byOrder := map[string][]shop.Sale{}
	units := map[string]map[int]int{} // product, serial: how often sold
	rows := map[string]int{}
	for _, s := range books.Sales {
		byOrder[s.Order] = append(byOrder[s.Order], s)
		if units[s.Product] == nil {
			units[s.Product] = map[int]int{}
		}
		units[s.Product][s.Serial]++
		rows[s.Product]++
	}

	told := map[string]*line{}
	var wrong, unasked int
	for _, p := range products {
		told[p] = &line{product: p}
	}
	for _, a := range answers {
		l := told[a.Product]
		l.requests++
		sales := byOrder[a.Order]
		delete(byOrder, a.Order)
		switch {
		case a.Verdict == shop.Bought:
			l.sold++
			if len(sales) != 1 || sales[0].Product != a.Product || sales[0].Serial != a.Serial {
				wrong++
			}
		case a.Verdict == shop.Refused:
			l.refused++
			fallthrough
		default:
			unasked += len(sales)
		}
	}
	for _, sales := range byOrder {
		unasked += len(sales)
	}

	for _, p := range products {
		l := told[p]
		left, listed := books.Stock[p]
		l.stockLeft = left
		phantom := 0
		for serial, n := range units[p] {
			l.soldTwice += n - 1
			if serial < 1 || serial > stock {
				phantom++
			}
		}
		if !listed {
			report("%s: gone from the products", p)
		}
		if l.soldTwice > 0 {
			report("%s: %d sales were of a unit that was sold already", p, l.soldTwice)
		}
		if phantom > 0 {
			report("%s: %d serial numbers were sold that never existed", p, phantom)
		}
		if rows[p]+left != stock {
			report("%s: %d sold and %d left of %d", p, rows[p], left, stock)
		}
		if l.refused > 0 && left > 0 {
			report("%s: %d customers were refused with %d left", p, l.refused, left)
		}
		lines = append(lines, *l)
	}
	if wrong > 0 {
		report("%d customers with a 200 do not have exactly the one sale that the answer named", wrong)
	}
	if unasked > 0 {
		report("%d sales belong to no customer with a 200", unasked)
	}
	return lines, broken
}
