// Which library multiplies matrices on this CPU: by vendor and instruction set, never by timing, so that a run's bits
// are the same every time on one machine.
#pragma once

namespace metroplex::nn {

struct Processor {
  bool intel = false, avx512 = false, bf16 = false;  // bf16: products of bf16 (AVX512_BF16 or AMX)
};

struct ProductChoice {
  // Large fp32 products. MKL uses AVX-512 on Intel alone; on others oneDNN takes half the time with it.
  bool onednn_floats = false;
  // Products of bf16 added to fp32 as they are: by MKL, or by our own tiles, which are as quick as oneDNN's products
  // where there are instructions for bf16. Elsewhere libtorch's, which are rounded to bf16 first.
  bool mkl_bf16_sums = false, own_bf16_sums = false;
};

ProductChoice choose_products(const Processor& processor);
Processor this_processor();
// The choice of this process. Tests set another one before the first product.
ProductChoice& product_choice();

}  // namespace metroplex::nn
