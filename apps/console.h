// Output to the console: text from files, models and the network reaches it with escaped control characters. Commands
// write to std::cout and std::cerr as usual; main() puts an EscapingBuffer on both.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <iosfwd>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>

namespace metroplex::apps {

// Passes text on to `target` as base::escape_controls returns it.
class EscapingBuffer final : public std::streambuf {
 public:
  explicit EscapingBuffer(std::streambuf* target) : target_(target) {}
  // Unchanged, after what was written before.
  bool write_raw(std::string_view text);
  // Writes the bytes of a code point that was not completed.
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

// While it lives, both streams escape.
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

// Text with this program's own colors and cursor movements, in which foreign text is escaped already.
void write_styled(std::ostream& stream, std::string_view text);
// A model's or tokenizer's text to stdout: unchanged, unless stdout is a terminal.
void write_text(std::string_view text);

// With bytes that are not UTF-8 replaced by U+FFFD.
std::string json_text(const nlohmann::ordered_json& json, int indent = 2);
std::string json_text(const nlohmann::json& json, int indent = 2);

}  // namespace metroplex::apps
