// Arrays in numpy's .npy format, version 1.0, byte for byte as numpy.save writes them: little-endian integers in C
// order, one or two dimensions. The reader maps the file and checks header and size; ranks share the pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace metroplex::files {

// Returns numpy's name of an integer type, such as "<i4".
template <class T>
std::string npy_type();
template <>
inline std::string npy_type<int8_t>() {
  return "|i1";
}
template <>
inline std::string npy_type<int16_t>() {
  return "<i2";
}
template <>
inline std::string npy_type<int32_t>() {
  return "<i4";
}
template <>
inline std::string npy_type<int64_t>() {
  return "<i8";
}
template <>
inline std::string npy_type<uint8_t>() {
  return "|u1";
}
template <>
inline std::string npy_type<uint16_t>() {
  return "<u2";
}
template <>
inline std::string npy_type<uint32_t>() {
  return "<u4";
}
template <>
inline std::string npy_type<uint64_t>() {
  return "<u8";
}

struct NpyArray {
  std::string type;            // "<i4", ...
  std::vector<int64_t> shape;  // one or two dimensions
  int64_t header_bytes = 0;    // a multiple of 64
  Bytes file;

  int64_t size() const;  // elements
  // Returns the elements. Throws base::Error if the array has another type.
  template <class T>
  std::span<const T> as() const {
    check_type(npy_type<T>());
    return {reinterpret_cast<const T*>(file.data + header_bytes), static_cast<size_t>(size())};
  }
  void check_type(const std::string& wanted) const;
};

// Throws base::Error with `path` and the problem.
NpyArray parse_npy(Bytes file, const std::string& path);

std::string npy_header(const std::string& type, const std::vector<int64_t>& shape);

template <class T>
std::string npy_text(std::span<const T> values, const std::vector<int64_t>& shape) {
  std::string out = npy_header(npy_type<T>(), shape);
  out.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  return out;
}

}  // namespace metroplex::files
