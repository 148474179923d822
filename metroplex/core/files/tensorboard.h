// TensorBoard event files: TFRecords (length, masked CRC-32C, payload, masked CRC-32C) around hand-encoded Event
// messages with scalar summaries (tensorflow/core/util/event.proto, fields 1 wall_time, 2 step, 3 file_version,
// 5 summary; Summary.Value fields 1 tag, 2 simple_value).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "files/file_system.h"

namespace metroplex::files {

uint32_t crc32c(const std::string& bytes);

class TensorBoardWriter {
 public:
  // Creates `directory` if needed, and a new file "events.out.tfevents.<seconds>.metroplex.<pid>" in it. Throws
  // base::Error("files") on failure.
  TensorBoardWriter(FileSystem& disk, const std::string& directory);
  // Writes one event with some scalars. Throws base::Error("files") on failure.
  void add_scalars(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  const std::string& path() const { return path_; }

 private:
  void write_record(const std::string& payload);
  std::string path_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace metroplex::files
