// Zip archives as torch.save writes them: entries are stored without compression, and sizes may have 64 bits. Follows
// PKWARE's APPNOTE 6.3.
#pragma once

#include <cstdint>
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

// The CRC-32 of zip files (polynomial 0xedb88320).
uint32_t compute_crc32(std::string_view data);

}  // namespace metroplex::pickle
