#include "pickle/archive.h"

#include <array>
#include <cstring>

#include "base/error.h"
#include "pickle/archive_records.h"

namespace metroplex::pickle {
namespace {

constexpr size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kEntryBytes = 46;
constexpr uint16_t kIsEncrypted = 1;

class ArchiveReader {
 public:
  ArchiveReader(std::string_view file, const std::string& where) : file_(file), where_(where) {}

  std::vector<ArchiveEntry> read() {
    find_directory();
    std::vector<ArchiveEntry> entries;
    size_t at = directory_;
    for (uint64_t i = 0; i < count_; ++i) entries.push_back(read_entry(at));
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    base::throw_error("pickle",
                      base::concat("'", where_, "': ", problem, "; copy the file again, or save it with torch.save"));
  }
  template <class T>
  T number(size_t at) const {
    T value;
    if (at > file_.size() || file_.size() - at < sizeof(T)) fail("a zip record exceeds the file");
    std::memcpy(&value, file_.data() + at, sizeof(T));
    return value;
  }
  std::string_view range(uint64_t at, uint64_t size, const char* what) const {
    if (at > file_.size() || file_.size() - at < size)
      fail(base::concat(what, " at byte ", at, " with ", size, " bytes exceeds the ", file_.size(),
                        " bytes of the file"));
    return file_.substr(at, size);
  }

  // The end record is the last one with a comment that reaches exactly to the end of the file.
  void find_directory() {
    if (file_.size() < kEndBytes) fail("too small for a zip archive");
    const size_t first = file_.size() - std::min<size_t>(file_.size(), kEndBytes + 0xffff);
    size_t end = file_.size() - kEndBytes;
    while (number<uint32_t>(end) != kEnd || end + kEndBytes + number<uint16_t>(end + 20) != file_.size()) {
      if (end == first) fail("there is no end record of a zip archive");
      --end;
    }
    count_ = number<uint16_t>(end + 10);
    uint64_t size = number<uint32_t>(end + 12), offset = number<uint32_t>(end + 16);
    if (end >= kLocatorBytes && number<uint32_t>(end - kLocatorBytes) == kLocator64) {
      const auto end64 = number<uint64_t>(end - kLocatorBytes + 8);
      range(end64, kEnd64Bytes, "the 64-bit end record");
      if (number<uint32_t>(end64) != kEnd64) fail("the 64-bit end record is missing");
      count_ = number<uint64_t>(end64 + 32);
      size = number<uint64_t>(end64 + 40);
      offset = number<uint64_t>(end64 + 48);
    }
    range(offset, size, "the zip directory");
    if (count_ > size / kEntryBytes) fail(base::concat("the zip directory is too small for ", count_, " entries"));
    directory_ = offset;
  }

  ArchiveEntry read_entry(size_t& at) const {
    if (number<uint32_t>(at) != kEntry) fail(base::concat("there is no zip directory entry at byte ", at));
    const uint64_t name_size = number<uint16_t>(at + 28), extra_size = number<uint16_t>(at + 30),
                   comment_size = number<uint16_t>(at + 32);
    ArchiveEntry entry;
    entry.name = range(at + kEntryBytes, name_size, "the name of a zip entry");
    entry.crc32 = number<uint32_t>(at + 16);
    if ((number<uint16_t>(at + 8) & kIsEncrypted) != 0) fail(base::concat("'", entry.name, "' is encrypted"));
    if (number<uint16_t>(at + 10) != 0) fail(base::concat("'", entry.name, "' is compressed"));
    uint64_t packed = number<uint32_t>(at + 20), size = number<uint32_t>(at + 24), local = number<uint32_t>(at + 42);
    read_extra64(at + kEntryBytes + name_size, extra_size, {&size, &packed, &local});
    if (packed != size) fail(base::concat("'", entry.name, "' has two different sizes"));
    range(local, kLocalBytes, "the header of a zip entry");
    if (number<uint32_t>(local) != kLocal) fail(base::concat("'", entry.name, "' has no header at byte ", local));
    const uint64_t data = local + kLocalBytes + number<uint16_t>(local + 26) + number<uint16_t>(local + 28);
    entry.data = range(data, size, "a zip entry");
    at += kEntryBytes + name_size + extra_size + comment_size;
    return entry;
  }

  // Replaces values of kIn64 by the 64-bit values of the extra field, which have this order.
  void read_extra64(size_t at, size_t size, std::array<uint64_t*, 3> values) const {
    range(at, size, "the extra field of a zip entry");
    for (const size_t end = at + size; end - at >= 4;) {
      const auto kind = number<uint16_t>(at);
      const size_t length = number<uint16_t>(at + 2);
      if (length > end - at - 4) fail("an extra field of a zip entry exceeds its record");
      size_t next = at + 4;
      for (uint64_t* value : values) {
        if (kind != kExtra64 || *value != kIn64 || next + 8 > at + 4 + length) continue;
        *value = number<uint64_t>(next);
        next += 8;
      }
      at += 4 + length;
    }
  }

  std::string_view file_;
  const std::string& where_;
  uint64_t directory_ = 0, count_ = 0;
};

std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320U : 0U);
    table[i] = value;
  }
  return table;
}

}  // namespace

std::vector<ArchiveEntry> read_archive(std::string_view file, const std::string& where) {
  return ArchiveReader(file, where).read();
}

uint32_t compute_crc32(std::string_view data, uint32_t before) {
  static const std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t value = ~before;
  for (const char byte : data) value = kTable[(value ^ static_cast<unsigned char>(byte)) & 0xff] ^ (value >> 8);
  return ~value;
}

}  // namespace metroplex::pickle
