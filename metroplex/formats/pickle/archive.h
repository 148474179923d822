// Zip archives as torch.save reads and writes them: entries are stored without compression, and sizes may have 64
// bits. Follows PKWARE's APPNOTE 6.3.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace metroplex::pickle {

struct ArchiveEntry {
  std::string_view name, data;
  uint32_t crc32 = 0;
};

// Returns the entries of the archive that fills `file`. Checks every length. `where` is used in messages. Throws
// base::Error("pickle").
std::vector<ArchiveEntry> read_archive(std::string_view file, const std::string& where);

// The CRC-32 of zip files (polynomial 0xedb88320). `before`: that of the preceding data.
uint32_t compute_crc32(std::string_view data, uint32_t before = 0);

// Receives bytes in order, in any number of calls.
using Sink = std::function<void(const void* data, size_t size)>;

// Writes an archive in one pass. The data of each entry begins at a multiple of 64 bytes in the archive, as
// torch.save aligns it.
class ArchiveWriter {
 public:
  // `folder`: of all entries.
  ArchiveWriter(Sink sink, std::string folder) : sink_(std::move(sink)), folder_(std::move(folder)) {}

  void add(const std::string& name, std::string_view data);
  // An entry in parts: begin, any number of write, end. The parts must have `size` bytes together.
  void begin(const std::string& name, uint64_t size);
  void write(std::string_view data);
  void end();
  // Writes the directory. Returns the size of the archive in bytes.
  uint64_t finish();

 private:
  struct Entry {
    std::string name;
    uint64_t offset = 0, size = 0, written = 0;
    uint32_t crc32 = 0;
    bool is_large() const;  // requires 64-bit fields
  };
  void put(std::string_view bytes);

  Sink sink_;
  std::string folder_;
  std::vector<Entry> entries_;
  uint64_t at_ = 0;
};

}  // namespace metroplex::pickle
