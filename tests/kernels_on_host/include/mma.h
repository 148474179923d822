// Warp matmuls of 16 x 16 tiles, the subset that kernels use: factors are exact in fp32, sums are taken in fp32 by
// ascending k. The mapping of elements to lanes is unspecified in hardware; here it is scattered. Reports pointers
// and strides that hardware rejects, lanes with different ones, and warps with a missing lane.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/number.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

namespace host = metroplex::kernels_on_host;
constexpr unsigned kSide = 16, kOfLane = kSide * kSide / host::kWarp;

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  static_assert(m == kSide && n == kSide && k == kSide);
  T elements[kOfLane];
};

// Element i of a lane is the one at row * 16 + column; and the inverse.
constexpr unsigned element_index(unsigned lane, unsigned i) {
  return (lane * 7 + i * 13) % host::kWarp * kOfLane + i;
}
struct Holder {
  unsigned lane, i;
};
constexpr Holder find_holder(unsigned row, unsigned column) {
  const unsigned at = row * kSide + column, i = at % kOfLane;
  return {(at / kOfLane + 32 * 13 - i * 13) * 23 % host::kWarp, i};  // 7 * 23 is 1 modulo 32
}
static_assert([] {
  for (unsigned at = 0; at < kSide * kSide; ++at) {
    const Holder holder = find_holder(at / kSide, at % kSide);
    if (element_index(holder.lane, holder.i) != at) return false;
  }
  return true;
}());

// All lanes of the warp must pass the same memory; hardware reads it 16 bytes at a time.
struct Memory {
  const void* begin;
  unsigned leading, bytes;  // of an element

  __attribute__((no_sanitize("thread"))) static void meet(void* const* lanes) {
    const Memory* first = nullptr;
    for (unsigned lane = 0; lane < host::kWarp; ++lane) {
      if (lanes[lane] == nullptr) host::fail("a tile is moved by a warp of which a thread has ended");
      const auto* const memory = static_cast<const Memory*>(lanes[lane]);
      if (first == nullptr) first = memory;
      if (memory->begin != first->begin || memory->leading != first->leading)
        host::fail("lanes of a warp move different tiles");
    }
    if (reinterpret_cast<uintptr_t>(first->begin) % 32 != 0)
      host::fail("a tile does not begin at a multiple of 32 bytes");
    if (first->leading * first->bytes % 16 != 0) host::fail("rows of a tile are not multiples of 16 bytes apart");
  }
};
template <class T>
void bring(const T* tile, unsigned leading) {
  Memory memory{tile, leading, sizeof(T)};
  host::warp_meets({__FILE__, __LINE__, false}, 0xFFFFFFFFU, &memory, Memory::meet);
}

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, unsigned leading) {
  bring(from, leading);
  for (unsigned i = 0; i < kOfLane; ++i) {
    const unsigned at = element_index(threadIdx.x % host::kWarp, i);
    to.elements[i] = from[at / kSide * leading + at % kSide];
  }
}
template <class T>
void load_matrix_sync(fragment<accumulator, 16, 16, 16, T>& to, const T* from, unsigned leading, layout_t layout) {
  bring(from, leading);
  for (unsigned i = 0; i < kOfLane; ++i) {
    const unsigned at = element_index(threadIdx.x % host::kWarp, i), row = at / kSide, column = at % kSide;
    to.elements[i] = from[layout == mem_row_major ? row * leading + column : column * leading + row];
  }
}
template <class T>
void store_matrix_sync(T* to, const fragment<accumulator, 16, 16, 16, T>& from, unsigned leading, layout_t layout) {
  bring(to, leading);
  for (unsigned i = 0; i < kOfLane; ++i) {
    const unsigned at = element_index(threadIdx.x % host::kWarp, i), row = at / kSide, column = at % kSide;
    to[layout == mem_row_major ? row * leading + column : column * leading + row] = from.elements[i];
  }
}

template <class T>
void fill_fragment(fragment<accumulator, 16, 16, 16, T>& to, T value) {
  host::warp_meets({__FILE__, __LINE__, false}, 0xFFFFFFFFU, nullptr, [](void* const*) {});
  for (T& element : to.elements) element = value;
}

inline float to_float(__nv_bfloat16 x) { return metroplex::kernels::bf16_to_float(x.bits); }
inline float to_float(__half x) { return metroplex::kernels::f16_to_float(x.bits); }

template <class T, class LayoutA, class LayoutB>
struct Product {
  fragment<accumulator, 16, 16, 16, float>* d;
  const fragment<matrix_a, 16, 16, 16, T, LayoutA>* a;
  const fragment<matrix_b, 16, 16, 16, T, LayoutB>* b;
  const fragment<accumulator, 16, 16, 16, float>* c;

  template <class Layout, class Fragment>
  static float element(const Fragment* Product::*of, void* const* lanes, unsigned row, unsigned column) {
    const bool by_row = std::is_same_v<Layout, row_major>;
    const Holder holder = by_row ? find_holder(row, column) : find_holder(column, row);
    return to_float((static_cast<const Product*>(lanes[holder.lane])->*of)->elements[holder.i]);
  }
  // Lanes are on the stacks of other threads: not watched.
  __attribute__((no_sanitize("thread"))) static void of_warp(void* const* lanes) {
    float left[kSide][kSide], right[kSide][kSide], sums[kSide][kSide];
    for (unsigned lane = 0; lane < host::kWarp; ++lane) {
      if (lanes[lane] == nullptr) host::fail("a product by a warp of which a thread has ended");
    }
    for (unsigned row = 0; row < kSide; ++row) {
      for (unsigned column = 0; column < kSide; ++column) {
        const Holder holder = find_holder(row, column);
        left[row][column] = element<LayoutA>(&Product::a, lanes, row, column);
        right[row][column] = element<LayoutB>(&Product::b, lanes, row, column);
        sums[row][column] = static_cast<const Product*>(lanes[holder.lane])->c->elements[holder.i];
      }
    }
    for (unsigned row = 0; row < kSide; ++row) {
      for (unsigned column = 0; column < kSide; ++column) {
        const Holder holder = find_holder(row, column);
        float sum = sums[row][column];
        for (unsigned k = 0; k < kSide; ++k) sum += left[row][k] * right[k][column];
        static_cast<const Product*>(lanes[holder.lane])->d->elements[holder.i] = sum;
      }
    }
  }
};

template <class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& c) {
  Product<T, LayoutA, LayoutB> mine{&d, &a, &b, &c};
  host::warp_meets({__FILE__, __LINE__, false}, 0xFFFFFFFFU, &mine, mine.of_warp);
}

}  // namespace nvcuda::wmma
