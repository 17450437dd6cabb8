# Every target goes through all modules: the root and the nested ones.
# HOLDFAST_REDIS_SERVER=/path picks the Redis server; TESTFLAGS go to go test.

DURATION ?= 10m
SEED ?=

.PHONY: test check soak bench fmt

test: ## vet and race tests, on real servers, which are installed where possible
	@.ci/install
	@.ci/test

check: ## formatting, staticcheck, go.mod and known vulnerabilities, then test
	@.ci/lint
	@.ci/install
	@.ci/test

soak: ## the Soak tests for DURATION, from SEED or a random seed
	@HOLDFAST_SOAK=1 DURATION='$(DURATION)' SEED='$(SEED)' \
		.ci/each 'go test -run Soak -count=1 -timeout 0 -v $(TESTFLAGS) ./...'

bench: ## holdfast beside the other libraries
	@if [ -f internal/bench/go.mod ]; then \
		cd internal/bench && GOWORK=off go test -run '^$$' -bench . -benchmem $(TESTFLAGS) ./...; \
	else \
		echo 'bench: there is no internal/bench yet'; \
	fi

fmt: ## gofmt
	@gofmt -w .
