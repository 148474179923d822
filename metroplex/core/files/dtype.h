// Element types of safetensors files, in the format's spelling. The only arithmetic is reading an element as double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace metroplex::files {

// In the format's order. The safetensors package writes tensors in the reverse order.
enum class Dtype : uint8_t {
  // clang-format off
  kBool, kF4, kF6E2M3, kF6E3M2, kU8, kI8, kF8E5M2, kF8E4M3, kF8E8M0, kF8E4M3Fnuz, kF8E5M2Fnuz,
  kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kC64, kF64, kI64, kU64,
  // clang-format on
};

const char* dtype_name(Dtype dtype);  // "BF16"
std::optional<Dtype> dtype_from_name(std::string_view name);
int dtype_bits(Dtype dtype);  // 4, 6, 8, 16, 32 or 64

// Returns element i of packed elements in machine byte order, at any alignment. Throws base::Error for C64 and for
// floating-point types below 16 bits except F8_E4M3, F8_E8M0 and F4.
double element_as_double(Dtype dtype, const std::byte* data, uint64_t i);

}  // namespace metroplex::files
