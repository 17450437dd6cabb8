// Package crontest runs the tests of cronlock on the cron of netresearch/go-cron, a fork of robfig/cron.
package crontest
