package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestEachTickOfTheCronJobRunsOnce(t *testing.T) {
	t.Parallel()
	r := play(t, []scene{acts("cron")}, nil)
	if r.status != 0 || r.stderr != "" || !strings.Contains(r.stdout, "on 5 replicas: with cronlock each ran on one.") {
		t.Errorf("got %s", r)
	}
	lines := regexp.MustCompile(`(?m)^ {3}\d\d:\d\d:\d[02468] +\[replica-[1-5]\] +(\d) replicas$`).FindAllStringSubmatch(r.stdout, -1)
	damage := 0
	for _, l := range lines {
		if l[1] > "1" {
			damage++
		}
	}
	if len(lines) < short.jobs || damage < 1 {
		t.Errorf("%d ticks, %d of them on several replicas without cronlock, in %s", len(lines), damage, r)
	}
}
