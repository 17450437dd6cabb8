// A wall clock that a test sets, for one process: loaded in front of the C library, by LD_PRELOAD. What it adds to the clock,
// in ns, is the int64 at the beginning of the file that HOLDFAST_CLOCK names, and it looks there at each call. Every other
// clock goes on as it is: the monotonic ones, and those of the CPU.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

static const int64_t none = 0;
static const int64_t *ahead = &none;

__attribute__((constructor)) static void start(void) {
	const char *name = getenv("HOLDFAST_CLOCK");
	int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0) return;
	void *p = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED) ahead = p;
	close(fd);
}

// real is the C library's: a system call would be slow.
static int real(clockid_t id, struct timespec *ts) {
	static int (*next)(clockid_t, struct timespec *); // each thread that comes first finds the same
	int (*fn)(clockid_t, struct timespec *) = __atomic_load_n(&next, __ATOMIC_RELAXED);
	if (!fn) {
		*(void **)&fn = dlsym(RTLD_NEXT, "clock_gettime");
		__atomic_store_n(&next, fn, __ATOMIC_RELAXED);
	}
	return fn(id, ts);
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	int err = real(id, ts);
	if (err || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return err;
	int64_t ns = ts->tv_sec * SECOND + ts->tv_nsec + __atomic_load_n(ahead, __ATOMIC_RELAXED);
	ts->tv_sec = ns / SECOND; // after 1970
	ts->tv_nsec = ns % SECOND;
	return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
	struct timespec ts;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at) {
	struct timespec ts;
	if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
	if (at) *at = ts.tv_sec;
	return ts.tv_sec;
}
