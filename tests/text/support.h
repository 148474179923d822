// Helpers for the tests of text/: the folders of vectors, and base64.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/error_of.h"

namespace metroplex::text::testing {

// Folders under tests/vectors/tokenizers that contain a cases.json, sorted.
std::vector<std::string> vector_folders();

nlohmann::json read_json(const std::string& path);
std::string read_file(const std::string& path);
bool exists(const std::string& path);

// The bytes of a case: its text, or text_base64.
std::string case_text(const nlohmann::json& item);

// A new folder in the system's temporary folder, removed with its contents by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string write(const std::string& name, std::string_view content) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using test::catch_error;

}  // namespace metroplex::text::testing
