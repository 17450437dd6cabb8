// Package readme holds the test that runs the Go code of the repository's README. It is in this module because this module
// requires everything that the code imports.
package readme
