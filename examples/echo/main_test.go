package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

func TestRequestsForOneOrderRunOneAtATime(t *testing.T) {
	exampletest.Orders(t, router, "/pay", "/pay")
}

func TestEmbeddedRedis(t *testing.T) {
	exampletest.Embedded(t, run, "/orders/42/pay", "paid order 42, token ")
}
