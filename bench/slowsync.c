/* Loaded before the C library, this adds MILLPOND_BENCH_SYNC_US microseconds to every sync,
   as a slower disk would. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static void linger(void) {
  static long nanoseconds = -1;
  if (nanoseconds < 0) {
    const char *text = getenv("MILLPOND_BENCH_SYNC_US");
    nanoseconds = text ? atol(text) * 1000 : 0;
  }
  struct timespec left = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  nanosleep(&left, 0);
}

int fsync(int file) {
  static int (*next)(int);
  if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  linger();
  return next(file);
}

int fdatasync(int file) {
  static int (*next)(int);
  if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  linger();
  return next(file);
}
