#include "pickle/value_writer.h"

#include <bit>
#include <limits>

namespace metroplex::pickle {

template <class T>
static void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void ValueWriter::integer(int64_t value) {
  const bool is_short = value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max();
  if (is_short) {
    code('J');
    append(bytes_, static_cast<int32_t>(value));
    return;
  }
  bytes_ += "\x8a\x08";  // LONG1 of 8 bytes
  append(bytes_, value);
}

void ValueWriter::real(double value) {
  code('G');
  append(bytes_, __builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void ValueWriter::text(std::string_view value) {
  code('X');
  append(bytes_, static_cast<uint32_t>(value.size()));
  bytes_ += value;
}

void ValueWriter::global(std::string_view name) {
  const size_t dot = name.rfind('.');
  code('c');
  bytes_ += name.substr(0, dot);
  code('\n');
  bytes_ += name.substr(dot + 1);
  code('\n');
}

void ValueWriter::integers(const std::vector<int64_t>& values) {
  begin_tuple();
  for (const int64_t value : values) integer(value);
  end_tuple();
}

std::string ValueWriter::take() {
  code('.');
  return std::move(bytes_);
}

}  // namespace metroplex::pickle
