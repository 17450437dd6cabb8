// Package layout holds the test that keeps the module in shape: who may import
// whom, what go.mod may require, what lies at the top level, and how long a
// source file may be. It reads the real import graph, not a list of files.
package layout
