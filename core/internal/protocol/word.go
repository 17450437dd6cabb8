package protocol

import "unsafe"

// word and number return *s and *n as arguments of a command, without the allocation that storing a string or an int64
// in an interface takes. Half of what an acquire and its release allocated was that, and pointers in place of the
// values, which go-redis accepts too, are no choice: the hooks of a client get to see the arguments.
//
// An interface is two words: a type, and a pointer to the value. The value of an interface never changes, so *s and *n
// must not change either.
func word(s *string) any { return pointing(emptyString, unsafe.Pointer(s)) }

func number(n *int64) any { return pointing(zeroNumber, unsafe.Pointer(n)) }

var emptyString, zeroNumber any = "", int64(0)

func pointing(like any, value unsafe.Pointer) any {
	(*[2]unsafe.Pointer)(unsafe.Pointer(&like))[1] = value
	return like
}
