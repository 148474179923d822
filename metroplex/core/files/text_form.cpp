#include "files/text_form.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace metroplex::files {
namespace {

using Json = nlohmann::json;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf", kSpaces = " \t\r\n\v\f";

struct Form {
  std::string_view begin;
  const char* text;
};
constexpr Form kForms[] = {
    {"\x1f\x8b", "is compressed with gzip; decompress it first (gunzip)"},
    {"\x28\xb5\x2f\xfd", "is compressed with zstd; decompress it first (unzstd)"},
    {"BZh91AY&SY", "is compressed with bzip2; decompress it first (bunzip2)"},
    {"\xfd\x37zXZ", "is compressed with xz; decompress it first (unxz)"},
    {"\x04\x22\x4d\x18", "is compressed with lz4; decompress it first (unlz4)"},
    {"PK\x03\x04", "is a zip archive; unpack it first (unzip)"},
    {std::string_view("\xff\xfe\0\0", 4), "is UTF-32; convert it (iconv -f UTF-32 -t UTF-8)"},
    {std::string_view("\0\0\xfe\xff", 4), "is UTF-32; convert it (iconv -f UTF-32 -t UTF-8)"},
    {"\xff\xfe", "is UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"},
    {"\xfe\xff", "is UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"},
    {"ARROW1", "is an Arrow file; write it as JSON lines first"},
    {"\xff\xff\xff\xff", "is an Arrow stream; write it as JSON lines first"},
    {std::string_view("SQLite format 3\0", 16), "is an SQLite database; write its texts as JSON lines first"},
    {"%PDF-", "is a PDF file; extract its text first (pdftotext)"},
};

constexpr size_t kTarMagicOffset = 257;
constexpr std::string_view kTarMagic = "ustar";

// Detects UTF-16 without a byte order mark: ASCII characters have a zero byte on one side.
const char* unmarked_utf16(std::string_view bytes) {
  constexpr size_t kSample = 512;
  const size_t size = std::min(bytes.size(), kSample) & ~size_t{1};
  size_t zeros[2] = {0, 0};
  for (size_t i = 0; i < size; ++i) zeros[i % 2] += bytes[i] == '\0';
  if (zeros[0] == 0 && 4 * zeros[1] > size) return "is UTF-16; convert it (iconv -f UTF-16LE -t UTF-8)";
  if (zeros[1] == 0 && 4 * zeros[0] > size) return "is UTF-16; convert it (iconv -f UTF-16BE -t UTF-8)";
  return "";
}

// Returns the code unit of \uXXXX at `at`; -1 for other text.
int escaped_unit(std::string_view text, size_t at) {
  if (text.size() < at + 6 || text[at] != '\\' || text[at + 1] != 'u') return -1;
  int unit = 0;
  for (size_t i = at + 2; i < at + 6; ++i) {
    const size_t digit = std::string_view("0123456789abcdef").find(static_cast<char>(text[i] | 0x20));
    if (digit == std::string_view::npos) return -1;
    unit = unit * 16 + static_cast<int>(digit);
  }
  return unit;
}

bool is_first(int unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_second(int unit) { return unit >= 0xDC00 && unit < 0xE000; }

size_t copy_escape(std::string_view text, size_t at, std::string& out, int64_t& surrogates) {
  const int unit = escaped_unit(text, at);
  if (is_first(unit) && is_second(escaped_unit(text, at + 6))) {
    out.append(text.substr(at, 12));
    return at + 12;
  }
  if (is_first(unit) || is_second(unit)) {
    out += "\\ufffd";
    ++surrogates;
    return at + 6;
  }
  out.append(text.substr(at, 2));
  return at + 2;
}

}  // namespace

std::string_view without_byte_order_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

std::string no_text_form(std::string_view bytes) {
  for (const Form& form : kForms) {
    if (bytes.starts_with(form.begin)) return form.text;
  }
  if (bytes.size() >= 12 && bytes.starts_with("PAR1") && bytes.ends_with("PAR1"))
    return "is a Parquet file; write it as JSON lines first";
  if (bytes.size() > kTarMagicOffset && bytes.substr(kTarMagicOffset).starts_with(kTarMagic))
    return "is a tar archive; unpack it first (tar -xf)";
  return unmarked_utf16(bytes);
}

std::string no_json_lines_form(std::string_view text) {
  text = without_byte_order_mark(text);
  const size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
  std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  line = line.substr(0, line.find_last_not_of(kSpaces) + 1);
  if (line.starts_with('[')) {
    const Json json = Json::parse(without_python_json(line), nullptr, /*allow_exceptions=*/false);
    // A line may be a chat, written as a list of messages.
    const bool messages = json.is_array() && !json.empty() && json[0].is_object() &&
                          (json[0].contains("role") || json[0].contains("from"));
    return messages ? "" : "is a JSON array, not JSON lines; write one object per line (jq -c '.[]')";
  }
  if (line.starts_with('{') && line.ends_with("},") &&
      Json::accept(without_python_json(line.substr(0, line.size() - 1))))
    return "has a comma after each object, not JSON lines; remove the commas (sed 's/,$//')";
  const bool open = line == "{" || (line.starts_with('{') && (line.ends_with(',') || line.ends_with('[') ||
                                                              line.ends_with('{') || line.ends_with(':')));
  return open ? "contains multi-line JSON objects, not JSON lines; write one object per line (jq -c .)" : "";
}

bool has_python_json(std::string_view text) {
  const auto has = [&](const char* part) { return text.find(part) != std::string_view::npos; };
  return has("\\ud") || has("\\uD") || has("NaN") || has("Infinity");
}

std::string without_python_json(std::string_view text, int64_t* surrogates) {
  std::string out;
  int64_t count = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size();) {
    if (in_string && text[at] == '\\') {
      at = copy_escape(text, at, out, count);
      continue;
    }
    if (text[at] == '"') in_string = !in_string;
    const std::string_view rest = text.substr(at);
    size_t size = 0;
    for (const std::string_view number : {"NaN", "Infinity", "-Infinity"}) {
      if (!in_string && rest.starts_with(number)) size = number.size();
    }
    if (size > 0) out += "null";
    else out += text[at];
    at += std::max<size_t>(size, 1);
  }
  if (surrogates != nullptr) *surrogates += count;
  return out;
}

}  // namespace metroplex::files
