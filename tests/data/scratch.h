// A temporary folder that is deleted when the test ends, and a small corpus in it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "files/indexed_dataset.h"

namespace metroplex::data {

class Scratch {
 public:
  Scratch() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = (std::filesystem::temp_directory_path() / (std::string("metroplex_") + info->test_suite_name() + "_" +
                                                       info->name() + "_" + std::to_string(::getpid())))
                .string();
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Scratch() { std::filesystem::remove_all(path_); }

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(*this / name, std::ios::binary) << text;
    return *this / name;
  }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Document d contains 100 d, 100 d + 1, ... and ends with 0.
inline void write_corpus(const std::string& prefix, const std::vector<int64_t>& lengths) {
  files::PosixFileSystem disk;
  files::IndexedDatasetWriter writer(disk, prefix, files::TokenType::i32);
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<int64_t> tokens(static_cast<size_t>(lengths[d]), 0);
    for (size_t j = 0; j + 1 < tokens.size(); ++j) tokens[j] = static_cast<int64_t>(100 * (d + 1) + j);
    writer.add_sequence(std::span<const int64_t>(tokens));
    writer.end_document();
  }
  writer.finalize();
}

}  // namespace metroplex::data
