//go:build unix && !linux

package main

import "syscall"

func adopt() {}

func mortal() *syscall.SysProcAttr { return nil }
