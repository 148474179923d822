#include "pickle/archive.h"

#include <algorithm>

#include "base/error.h"
#include "pickle/archive_records.h"

namespace metroplex::pickle {
namespace {

constexpr uint64_t kAlignment = 64;
// The sizes and the checksum follow the data of an entry; names are UTF-8.
constexpr uint16_t kFlags = 0x0808;
constexpr uint16_t kVersion64 = 45;  // the first version with 64-bit sizes

// Appends little-endian numbers.
class Record {
 public:
  template <class T>
  Record& add(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Record& add_short(uint64_t value) { return add(static_cast<uint16_t>(value)); }
  Record& add_limited(uint64_t value) { return add(static_cast<uint32_t>(std::min<uint64_t>(value, kIn64))); }
  Record& add_text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace

bool ArchiveWriter::Entry::is_large() const { return size >= kIn64 || offset >= kIn64; }

void ArchiveWriter::put(std::string_view bytes) {
  sink_(bytes.data(), bytes.size());
  at_ += bytes.size();
}

void ArchiveWriter::add(const std::string& name, std::string_view data) {
  begin(name, data.size());
  write(data);
  end();
}

// An extra field of type "FB" pads the header.
void ArchiveWriter::begin(const std::string& name, uint64_t size) {
  Entry entry{folder_ + "/" + name, at_, size, 0, 0};
  const uint64_t header = at_ + kLocalBytes + entry.name.size() + 4;
  const uint64_t padding = (kAlignment - header % kAlignment) % kAlignment;
  Record record;
  record.add(kLocal).add(uint16_t{0}).add(kFlags).add(uint16_t{0}).add(uint32_t{0});  // stored; no time
  record.add(uint32_t{0}).add(uint32_t{0}).add(uint32_t{0});
  record.add_short(entry.name.size()).add_short(padding + 4).add_text(entry.name);
  record.add_text("FB").add_short(padding).add_text(std::string(padding, 'Z'));
  put(record.bytes());
  entries_.push_back(std::move(entry));
}

void ArchiveWriter::write(std::string_view data) {
  Entry& entry = entries_.back();
  entry.crc32 = compute_crc32(data, entry.crc32);
  entry.written += data.size();
  put(data);
}

void ArchiveWriter::end() {
  const Entry& entry = entries_.back();
  MPX_ASSERT(entry.written == entry.size, entry.name, ": ", entry.written, " bytes instead of ", entry.size);
  Record record;
  record.add(kDescriptor).add(entry.crc32);
  if (entry.is_large()) record.add(entry.size).add(entry.size);
  else record.add_limited(entry.size).add_limited(entry.size);
  put(record.bytes());
}

uint64_t ArchiveWriter::finish() {
  const uint64_t begin = at_, count = entries_.size();
  for (const Entry& entry : entries_) {
    Record extra, record;
    if (entry.is_large()) {
      extra.add(kExtra64).add_short((entry.size >= kIn64 ? 16 : 0) + (entry.offset >= kIn64 ? 8 : 0));
      if (entry.size >= kIn64) extra.add(entry.size).add(entry.size);
      if (entry.offset >= kIn64) extra.add(entry.offset);
    }
    const uint16_t version = entry.is_large() ? kVersion64 : 0;
    record.add(kEntry).add(uint16_t{0}).add(version).add(kFlags).add(uint16_t{0}).add(uint32_t{0});
    record.add(entry.crc32).add_limited(entry.size).add_limited(entry.size);
    record.add_short(entry.name.size()).add_short(extra.bytes().size()).add(uint16_t{0});  // no comment
    record.add(uint16_t{0}).add(uint16_t{0}).add(uint32_t{0}).add_limited(entry.offset);   // one disk, no attributes
    put(record.add_text(entry.name).add_text(extra.bytes()).bytes());
  }
  const uint64_t end = at_, size = end - begin;
  Record record;
  record.add(kEnd64).add(uint64_t{44}).add(kVersion64).add(kVersion64).add(uint32_t{0}).add(uint32_t{0});
  record.add(count).add(count).add(size).add(begin);
  record.add(kLocator64).add(uint32_t{0}).add(end).add(uint32_t{1});
  record.add(kEnd).add(uint16_t{0}).add(uint16_t{0}).add_short(count).add_short(count);
  put(record.add_limited(size).add_limited(begin).add(uint16_t{0}).bytes());
  return at_;
}

}  // namespace metroplex::pickle
