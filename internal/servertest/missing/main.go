// Missing prints the servers that tests need and that are not installed here,
// one to a line.
package main

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

func main() {
	for _, name := range servertest.Missing() {
		fmt.Println(name)
	}
}
