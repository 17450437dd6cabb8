//go:build race

package readme

// raced has the snippets built as this test is: what they import has been compiled then.
const raced = true
