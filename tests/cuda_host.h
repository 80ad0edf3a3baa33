// What CUDA has and C++ has not, for kernels that run on the host: a block's threads are fibers, each of which
// runs until it waits for the others. They jump, as swapcontext asks the system about signals each time.
#undef _FORTIFY_SOURCE  // which allows no jumps from stack to stack
#include <setjmp.h>
#include <ucontext.h>
#include <cstdlib>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // which take as long to load as all the others
#include <cmath>
#include <cstdio>
#include <cstring>
using std::fabs;
#define __global__
#define __device__
#define __noinline__
#define __shared__ static __attribute__((section("shared_")))
#define __launch_bounds__(...)
#define OSTINATO_HOST
#define __cudart_builtin__
#define CUDARTAPI
typedef unsigned long long cudaGraphConditionalHandle;
extern "C" void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value) {
  *(unsigned*)handle = value;
}
extern "C" char __start_shared_[] __attribute__((weak)), __stop_shared_[] __attribute__((weak));
struct dim3_ { unsigned x, y, z; };
static dim3_ threadIdx, blockIdx, blockDim, gridDim;
static ucontext_t fiber_of_[1024];
static jmp_buf back_, fibers_[1024];
static bool begun_[1024];
static unsigned turn_;
enum { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, OVER };
static int state_[1024];
static unsigned long long slot_[1024];
struct Stacks_ { char* at; void* whose; };  // of the threads of all kernels of a process, one of which runs
static char* stacks_;
static inline void wait_(int state) {
  const unsigned me = turn_;
  state_[me] = state;
  if (!_setjmp(fibers_[me])) _longjmp(back_, 1);
}
static inline void __syncthreads() { wait_(WAITS_FOR_BLOCK); }
static inline void __threadfence() {}
static inline unsigned atomicAdd(unsigned* at, unsigned more) { unsigned was = *at; *at += more; return was; }
static inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long more) {
  unsigned long long was = *at; *at += more; return was;
}
static inline long long atomicMin(long long* at, long long x) { long long was = *at; if (x < was) *at = x; return was; }
static inline long long atomicMax(long long* at, long long x) { long long was = *at; if (x > was) *at = x; return was; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static inline float half_to_float(unsigned short x) { _Float16 h; memcpy(&h, &x, 2); return (float)h; }
static inline unsigned short float_to_half(float x) {
  if (x != x) return (__float_as_uint(x) >> 16 & 0x8000) | 0x7e00;
  _Float16 h = (_Float16)x; unsigned short y; memcpy(&y, &h, 2); return y;
}
template <typename T> static T of_lane_(T x, unsigned lane) {  // of the same warp; its own where there is none
  memcpy(&slot_[turn_], &x, sizeof(T));
  wait_(WAITS_FOR_WARP);
  T y = x;
  if (lane < 32) memcpy(&y, &slot_[turn_ / 32 * 32 + lane], sizeof(T));
  wait_(WAITS_FOR_WARP);
  return y;
}
template <typename T> static T from_lane(T x, int far) { return of_lane_(x, turn_ % 32 + far); }
template <typename T> static T from_lane_before(T x, int far) { return of_lane_(x, turn_ % 32 - far); }
template <typename T> static T from_first_lane(T x) { return of_lane_(x, 0); }
template <typename T> static T from_lane_across(T x, int mask) { return of_lane_(x, turn_ % 32 ^ mask); }
template <typename T> static T from_last_lane(T x) { return of_lane_(x, 31); }
typedef void (*Run_)(void**);
static Run_ run_;
static void** given_;
static bool misaligned_;  // whether something was read or written that is not where its size wants it
extern "C" void __ubsan_handle_type_mismatch_v1(void*, void*) { misaligned_ = true; }
static void fiber_() { for (;;) { run_(given_); wait_(OVER); } }  // a thread of each block
static void go_on_(unsigned t) {
  if (_setjmp(back_)) return;
  if (begun_[t]) _longjmp(fibers_[t], 1);
  begun_[t] = true;
  getcontext(&fiber_of_[t]);
  fiber_of_[t].uc_stack.ss_sp = stacks_ + ((long)t << 18);
  fiber_of_[t].uc_stack.ss_size = 1 << 18;
  makecontext(&fiber_of_[t], fiber_, 0);
  setcontext(&fiber_of_[t]);
}
// whether some threads, all of which wait so, may go on
static bool released_(unsigned begin, unsigned end, int state) {
  for (unsigned t = begin; t < end; ++t) if (state_[t] != state) return false;
  for (unsigned t = begin; t < end; ++t) state_[t] = RUNS;
  return true;
}
// some numbers in an order that depends on `seed`; 0 keeps theirs
static void mix_(unsigned* all, unsigned count, unsigned seed) {
  for (unsigned n = 0; n < count; ++n) all[n] = n;
  for (unsigned n = count; seed && n > 1; --n) {
    seed = seed * 1664525u + 1013904223u;
    const unsigned other = (unsigned)((unsigned long long)seed * n >> 32), was = all[n - 1];
    all[n - 1] = all[other]; all[other] = was;
  }
}
// 0; 1 if some threads wait for others that have ended, or that wait elsewhere; 2 where a GPU would find a
// misaligned address; 3 if there is less shared memory. Blocks run in an order that `seed` gives, and so do the
// warps of a block and the lanes of a warp between two places where they wait; shared memory begins as rubbish.
static int launch_(
    Run_ run, void** given, const unsigned* grid, const unsigned* block, unsigned seed, Stacks_* stacks) {
  const unsigned gx = grid[0], gy = grid[1], threads = block[0];
  const long shared = __start_shared_ ? __stop_shared_ - __start_shared_ : 0;
  if (shared > 48 << 10) return 3;
  static unsigned order[1024];
  static unsigned* blocks;  // kept: with a vector the compiler takes twice as long
  blocks = (unsigned*)realloc(blocks, sizeof(unsigned) * gx * gy);
  mix_(blocks, gx * gy, seed);
  mix_(order, threads, seed);
  run_ = run; given_ = given; misaligned_ = false; stacks_ = stacks->at;
  if (stacks->whose != begun_) memset(begun_, 0, sizeof(begun_));
  stacks->whose = begun_;
  blockDim = {threads, 1, 1}; gridDim = {gx, gy, 1};
  for (unsigned k = 0; k < gx * gy; ++k) {
    const unsigned b = blocks[k];
    if (shared) memset(__start_shared_, 0x5a, shared);
    blockIdx = {b % gx, b / gx, 0};
    for (unsigned t = 0; t < threads; ++t) state_[t] = RUNS;
    for (bool goes_on = true; goes_on;) {
      for (unsigned n = 0; n < threads; ++n) {
        const unsigned t = order[n];
        if (state_[t] != RUNS) continue;
        turn_ = t; threadIdx = {t, 0, 0};
        go_on_(t);
      }
      goes_on = released_(0, threads, WAITS_FOR_BLOCK);
      for (unsigned t = 0; t < threads; t += 32)
        goes_on |= released_(t, t + 32 < threads ? t + 32 : threads, WAITS_FOR_WARP);
    }
    for (unsigned t = 0; t < threads; ++t) {
      if (state_[t] == OVER) continue;
      memset(begun_, 0, sizeof(begun_));
      return 1;
    }
  }
  return misaligned_ ? 2 : 0;
}
