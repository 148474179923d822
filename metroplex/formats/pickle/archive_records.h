// Internal to this module: signatures and constants of the records of a zip archive.
#pragma once

#include <cstddef>
#include <cstdint>

namespace metroplex::pickle {

inline constexpr uint32_t kLocal = 0x04034b50, kDescriptor = 0x08074b50, kEntry = 0x02014b50, kEnd = 0x06054b50,
                          kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
inline constexpr size_t kLocalBytes = 30;      // of a header before its name
inline constexpr uint16_t kExtra64 = 1;        // type of the extra field with 64-bit values
inline constexpr uint32_t kIn64 = 0xffffffff;  // the value is in the 64-bit record

}  // namespace metroplex::pickle
