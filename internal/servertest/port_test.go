package servertest

import (
	"errors"
	"testing"
)

func TestTakenPortIsTriedNoMoreThanNeeded(t *testing.T) {
	var ports []int
	err := onFreePort(func(port int) error {
		ports = append(ports, port)
		if len(ports) < 3 {
			return errors.New("bind: address already in use")
		}
		return nil
	})
	if err != nil || len(ports) != 3 {
		t.Errorf("got %v after ports %v, want success at the third", err, ports)
	}
	broken := errors.New("cannot start at all")
	tries := 0
	err = onFreePort(func(int) error { tries++; return broken })
	if !errors.Is(err, broken) || tries != 1 {
		t.Errorf("got %v after %d tries, want the error of the first", err, tries)
	}
}
