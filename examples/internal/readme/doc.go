// Package readme holds the test that runs the Go code of the repository's README. It is in this module, which has all
// that the code imports.
package readme
