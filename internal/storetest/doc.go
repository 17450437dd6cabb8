// Package storetest tests the recipe of sqlfence/RECIPES.md for S3, on an embedded server and with a client that the root module must
// not require.
package storetest
