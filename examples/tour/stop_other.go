//go:build !unix

package main

import "errors"

const canStop = false

func (p *process) stop() error { return errors.ErrUnsupported }

func (p *process) goOn() error { return errors.ErrUnsupported }
