# Every target goes through all modules: the root and the nested ones.
# HOLDFAST_REDIS_SERVER=/path picks the Redis server; TESTFLAGS go to go test, BENCHFLAGS to the benchmark.

DURATION ?= 10m
FUZZTIME ?= 1m
SEED ?=

.PHONY: test check soak fuzz bench fmt

test: ## vet and race tests, on real servers, which are installed where possible
	@.ci/install
	@.ci/test

check: ## formatting, staticcheck, go.mod and known vulnerabilities, then test, and again with the latest requirements
	@.ci/lint
	@.ci/install
	@HOLDFAST_BROWSER=1 .ci/test
	@.ci/latest

soak: ## simulations, model, recorded histories and traces in turns, for about DURATION, from SEED or a random seed
	@cd internal/history && GOWORK=off go run ./soak -duration '$(DURATION)' -seed '$(SEED)' -flags '$(TESTFLAGS)'

fuzz: ## each fuzz target of the root module in turn, for FUZZTIME; what one finds is under its testdata/fuzz
	@for pkg in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
		for target in $$(grep -ho '^func Fuzz[A-Za-z0-9]*' $$pkg/*_test.go | cut -c6-); do \
			echo "$$pkg $$target"; \
			go test -run='^$$' -fuzz="^$$target\$$" -fuzztime='$(FUZZTIME)' $(TESTFLAGS) $$pkg || exit 1; \
		done; \
	done

bench: export GOWORK := off
bench: TAGS = $$(go run ./internal/testrun -list internal/bench | cut -f2)
bench: ## holdfast beside the bare floor and other libraries, into internal/bench/results; BENCHFLAGS='-parts redlock' only prints
ifdef BENCHFLAGS
	@go run -C internal/bench -tags "$(TAGS)" . $(BENCHFLAGS)
else
	@go run -C internal/bench -tags "$(TAGS)" . -parts all -json results/results.json -md results/results.md -charts results
	@go run -C internal/gauntlet -tags "$(TAGS)" . -times 3 -parallel 8 >internal/gauntlet/results.md
	@cat internal/gauntlet/results.md
endif

fmt: ## gofmt
	@gofmt -w .
