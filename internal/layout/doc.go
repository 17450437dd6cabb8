// Package layout holds the test that keeps the module in shape: who may import
// whom, what go.mod may require, what lies at the top level, what test files of core are called, that no test ends a goroutine
// other than its own and each has a limit, that the examples can be copied, and that the papers link to what is there. It reads the real import
// graph, not a list of files.
package layout
