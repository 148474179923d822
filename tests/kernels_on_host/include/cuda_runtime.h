// The subset of CUDA that the kernels use, for a host compiler.
#pragma once

#include <math.h>

#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels_on_host/machine/machine.h"

#define __global__
#define __grid_constant__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads() ::metroplex::kernels_on_host::block_barrier(__FILE__, __LINE__)
#define __syncwarp() ::metroplex::kernels_on_host::sync_warp({__FILE__, __LINE__, true})
#define __shfl_xor_sync(mask, value, lanes) \
  ::metroplex::kernels_on_host::shuffle({__FILE__, __LINE__, false}, mask, value, threadIdx.x % 32 ^ (lanes))
#define __shfl_sync(mask, value, lane) \
  ::metroplex::kernels_on_host::shuffle({__FILE__, __LINE__, false}, mask, value, lane)
#define __shfl_down_sync(mask, value, lanes)    \
  ::metroplex::kernels_on_host::shuffle(        \
      {__FILE__, __LINE__, false}, mask, value, \
      threadIdx.x % 32 + (lanes) < 32 ? threadIdx.x % 32 + (lanes) : threadIdx.x % 32)
#define __ballot_sync(mask, yes) ::metroplex::kernels_on_host::ballot({__FILE__, __LINE__, false}, mask, yes)
#define __reduce_max_sync(mask, value) \
  ::metroplex::kernels_on_host::reduce_max({__FILE__, __LINE__, false}, mask, value)
#define __match_any_sync(mask, value) \
  ::metroplex::kernels_on_host::match_any({__FILE__, __LINE__, false}, mask, static_cast<unsigned>(value))
#define __popc(bits) __builtin_popcount(bits)
#define __ffs(bits) __builtin_ffs(bits)

namespace metroplex::kernels_on_host {

template <Index (*read)(), unsigned Index::*member>
struct Coordinate {
  operator unsigned() const { return read().*member; }
};
template <Index (*read)()>
struct Coordinates {
  Coordinate<read, &Index::x> x;
  Coordinate<read, &Index::y> y;
  Coordinate<read, &Index::z> z;
};

}  // namespace metroplex::kernels_on_host

constexpr metroplex::kernels_on_host::Coordinates<metroplex::kernels_on_host::thread_index> threadIdx;
constexpr metroplex::kernels_on_host::Coordinates<metroplex::kernels_on_host::block_index> blockIdx;
constexpr metroplex::kernels_on_host::Coordinates<metroplex::kernels_on_host::block_size> blockDim;
constexpr metroplex::kernels_on_host::Coordinates<metroplex::kernels_on_host::grid_size> gridDim;

using uint4 = unsigned __attribute__((vector_size(16)));  // one access for any use

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1) : x(width), y(height), z(depth) {}
};

using cudaError_t = const char*;  // error message; null: success
constexpr cudaError_t cudaSuccess = nullptr;
inline const char* cudaGetErrorString(cudaError_t error) { return error; }

struct CUstream_st;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  CUstream_st* stream;
  const char* name;
};

namespace metroplex::kernels_on_host {

template <class... Parameters>
struct Packet {
  void (*kernel)(Parameters...);
  std::tuple<Parameters...> arguments;

  static void run(const void* packet) {
    const auto& self = *static_cast<const Packet*>(packet);
    std::apply(self.kernel, self.arguments);
  }
};

std::string& last_finding();

inline void sync_warp(const WarpMeeting& meeting) {
  warp_meets(meeting, 0xFFFFFFFFU, nullptr, [](void* const*) {});
}

template <class T>
struct Shuffled {
  T value, got;
  unsigned from;
};
// This code is not watched: lanes are on the stacks of other threads.
template <class T>
__attribute__((no_sanitize("thread"))) T shuffle(const WarpMeeting& meeting, unsigned mask, T value, unsigned from) {
  Shuffled<T> mine{value, value, from};
  warp_meets(
      meeting, mask, &mine, [](void* const* lanes) __attribute__((no_sanitize("thread"))) {
        for (unsigned lane = 0; lane < kWarp; ++lane) {
          if (lanes[lane] == nullptr) continue;
          auto* const to = static_cast<Shuffled<T>*>(lanes[lane]);
          const void* const source = lanes[to->from % kWarp];
          if (source == nullptr) fail("a shuffle reads from a thread that has ended");
          to->got = static_cast<const Shuffled<T>*>(source)->value;
        }
      });
  return mine.got;
}

unsigned ballot(const WarpMeeting& meeting, unsigned mask, bool yes);
unsigned reduce_max(const WarpMeeting& meeting, unsigned mask, unsigned value);
unsigned match_any(const WarpMeeting& meeting, unsigned mask, unsigned value);

}  // namespace metroplex::kernels_on_host

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* how, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  namespace host = metroplex::kernels_on_host;
  const host::Packet<Parameters...> packet{kernel, {std::forward<Arguments>(arguments)...}};
  host::last_finding() = host::run({how->name,
                                    {how->gridDim.x, how->gridDim.y, how->gridDim.z},
                                    {how->blockDim.x, how->blockDim.y, how->blockDim.z},
                                    how->dynamicSmemBytes,
                                    packet.run,
                                    &packet,
                                    sizeof(packet)});
  return host::last_finding().empty() ? cudaSuccess : host::last_finding().c_str();
}
