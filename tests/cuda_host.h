// What CUDA has and C++ has not, for kernels that run on the host: a block's threads are fibers, each of which
// runs until it waits for the others.
#include <ucontext.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
using std::fabs;
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(n)
#define OSTINATO_HOST
struct dim3_ { unsigned x, y, z; };
static dim3_ threadIdx, blockIdx, blockDim, gridDim;
static ucontext_t back_, fibers_[1024];
static bool over_[1024];
static unsigned turn_;
static long barriers_;
static unsigned long long slot_[1024];
static char* stacks_ = (char*)malloc(1024l << 16);
static inline void __syncthreads() {
  const unsigned me = turn_;
  swapcontext(&fibers_[me], &back_);
}
static inline void __threadfence() {}
static inline unsigned atomicAdd(unsigned* at, unsigned more) { unsigned was = *at; *at += more; return was; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static inline float half_to_float(unsigned short x) { _Float16 h; memcpy(&h, &x, 2); return (float)h; }
static inline unsigned short float_to_half(float x) {
  if (x != x) return (__float_as_uint(x) >> 16 & 0x8000) | 0x7e00;
  _Float16 h = (_Float16)x; unsigned short y; memcpy(&y, &h, 2); return y;
}
template <typename T> static T from_lane(T x, int far) {  // of the same warp; its own where there is none
  memcpy(&slot_[turn_], &x, sizeof(T));
  __syncthreads();
  T y = x;
  if (turn_ % 32 + far < 32) memcpy(&y, &slot_[turn_ + far], sizeof(T));
  __syncthreads();
  return y;
}
typedef void (*Run_)(void**);
static Run_ run_;
static void** given_;
static void fiber_() { run_(given_); over_[turn_] = true; swapcontext(&fibers_[turn_], &back_); }
// 0, or 1 if some threads of a block wait for others that have ended
static int launch_(Run_ run, void** given, const unsigned* grid, const unsigned* block) {
  const unsigned gx = grid[0], gy = grid[1], threads = block[0];
  run_ = run; given_ = given;
  blockDim = {threads, 1, 1}; gridDim = {gx, gy, 1};
  for (unsigned b = 0; b < gx * gy; ++b) {
    blockIdx = {b % gx, b / gx, 0};
    for (unsigned t = 0; t < threads; ++t) {
      getcontext(&fibers_[t]);
      fibers_[t].uc_stack.ss_sp = stacks_ + ((long)t << 16);
      fibers_[t].uc_stack.ss_size = 1 << 16;
      fibers_[t].uc_link = &back_;
      makecontext(&fibers_[t], fiber_, 0);
      over_[t] = false;
    }
    for (unsigned left = threads; left;) {
      const unsigned before = left;
      unsigned waits = 0;
      for (unsigned t = 0; t < threads; ++t) {
        if (over_[t]) continue;
        turn_ = t; threadIdx = {t, 0, 0};
        swapcontext(&back_, &fibers_[t]);
        if (over_[t]) --left; else ++waits;
      }
      if (waits && left < before && before == threads) return 1;  // some ended, some wait: once begun
    }
  }
  return 0;
}
