#include "files/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "files/small_float.h"

namespace metroplex::files {
namespace {

struct Row {
  const char* name;
  int bits;
};

constexpr std::array<Row, 22> kRows{
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

template <class T>
T load_as(const std::byte* data, uint64_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

double half_to_double(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value;
  if (exponent == 31) {
    value = mantissa != 0 ? std::nan("") : HUGE_VAL;
  } else {
    value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

}  // namespace

const char* dtype_name(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].name; }

int dtype_bits(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].bits; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (name == kRows[i].name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

double element_as_double(Dtype dtype, const std::byte* data, uint64_t i) {
  switch (dtype) {
    case Dtype::kBool:
      return load_as<uint8_t>(data, i) != 0;
    case Dtype::kU8:
      return load_as<uint8_t>(data, i);
    case Dtype::kI8:
      return load_as<int8_t>(data, i);
    case Dtype::kI16:
      return load_as<int16_t>(data, i);
    case Dtype::kU16:
      return load_as<uint16_t>(data, i);
    case Dtype::kF16:
      return half_to_double(load_as<uint16_t>(data, i));
    case Dtype::kBF16:
      return std::bit_cast<float>(static_cast<uint32_t>(load_as<uint16_t>(data, i)) << 16);
    case Dtype::kI32:
      return load_as<int32_t>(data, i);
    case Dtype::kU32:
      return load_as<uint32_t>(data, i);
    case Dtype::kF32:
      return load_as<float>(data, i);
    case Dtype::kF64:
      return load_as<double>(data, i);
    case Dtype::kI64:
      return static_cast<double>(load_as<int64_t>(data, i));
    case Dtype::kU64:
      return static_cast<double>(load_as<uint64_t>(data, i));
    case Dtype::kF8E4M3:
      return e4m3_value(load_as<uint8_t>(data, i));
    case Dtype::kF8E8M0:
      return e8m0_value(load_as<uint8_t>(data, i));
    case Dtype::kF4:
      return e2m1_value(load_as<uint8_t>(data, i / 2) >> (i % 2 == 0 ? 0 : 4) & 15);
    default:
      break;
  }
  base::throw_error("files", base::concat("values of dtype ", dtype_name(dtype), " cannot be read as numbers"));
}

}  // namespace metroplex::files
