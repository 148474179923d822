#include "files/tensorboard.h"

#include <array>
#include <chrono>
#include <cstring>

#include <unistd.h>

#include "base/error.h"

namespace metroplex::files {
namespace {

std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);  // Castagnoli, reflected
    table[i] = crc;
  }
  return table;
}

uint32_t masked_crc(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
std::string little_endian(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));  // all supported machines are little endian
  return out;
}

std::string varint(uint64_t value) {
  std::string out;
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
  return out;
}

std::string bytes_field(int field, const std::string& bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string double_field(int field, double value) { return varint(field << 3 | 1) + little_endian(value); }
std::string float_field(int field, float value) { return varint(field << 3 | 5) + little_endian(value); }
std::string varint_field(int field, uint64_t value) { return varint(field << 3) + varint(value); }

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

uint32_t crc32c(const std::string& bytes) {
  static const std::array<uint32_t, 256> table = make_crc_table();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(FileSystem& disk, const std::string& directory) {
  // The process id separates runs that start in the same second.
  path_ = directory + "/events.out.tfevents." + std::to_string(static_cast<int64_t>(wall_time())) + ".metroplex." +
          std::to_string(getpid());
  try {
    disk.make_directories(directory);
    file_ = disk.append(path_);
    write_record(double_field(1, wall_time()) + bytes_field(3, "brain.Event:2"));
  } catch (const base::Error& error) {
    base::throw_error("files", base::concat("cannot write TensorBoard events to ", path_, " (", error.what(),
                                            "); choose another train.tensorboard_dir"));
  }
}

void TensorBoardWriter::write_record(const std::string& payload) {
  const std::string length = little_endian(static_cast<uint64_t>(payload.size()));
  file_->write(length + little_endian(masked_crc(length)) + payload + little_endian(masked_crc(payload)));
}

void TensorBoardWriter::add_scalars(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
  write_record(double_field(1, wall_time()) + varint_field(2, static_cast<uint64_t>(step)) + bytes_field(5, summary));
}

}  // namespace metroplex::files
