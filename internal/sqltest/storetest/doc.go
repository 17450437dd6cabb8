// Package storetest tests the recipe of sqlfence/RECIPES.md for S3, on an embedded server and with a client that the root module
// must not require. The client takes longer to compile than the test to run, so that it is a part of make check alone:
//
//	go test -tags s3 ./...
package storetest
