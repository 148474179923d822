// Products of 16 x 16 tiles by a warp, as far as kernels use them: sums are taken in fp32, by ascending k. A lane
// holds 8 neighbouring elements of a tile, in the order in which it lies in memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/kernels/number.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

constexpr unsigned kSide = 16, kOfLane = kSide * kSide / metroplex::kernels_on_host::kWarp;

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  static_assert(m == kSide && n == kSide && k == kSide);
  T elements[kOfLane];
};

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, unsigned leading) {
  const unsigned first = threadIdx.x % metroplex::kernels_on_host::kWarp * kOfLane;
  for (unsigned i = 0; i < kOfLane; ++i) to.elements[i] = from[(first + i) / kSide * leading + (first + i) % kSide];
}

template <class T>
void store_matrix_sync(T* to, const fragment<accumulator, 16, 16, 16, T>& from, unsigned leading, layout_t layout) {
  const unsigned first = threadIdx.x % metroplex::kernels_on_host::kWarp * kOfLane;
  for (unsigned i = 0; i < kOfLane; ++i) {
    const unsigned row = (first + i) / kSide, column = (first + i) % kSide;
    to[layout == mem_row_major ? row * leading + column : column * leading + row] = from.elements[i];
  }
}

template <class T>
void fill_fragment(fragment<accumulator, 16, 16, 16, T>& to, T value) {
  for (T& element : to.elements) element = value;
}

inline float to_float(__nv_bfloat16 x) { return metroplex::cuda::kernels::bf16_to_float(x.bits); }
inline float to_float(__half x) { return metroplex::cuda::kernels::f16_to_float(x.bits); }

template <class T, class LayoutA, class LayoutB>
struct Product {
  fragment<accumulator, 16, 16, 16, float>* d;
  const fragment<matrix_a, 16, 16, 16, T, LayoutA>* a;
  const fragment<matrix_b, 16, 16, 16, T, LayoutB>* b;
  const fragment<accumulator, 16, 16, 16, float>* c;

  template <class Layout, class Fragment>
  static float element(const Fragment* Product::*of, void* const* lanes, unsigned row, unsigned column) {
    const unsigned at = std::is_same_v<Layout, row_major> ? row * kSide + column : column * kSide + row;
    return to_float((static_cast<const Product*>(lanes[at / kOfLane])->*of)->elements[at % kOfLane]);
  }
  // Lanes lie on the stacks of other threads: not watched.
  __attribute__((no_sanitize("thread"))) static void of_warp(void* const* lanes) {
    float sums[kSide][kSide];
    for (unsigned lane = 0; lane < metroplex::kernels_on_host::kWarp; ++lane) {
      if (lanes[lane] == nullptr) metroplex::kernels_on_host::fail("a product by a warp of which a thread has ended");
    }
    for (unsigned at = 0; at < kSide * kSide; ++at) {
      const unsigned row = at / kSide, column = at % kSide;
      float sum = static_cast<const Product*>(lanes[at / kOfLane])->c->elements[at % kOfLane];
      for (unsigned k = 0; k < kSide; ++k)
        sum += element<LayoutA>(&Product::a, lanes, row, k) * element<LayoutB>(&Product::b, lanes, k, column);
      sums[row][column] = sum;
    }
    for (unsigned at = 0; at < kSide * kSide; ++at)
      static_cast<const Product*>(lanes[at / kOfLane])->d->elements[at % kOfLane] = sums[at / kSide][at % kSide];
  }
};

template <class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& c) {
  Product<T, LayoutA, LayoutB> mine{&d, &a, &b, &c};
  metroplex::kernels_on_host::warp_meets({__FILE__, __LINE__, false}, 0xFFFFFFFFU, &mine, mine.of_warp);
}

}  // namespace nvcuda::wmma
