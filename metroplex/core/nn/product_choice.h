// Selects the matrix product library for this CPU by vendor and instruction set, never by timing. A run therefore
// gives the same bits every time on one machine.
#pragma once

namespace metroplex::nn {

struct Processor {
  bool intel = false, avx512 = false, bf16 = false;  // bf16: instructions for bf16 products (AVX512_BF16 or AMX)
};

struct ProductChoice {
  // Use oneDNN for large fp32 products. MKL uses AVX-512 on Intel only; on other CPUs with AVX-512 oneDNN takes
  // half the time.
  bool onednn_floats = false;
  // Accumulate bf16 products in fp32, by MKL or by our own tiles. Our tiles are as fast as oneDNN's bf16 products
  // if the CPU has bf16 instructions. On other CPUs libtorch computes the products, and they are rounded to bf16
  // before they are added in fp32.
  bool mkl_bf16_sums = false, own_bf16_sums = false;
};

ProductChoice choose_products(const Processor& processor);
Processor this_processor();
// The choice of this process. Tests replace it before the first product.
ProductChoice& product_choice();

}  // namespace metroplex::nn
