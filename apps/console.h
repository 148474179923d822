// Console output that escapes control characters in text from files, models and the network. Commands write to
// std::cout and std::cerr as usual; main() installs an EscapingBuffer on both.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <iosfwd>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>

namespace metroplex::apps {

// Forwards text to `target` after base::escape_controls.
class EscapingBuffer final : public std::streambuf {
 public:
  explicit EscapingBuffer(std::streambuf* target) : target_(target) {}
  // Writes `text` unescaped, after all previous output.
  bool write_raw(std::string_view text);
  // Writes the pending bytes of an incomplete code point.
  bool finish();

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  bool write(std::string_view text);

  std::streambuf* target_;
  std::mutex mutex_;
  std::string incomplete_;  // the first bytes of a code point
};

class EscapedStreams {
 public:
  EscapedStreams();
  ~EscapedStreams();
  EscapedStreams(const EscapedStreams&) = delete;
  EscapedStreams& operator=(const EscapedStreams&) = delete;

 private:
  std::streambuf *out_, *err_;
  EscapingBuffer escaped_out_, escaped_err_;
};

// Writes text with this program's colors and cursor movements. The caller must have escaped foreign text.
void write_styled(std::ostream& stream, std::string_view text);
// Writes text of a model or tokenizer to stdout: unchanged, unless stdout is a terminal.
void write_text(std::string_view text);

// Replaces bytes that are not UTF-8 by U+FFFD.
std::string json_text(const nlohmann::ordered_json& json, int indent = 2);
std::string json_text(const nlohmann::json& json, int indent = 2);

}  // namespace metroplex::apps
