#include "data/documents.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/text_form.h"
#include "base/utf8.h"

namespace metroplex::data {

namespace {

bool ends_with(const std::string& text, std::string_view tail) {
  return text.size() >= tail.size() && std::string_view(text).substr(text.size() - tail.size()) == tail;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

struct Found {
  std::vector<DocumentFile> files;
  int64_t hidden = 0;
};

void collect(files::FileSystem& disk, const std::string& path, TextFormat format, Found& out) {
  if (disk.is_directory(path)) {
    for (const std::string& name : disk.list(path)) {
      if (name.starts_with('.')) ++out.hidden;
      else collect(disk, files::join_path(path, name), format, out);
    }
    return;
  }
  MPX_CHECK(
      format != TextFormat::by_name || !(ends_with(path, ".bin") || ends_with(path, ".idx")), "data", "'", path,
      "' is not text: its name is that of a token dataset; merge existing datasets with --merge PREFIXES, or pass "
      "--format text if it is text");
  MPX_CHECK(
      format != TextFormat::by_name || !(ends_with(path, ".csv") || ends_with(path, ".tsv")), "data", "'", path,
      "' is a table according to its name; write its texts as JSON lines, or pass --format text if it is one text");
  const bool named = ends_with(path, ".jsonl") || ends_with(path, ".ndjson") || ends_with(path, ".json");
  DocumentFile file{path, format == TextFormat::jsonl || (format == TextFormat::by_name && named), disk.map(path)};
  const std::string form = files::no_text_form(file.bytes.text());
  MPX_CHECK(form.empty(), "data", "'", path, "' ", form);
  out.files.push_back(std::move(file));
}

// Returns the line at `at` without its end; `next` receives the start of the following line.
std::string_view line_at(std::string_view text, size_t at, size_t& next) {
  const size_t end = text.find('\n', at);
  next = end == std::string_view::npos ? text.size() : end + 1;
  return text.substr(at, (end == std::string_view::npos ? text.size() : end) - at);
}

int64_t line_number(std::string_view text, int64_t offset) {
  return 1 + std::count(text.begin(), text.begin() + offset, '\n');
}

}  // namespace

std::vector<DocumentFile> open_documents(files::FileSystem& disk, const std::vector<std::string>& inputs,
                                         TextFormat format, int64_t* hidden) {
  Found found;
  for (const std::string& input : inputs) collect(disk, input, format, found);
  if (hidden != nullptr) *hidden = found.hidden;
  return std::move(found.files);
}

bool DocumentReader::next(RawDocument& document) {
  for (; at_.file < files_.size(); at_ = {at_.file + 1, 0}) {
    const DocumentFile& file = files_[at_.file];
    const std::string_view text = file.bytes.text();
    const size_t mark = text.size() - files::without_byte_order_mark(text).size();
    size_t at = std::max(static_cast<size_t>(at_.offset), mark), after = at;
    if (!file.jsonl && !split_) {
      document = {at_.file, static_cast<int64_t>(mark), text.substr(mark)};
      at_ = {at_.file + 1, 0};
      return true;
    }
    while (at < text.size() && is_blank(line_at(text, at, after))) at = after;
    if (at >= text.size()) continue;
    size_t end = at + line_at(text, at, after).size();
    while (!file.jsonl && after < text.size()) {  // a document extends to the next blank line
      size_t following;
      const std::string_view line = line_at(text, after, following);
      if (is_blank(line)) break;
      end = after + line.size();
      after = following;
    }
    if (!file.jsonl && text[end - 1] == '\r') --end;
    document = {at_.file, static_cast<int64_t>(at), text.substr(at, end - at)};
    at_.offset = static_cast<int64_t>(after);
    return true;
  }
  return false;
}

std::string document_place(const std::vector<DocumentFile>& files, const RawDocument& document) {
  const DocumentFile& file = files[document.file];
  return base::concat("'", file.path, "' line ", line_number(file.bytes.text(), document.offset));
}

std::string document_text(const std::vector<DocumentFile>& files, const RawDocument& document,
                          const std::string& json_key, int64_t* surrogates) {
  const DocumentFile& file = files[document.file];
  if (!file.jsonl) {
    const size_t bad = base::valid_utf8_prefix(document.text);
    MPX_CHECK(bad == document.text.size(), "data", "'", file.path, "' byte ",
              document.offset + static_cast<int64_t>(bad),
              ": not UTF-8; convert the file (iconv -t UTF-8) or omit it");
    return std::string(document.text);
  }
  std::string problem;
  try {
    std::string replaced;
    const bool python = files::has_python_json(document.text);
    if (python) replaced = files::without_python_json(document.text, surrogates);
    const auto line = nlohmann::json::parse(python ? std::string_view(replaced) : document.text);
    if (!line.is_object()) problem = "is not a JSON object";
    else if (!line.contains(json_key))
      problem = "has no key '" + json_key + "'; set --json-key to the key of the text";
    else if (!line[json_key].is_string()) problem = "has a value of '" + json_key + "' that is not a string";
    else return line[json_key].get<std::string>();
  } catch (const nlohmann::json::exception& error) { problem = std::string("is not JSON in UTF-8: ") + error.what(); }
  const std::string form = files::no_json_lines_form(file.bytes.text());
  base::throw_error("data",
                    form.empty() ? document_place(files, document) + " " + problem : "'" + file.path + "' " + form);
}

}  // namespace metroplex::data
