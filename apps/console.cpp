#include "console.h"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <iostream>

#include "base/utf8.h"

namespace metroplex::apps {

bool EscapingBuffer::write(std::string_view text) {
  const auto size = static_cast<std::streamsize>(text.size());
  return size == 0 || target_->sputn(text.data(), size) == size;
}

bool EscapingBuffer::write_raw(std::string_view text) {
  const std::lock_guard lock(mutex_);
  const bool written = write(base::escape_controls(incomplete_)) && write(text);
  incomplete_.clear();
  return written;
}

bool EscapingBuffer::finish() { return write_raw(""); }

EscapingBuffer::int_type EscapingBuffer::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char byte = traits_type::to_char_type(c);
  return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
}

std::streamsize EscapingBuffer::xsputn(const char* text, std::streamsize size) {
  const std::lock_guard lock(mutex_);
  std::string all = std::exchange(incomplete_, "");
  all.append(text, static_cast<size_t>(size));
  const size_t rest = base::incomplete_utf8_suffix(all);
  incomplete_ = all.substr(all.size() - rest);
  all.resize(all.size() - rest);
  return write(base::escape_controls(all)) ? size : 0;
}

int EscapingBuffer::sync() {
  const std::lock_guard lock(mutex_);
  return target_->pubsync();
}

EscapedStreams::EscapedStreams()
    : out_(std::cout.rdbuf()), err_(std::cerr.rdbuf()), escaped_out_(out_), escaped_err_(err_) {
  std::cout.rdbuf(&escaped_out_);
  std::cerr.rdbuf(&escaped_err_);
}

EscapedStreams::~EscapedStreams() {
  escaped_out_.finish();
  escaped_err_.finish();
  std::cout.rdbuf(out_);
  std::cerr.rdbuf(err_);
}

void write_styled(std::ostream& stream, std::string_view text) {
  auto* const escaping = dynamic_cast<EscapingBuffer*>(stream.rdbuf());
  if (escaping == nullptr) stream << text;
  else if (!escaping->write_raw(text)) stream.setstate(std::ios::badbit);
}

void write_text(std::string_view text) {
  if (isatty(STDOUT_FILENO) != 0) std::cout << text;
  else write_styled(std::cout, text);
}

std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace metroplex::apps
